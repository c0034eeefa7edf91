"""The states that a device believes, across restarts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fededge.config import AgentConfig
from fededge.credentials.signing_keys import make_keys, read_signing_key
from fededge.errors import StoreError, WireError
from fededge.method.private import Private
from fededge.wire import chunks
from fededge.wire.messages import Report, State
from fededge.wire.signing import sign
from fededge_agent.store import AgentStore, TrainedTurn
from fededge_agent.trainer.turn_files import TurnFiles
from fededge_agent.trust import Trust
from tests.wire.test_signing import STATE


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    make_keys(tmp_path / "a.key", tmp_path / "a.pub")
    key = str(tmp_path / "a.pub")
    (tmp_path / "state").mkdir()
    return AgentConfig(
        federation="gates", device="gate-7", state=str(tmp_path / "state"), trusted_key=key
    )


def opened(config: AgentConfig) -> Trust:
    """The next process: what it reads is there, and nobody holds the folder."""
    store = AgentStore(Path(config.state))
    store.open()
    store.close()
    trust = Trust(config, store)
    trust.open()
    return trust


def change_the_index(store: AgentStore) -> None:
    """As every turn does."""
    files = TurnFiles(store.folder, store.begin_turn())
    update, _ = files.write_update(lambda file: file.write(b"update"), 1024)
    report = Report("gate-7", "run", STATE.version, "0" * 64, chunks.manifest(b"update"), {})
    private = files.write_private(Private())
    store.save_turn(TrainedTurn(report, update, private, files.write_accepted(Private())))


def signed(folder: Path, issued: int, **fields: object) -> State:
    state = msgspec.structs.replace(STATE, issued=issued, **fields)
    return sign(state, read_signing_key(folder / "a.key"))


def test_a_copy_of_an_old_state_is_refused_also_after_a_restart(
    config: AgentConfig, tmp_path: Path
) -> None:
    trust = opened(config)
    assert trust.fresh
    trust.check(signed(tmp_path, 1000))
    trust.check(signed(tmp_path, 2000))
    trust.check(signed(tmp_path, 2000))  # the broker may deliver a state again
    for process in (trust, opened(config)):
        assert not process.fresh
        with pytest.raises(WireError, match="older than one that this device has seen"):
            process.check(signed(tmp_path, 1999))
        assert "the state of the federation is refused" in process.problem
        process.check(signed(tmp_path, 2000))
        assert process.problem == ""


def test_a_new_run_begins_at_round_0_and_is_believed(config: AgentConfig, tmp_path: Path) -> None:
    """A version may go back if the coordinator says so now: a new run, or a restored backup."""
    trust = opened(config)
    trust.check(signed(tmp_path, 1000))
    trust.check(signed(tmp_path, 1001, run="new", round=0, version="000000-0123456789abcdef"))


def test_a_refused_state_moves_nothing(config: AgentConfig, tmp_path: Path) -> None:
    """Otherwise a forged state from the future would shut all true ones out."""
    trust = opened(config)
    with pytest.raises(WireError, match="not signed"):
        trust.check(msgspec.structs.replace(STATE, issued=9_000_000_000_000))
    trust.check(signed(tmp_path, 1000))


def test_a_state_of_another_federation_is_refused_with_or_without_a_key(
    config: AgentConfig, tmp_path: Path
) -> None:
    keyless = msgspec.structs.replace(config, trusted_key="")
    state = signed(tmp_path, 1000, federation="doors")
    for trust in (opened(config), opened(keyless)):
        with pytest.raises(WireError, match="it names federation 'doors', not 'gates'"):
            trust.check(state)
    opened(keyless).check(STATE)


DAMAGES: list[Callable[[Path], object]] = [
    Path.unlink,
    lambda path: os.truncate(path, 5),
    lambda path: path.write_bytes(path.read_bytes().replace(b"3000", b"1000")),
    lambda path: path.write_bytes(b'{"newest": 0}'),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_memory_that_is_lost_does_not_let_an_old_state_in(
    config: AgentConfig,
    tmp_path: Path,
    damage: Callable[[Path], object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The index knows of the newest state as it was at its last change."""
    trust = opened(config)
    trust.check(signed(tmp_path, 1000))
    trust.check(signed(tmp_path, 2000))
    change_the_index(trust.store)
    trust.check(signed(tmp_path, 3000))
    path = tmp_path / "state" / "trust.json"
    damage(path)
    again = opened(config)
    assert [f"{path}: missing, damaged or older than it was" in m for m in caplog.messages] == [
        True
    ]
    assert not again.fresh
    with pytest.raises(WireError, match="older than one that this device has seen"):
        again.check(signed(tmp_path, 1999))
    again.check(signed(tmp_path, 3000))
    caplog.clear()
    assert opened(config).newest == 3000
    assert caplog.messages == []


def test_a_memory_that_was_put_back_is_noticed(config: AgentConfig, tmp_path: Path) -> None:
    trust, path = opened(config), tmp_path / "state" / "trust.json"
    trust.check(signed(tmp_path, 1000))
    old = path.read_bytes()
    trust.check(signed(tmp_path, 2000))
    change_the_index(trust.store)
    path.write_bytes(old)
    assert opened(config).newest == 2000


def test_a_trusted_key_is_recorded_with_the_first_state(
    config: AgentConfig, tmp_path: Path
) -> None:
    opened(config).check(signed(tmp_path, 1000))
    (tmp_path / "state" / "trust.json").unlink()
    assert not opened(config).fresh


def test_a_damaged_memory_is_not_taken_for_an_empty_one(
    config: AgentConfig, tmp_path: Path
) -> None:
    """Here the index is a new one: nothing is left to go by."""
    opened(config).check(signed(tmp_path, 1000))
    shutil.rmtree(tmp_path / "state" / "private")
    path = tmp_path / "state" / "trust.json"
    path.write_bytes(path.read_bytes()[:5])
    with pytest.raises(StoreError, match=r"trust.json: unreadable"):
        opened(config)
