"""The doctor finds each planted fault, and nothing else."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fededge.cli import main
from fededge.config import BrokerConfig
from fededge.doctor import FINDINGS, Severity
from fededge.doctor.running import runs
from fededge.transport.probing import Probing
from fededge_agent.store import AgentStore
from fededge_server.store import Store
from tests.doctor.box_faults import (
    BOX_FAULTS,
    CONFIGURATION_FAULTS,
    begun,
    files_of_another_user,
    journal,
)
from tests.doctor.broker_faults import BROKER_FAULTS, PLUGIN, subscriptions_denied
from tests.doctor.site import HOST, Patient, Site

FAULTS = {**BOX_FAULTS, **BROKER_FAULTS}
PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
Fault = Callable[[Patient], None]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(patient: Patient, fault: Fault) -> None:
    if fault is files_of_another_user and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    if fault is subscriptions_denied and not PLUGIN.exists():
        pytest.skip("Mosquitto's dynamic security plugin is not installed")
    fault(patient)
    found = patient.examined()
    assert {each.name for each in found} == FAULTS[fault]
    for each in found:
        assert each.what
        assert "{" not in each.fix


@pytest.mark.parametrize("fault", CONFIGURATION_FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_of_the_configuration_is_found(
    patient: Patient, fault: Fault, capsys: pytest.CaptureFixture[str]
) -> None:
    fault(patient)
    assert main(["doctor", "--json", "--config", str(patient.write())]) == 1
    (found,) = json.loads(capsys.readouterr().out)["examination"]
    assert found["finding"] == "config-invalid"
    assert CONFIGURATION_FAULTS[fault] in found["what"]


def test_every_finding_is_planted_and_there_are_more_than_forty_faults() -> None:
    planted = {"config-invalid"}.union(*FAULTS.values())
    assert planted == set(FINDINGS)
    assert len(FAULTS) + len(CONFIGURATION_FAULTS) >= 40


def healthy(it: Patient) -> None:
    """As it is: an agent of a closed broker."""


def healthy_with_tls(it: Patient) -> None:
    it.use_tls()


def healthy_with_a_certificate(it: Patient) -> None:
    it.use_certificate(it.site.pki, "gate-7")


def healthy_coordinator(it: Patient) -> None:
    it.become_coordinator()


def healthy_and_running(it: Patient) -> None:
    """The lock is held, as by an agent."""
    store = AgentStore(it.state)
    store.open()
    it.stack.callback(store.close)


def healthy_with_mqtt_3(it: Patient) -> None:
    it.broker["protocol"] = "3.1.1"


HEALTHY = [
    healthy,
    healthy_with_tls,
    healthy_with_a_certificate,
    healthy_coordinator,
    healthy_and_running,
    healthy_with_mqtt_3,
]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.__name__)
def test_a_healthy_side_has_no_finding(patient: Patient, case: Fault, deep: bool) -> None:
    case(patient)
    patient.deep = deep
    assert patient.examined() == []


def test_nothing_changes(patient: Patient, site: Site) -> None:
    """Neither files nor retained messages: --deep clears what it has retained."""
    begun(patient)
    patient.use_open(federation="unchanged")
    patient.deep = True
    patient.write()

    def everything() -> tuple[object, object]:
        paths = sorted(path for path in patient.folder.rglob("*.*") if path.suffix != ".toml")
        files = [(path, path.read_bytes(), path.stat().st_mtime_ns) for path in paths]
        with Probing(BrokerConfig(host=HOST, port=site.open_port), 5.0) as line:
            line.subscribe(["fededge/#"])
            line.listen(0.5)
            return files, sorted((heard.topic, heard.payload) for heard in line.heard)

    patient.examined()
    before = everything()
    assert {each.name for each in patient.examined()} == {"broker-open"}
    assert everything() == before


def test_a_journal_that_nobody_uses_gains_no_files(patient: Patient) -> None:
    """SQLite itself would leave its two files beside it."""
    store = journal(patient)
    before = sorted(path.name for path in store.folder.iterdir())
    assert patient.examined() == []
    assert sorted(path.name for path in store.folder.iterdir()) == before


def test_a_coordinator_that_runs_is_healthy(patient: Patient) -> None:
    patient.become_coordinator()
    patient.values["federation"] = "gates"  # where one is online
    store = Store(patient.state)
    store.open()
    patient.stack.callback(store.close)
    assert patient.examined() == []


def test_the_lock_is_asked_for_without_being_taken(patient: Patient) -> None:
    begun(patient)
    folder = patient.state / "private"
    assert not runs(folder)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert runs(folder)
    assert not runs(folder / "nowhere")


def test_the_page_lists_every_finding_as_the_code_has_it() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in PAGE.read_text().splitlines()
        if re.match(r"\| `[a-z][a-z0-9-]+` \|", line)
    ]
    listed = {row[0].strip("`"): row[1:] for row in rows}
    code = {
        name: [kind.severity.value, kind.why, f"`{kind.fix}`"] for name, kind in FINDINGS.items()
    }
    assert listed == code
    assert list(listed) == list(FINDINGS)


def test_the_exit_code_tells_errors_from_warnings(
    patient: Patient, capsys: pytest.CaptureFixture[str]
) -> None:
    patient.use_open(federation="warned")
    assert main(["doctor", "--config", str(patient.write())]) == 0
    said = capsys.readouterr().out
    assert "warning: the broker takes in clients without a password" in said
    assert "  fix: fededge init broker --out broker --federation warned" in said
    patient.broker["port"] = 1
    assert main(["doctor", "--config", str(patient.write())]) == 1
    assert "error: 127.0.0.1:1: nothing listens on this port" in capsys.readouterr().out
    assert {kind.severity for kind in FINDINGS.values()} == set(Severity)


def test_a_deep_examination_needs_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--deep"]) == 2
    assert "--deep examines a configuration" in capsys.readouterr().err
