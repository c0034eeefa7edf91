"""Mistakes that a user makes at the command line: one sentence, exit code 2, no traceback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fededge.broker.local import Broker
from fededge.cli import main
from fededge.ops import _backend


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("broker")
    with Broker(folder, kind="mosquitto", users={"box": "right"}) as running:
        yield running


def agent(folder: Path, port: int, more: str = "", username: str = "") -> list[str]:
    path = folder / "agent.toml"
    path.write_text(
        f'federation = "lab"\ndevice = "box"\nstate = "state"\n{more}\n[broker]\n'
        f'host = "127.0.0.1"\nport = {port}\nwait = 0.5\nusername = "{username}"\n'
    )
    return ["agent", "--config", str(path)]


def coordinator(folder: Path, more: str) -> list[str]:
    path = folder / "coordinator.toml"
    path.write_text(f'federation = "lab"\nstate = "state"\n{more}\n')
    return ["coordinator", "--config", str(path)]


def complaint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the command complains with."""
    assert main(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(lines) == 1, lines
    assert lines[0].startswith("fededge: ")
    return lines[0]


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_unknown_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(coordinator(tmp_path, "[roundz]"), capsys)
    assert said.endswith("coordinator.toml: unknown key 'roundz'; did you mean 'rounds'?")


def test_wrong_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(coordinator(tmp_path, '[rounds]\ncount = "ten"'), capsys)
    assert said.endswith("rounds.count: expected int, got str")


def test_unknown_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(coordinator(tmp_path, 'method = "fedproxx"'), capsys)
    assert "unknown method 'fedproxx'; did you mean 'fedprox'?" in said


def test_a_network_that_the_method_cannot_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused when the configuration is read: before data, broker or an hour of other methods."""
    sentence = "lfd needs a network with a cosine head"
    assert sentence in complaint(coordinator(tmp_path, 'method = "lfd"'), capsys)
    assert sentence in complaint(["simulate", "--method", "lfd"], capsys)
    assert sentence in complaint(["compare", "--methods", "fedavg", "lfd"], capsys)
    assert sentence in complaint(["demo", "--method", "lfd"], capsys)


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"{tmp_path / 'own.py'}:Mine"
    sentence = f"{tmp_path / 'own.py'}: there is no such file"
    assert sentence in complaint(coordinator(tmp_path, f'method = "{name}"'), capsys)
    assert sentence in complaint(agent(tmp_path, 1, f'methods = ["{name}"]'), capsys)
    assert sentence in complaint([*agent(tmp_path, 1), "--method", name], capsys)
    assert sentence in complaint(["simulate", "--method", name], capsys)
    assert sentence in complaint(["compare", "--methods", "fedavg", name], capsys)
    assert sentence in complaint(["demo", "--method", name], capsys)
    said = complaint([*agent(tmp_path, 1), "--method", "fedprox"], capsys)
    assert "'fedprox' is not of the form path/to/file.py:Name" in said


@pytest.mark.parametrize(
    ("label", "shown"), [("truck\\u001b[2J", r"truck\x1b[2J"), ("x" * 201, "xxx"), ("", "''")]
)
def test_a_label_that_devices_would_refuse(
    tmp_path: Path, label: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = f'labels = ["a", "{label}"]\nshape = [1, 28, 28]\nmean = [0.5]\nstd = [0.5]'
    said = complaint(coordinator(tmp_path, f"[model]\n{facts}"), capsys)
    assert shown in said
    assert "must have 1 to 200 printable characters" in said


def test_missing_data_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = '[data]\nsource = "folder"\nroot = "pictures"'
    said = complaint(agent(tmp_path, 1, more), capsys)
    assert f"data.root: there is no '{tmp_path / 'pictures'}'" in said


def test_no_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = unused_port()
    said = complaint(agent(tmp_path, port), capsys)
    assert f"mqtt://127.0.0.1:{port}: no broker answers (connection refused)" in said


def test_broker_name_that_does_not_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = agent(tmp_path, 1883)
    path = Path(arguments[-1])
    path.write_text(path.read_text().replace("127.0.0.1", "no-such-host.invalid"))
    assert "mqtt://no-such-host.invalid:1883: no broker answers" in complaint(arguments, capsys)


def test_wrong_password(
    tmp_path: Path,
    broker: Broker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FEDEDGE_PASSWORD", "wr0ng")
    said = complaint(agent(tmp_path, broker.port, username="box"), capsys)
    assert "the broker refuses user 'box' (Not authorized)" in said
    assert "FEDEDGE_PASSWORD" in said
    assert "wr0ng" not in said


def test_anonymous_where_a_password_is_wanted(
    tmp_path: Path, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(agent(tmp_path, broker.port), capsys)
    assert "the broker refuses an anonymous client" in said


def test_an_unknown_flag_is_one_sentence_too(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, sentence in (
        (["simulate", "--rounds", "x"], "fededge simulate: argument --rounds: invalid int value"),
        (
            ["simulate", "--round", "1", "--limi"],
            "fededge simulate: argument --limit: expected",
        ),
        (["simulate", "--colour"], "fededge: unrecognized arguments: --colour"),
        (["simulatte"], "fededge: argument COMMAND: invalid choice: 'simulatte'"),
        ([], "fededge: the following arguments are required: COMMAND"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(flags)
        said = capsys.readouterr().err
        assert caught.value.code == 2
        assert said.startswith(sentence)
        assert said.count("\n") == 1
        assert "--help" in said


def living(group: int) -> list[str]:
    """The processes of a group that run; one that nobody waits for is dead all the same."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, fields = path.read_text().rpartition(")")
            state, _, pgrp = fields.split()[:3]
            if int(pgrp) == group and state not in "ZX":
                found.append(name)
    return found


@pytest.mark.parametrize(("workers", "processes"), [("1", 1), ("2", 4)])
@pytest.mark.slow
def test_ctrl_c_ends_all_processes_without_a_word(
    tmp_path: Path, workers: str, processes: int
) -> None:
    """To the whole group, as a terminal does it, while workers (and torch's tracker) are there."""
    out, log = tmp_path / "out", tmp_path / "log"
    flags = ["--workers", workers, "--rounds", "1", "--limit", "200", "--devices", "2"]
    flags += ["--seeds", *map(str, range(500)), "--methods", "fedavg", "--no-plots"]
    command = [sys.executable, "-m", "fededge", "compare", *flags, "--out", str(out)]
    with log.open("wb") as file:
        child = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        try:
            while not list(out.glob("*.json")) or len(living(child.pid)) < processes:
                assert child.poll() is None, log.read_text()
                time.sleep(0.05)
            os.killpg(child.pid, signal.SIGINT)
            assert child.wait(60) == 130
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    assert all(line.startswith("fedavg, seed") for line in log.read_text().splitlines())
    deadline = time.monotonic() + 30
    while living(child.pid):
        assert time.monotonic() < deadline, living(child.pid)
        time.sleep(0.05)


def test_demo_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--rounds 0: must be 1 to 1000" in complaint(["demo", "--rounds", "0"], capsys)
    assert "unknown method 'x'" in complaint(["demo", "--method", "x"], capsys)
    assert "--data nope: unknown source" in complaint(["demo", "--data", "nope"], capsys)
    (tmp_path / "mine.txt").write_text("precious")
    said = complaint(["demo", "--out", str(tmp_path)], capsys)
    assert "not empty, and not made by a demo" in said
    assert (tmp_path / "mine.txt").read_text() == "precious"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("command", ["simulate", "compare", "demo"])
def test_a_missing_gpu_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "out")] if command != "simulate" else []
    methods = ["--methods", "fedavg"] if command == "compare" else []
    said = complaint([command, *methods, "--device", "cuda", *out], capsys)
    assert "device is 'cuda', but torch" in said
    said = complaint([command, *methods, "--precision", "half", *out], capsys)
    assert "precision is 'half', it must be one of: float32, bfloat16, float16" in said


def test_an_unknown_split_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "dirichlet" in complaint(["partition", "--split", "dirichlt:1"], capsys)


def test_doctor_names_the_extra_that_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Square brackets are words, not markup: the remedy must be readable as it is."""
    monkeypatch.setitem(sys.modules, "amqtt", None)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["doctor"]) == 0
    assert "pip install fededge[broker]" in capsys.readouterr().out


def test_doctor_says_what_runs_on_a_gpu_and_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build = {"cuda": "13.0", "architectures": "sm_87"}
    monkeypatch.setattr(_backend, "CUDA", _backend.Choice("reference", "torch sees no GPU", build))
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["kernels on a GPU"]
    assert said == "reference: torch sees no GPU; built with CUDA 13.0 for sm_87"
