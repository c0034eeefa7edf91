"""A coordinator and agents under seeded faults: nothing acknowledged is lost, the rounds end."""

from __future__ import annotations

from collections import Counter

import pytest

from fededge.config import RoundsConfig
from tests.federation import Faults, Federation, undisturbed

DEVICES = 4
SEEDS = 20

EVERYBODY = RoundsConfig(count=4, min_devices=DEVICES, quorum=DEVICES, deadline=60.0)
SOME = RoundsConfig(
    count=4, min_devices=3, participants=3, over_select=1.3, quorum=2, deadline=60.0
)
ANYBODY = RoundsConfig(count=4, min_devices=1, quorum=1, deadline=60.0)

FAULTS = {
    "none": Faults(),
    "processes die": Faults(kill=0.01),
    "processes die between two commands": Faults(kill_between_commands=0.03),
    "messages are doubled and overtaken": Faults(duplicate=0.1, reorder=0.3),
    "messages are lost": Faults(drop=0.08),
    "the broker loses everything": Faults(lose_broker=0.005, reconnect=0.02),
    "all at once": Faults(
        drop=0.03,
        duplicate=0.05,
        reorder=0.1,
        kill=0.005,
        kill_between_commands=0.005,
        reconnect=0.01,
        lose_broker=0.002,
    ),
}


def check(federation: Federation) -> None:
    """What must be true of every run, whatever went wrong in it."""
    versions = federation.coordinator.versions
    assert versions == sorted(versions)
    assert len(set(versions)) == federation.coordinator.config.count + 1
    assert [base for base, _ in federation.merges] == versions[:-1]
    merged: Counter[tuple[str, str]] = Counter()
    for base, updates in federation.merges:
        for device, sha256 in updates.items():
            assert federation.origin[sha256] == (device, base), "a merge mixes versions"
            merged[device, base] += 1
    for turn, accepted in federation.settled.items():
        assert merged[turn] == accepted, (
            f"{turn} was told {accepted}, and is in {merged[turn]} merges"
        )


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("config", [EVERYBODY, SOME, ANYBODY], ids=["everybody", "some", "anybody"])
def test_rounds_end_and_no_acknowledged_update_is_lost(name: str, config: RoundsConfig) -> None:
    for seed in range(SEEDS):
        federation = Federation(seed, DEVICES, config, FAULTS[name])
        federation.run()
        check(federation)


@pytest.mark.parametrize(
    "faults",
    [*FAULTS.values(), Faults(kill=0.01, lose_files=0.3)],
    ids=[*FAULTS, "models and accepted updates rot"],
)
def test_where_all_take_part_the_last_version_is_that_of_an_undisturbed_run(faults: Faults) -> None:
    """Private state is part of every update: one kept, lost or taken twice would change the last
    version. Nobody trains twice for a version.
    """
    expected = undisturbed(DEVICES, EVERYBODY)
    for seed in range(SEEDS, 2 * SEEDS):
        federation = Federation(seed, DEVICES, EVERYBODY, faults)
        federation.run()
        assert federation.coordinator.versions[-1] == expected, f"seed {seed}"
        assert set(federation.trained.values()) == {1}, f"seed {seed}"


def test_the_faults_really_happen() -> None:
    kills = 0
    for seed in range(SEEDS):
        federation = Federation(seed, DEVICES, EVERYBODY, FAULTS["all at once"])
        federation.run()
        kills += federation.kills
    assert kills > SEEDS


def test_a_seed_fixes_the_run() -> None:
    one, two = (Federation(7, DEVICES, SOME, FAULTS["all at once"]) for _ in range(2))
    one.run()
    two.run()
    assert (one.merges, one.now, one.kills) == (two.merges, two.now, two.kills)
