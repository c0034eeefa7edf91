"""What an agent makes of an announcement: its own files or none, and a sentence if it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fededge.config import AgentConfig, DataConfig, ModelConfig
from fededge.data.local import model_spec
from fededge.methods import method
from fededge.spec import ModelSpec
from fededge.wire.messages import Manifest, State, Status, Training, decode, encode
from fededge_agent.app import Agent
from fededge_agent.events import Unable
from tests.pages import write_example

HASH = "ab" * 32
STATE = State(
    federation="gates",
    run="run",
    seed=0,
    round=0,
    rounds=1,
    phase="waiting",
    version="000000-0123456789abcdef",
    sha256=HASH,
    layout=HASH,
    method="fedavg",
    training=Training(1, 1, 0.1, 0.0, 0.0),
    model=model_spec(ModelConfig(), DataConfig()),
    manifest=Manifest(1, 1024, 10, HASH),
    deadline=0.0,
)


def network(**fields: Any) -> ModelSpec:
    return msgspec.structs.replace(STATE.model, **fields)


def answer(folder: Path, allowed: tuple[str, ...] = (), **announced: Any) -> Any:
    """What the worker tells the loop after an announcement."""
    config = AgentConfig(federation="gates", device="box", state=str(folder), methods=allowed)
    agent = Agent(config)
    agent.work.load_methods()
    agent._prepare(msgspec.structs.replace(STATE, **announced))
    return agent.inbox.get_nowait()


@pytest.mark.parametrize(
    ("announced", "sentence"),
    [
        ({"method": "nosuch(x=1)"}, "unknown method 'nosuch'"),
        ({"method": "lfd"}, "lfd compares directions and needs a network with a cosine head"),
        ({"method": "keepsake", "files": {"keepsake": HASH}}, "that this device does not have"),
        ({"method": "FILE:Keepsake"}, "is not of the form name or name(key=value, ...)"),
        ({"method": "a\nb\x1b" + "c" * 1900}, "method 'a?b?ccc"),
        ({"model": network(name="nosuch")}, "network cannot be built: no network 'nosuch'"),
        ({"model": network(shape=(1, 8192, 8192))}, "choose another network or smaller inputs"),
        ({"model": network(shape=(1, 1, 1))}, "choose another network or larger images"),
    ],
)
def test_what_it_cannot_run_is_one_sentence_that_fits_into_a_status(
    tmp_path: Path, announced: dict[str, Any], sentence: str
) -> None:
    bomb = tmp_path / "bomb.py"
    bomb.write_text("raise RuntimeError('imported')")
    named = announced.get("method", "fedavg").replace("FILE", str(bomb))
    unable = answer(tmp_path, **{**announced, "method": named})
    assert isinstance(unable, Unable)
    assert sentence in unable.reason
    status = Status("i", True, device="box", activity="unable", problem=unable.reason)
    assert decode(encode(status), Status) == status


def test_it_runs_the_file_that_its_operator_allows_and_no_other_version(tmp_path: Path) -> None:
    reference = f"{write_example(tmp_path)}:Keepsake"
    stack = method(reference)
    announced = {"method": str(stack), "files": stack.files}
    other = answer(tmp_path, (reference,), **{**announced, "files": {"keepsake": HASH}})
    assert isinstance(other, Unable)
    assert HASH in other.reason
    assert stack.files["keepsake"] in other.reason
    assert str(tmp_path) not in other.reason  # where it lies is the device's own business
    ready = answer(tmp_path, (reference,), **announced)
    assert ready.state.files == stack.files
