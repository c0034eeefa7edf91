"""The turn runner: it serves an announced job, or says in one sentence why it cannot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

from fededge.config import AgentConfig, DataConfig, HardwareConfig, ModelConfig
from fededge.data.local import model_spec
from fededge.errors import WireError
from fededge.flat import FlatModel, Layout, as_numpy
from fededge.methods import method
from fededge.model_spec import ModelSpec
from fededge.models import build_for, meta_network
from fededge.wire import chunks, tensors
from fededge.wire.messages import Status, Training, decode, encode
from fededge_agent.agent import Agent, Surroundings
from fededge_agent.exporter.exports import DeviceExports
from fededge_agent.machine.events import Abandoned, Cause, Prepared, Trained, TurnFailed, Unable
from fededge_agent.trainer.turns import DeviceTurns
from fededge_agent.worker import UNFIT
from tests.pages import write_example
from tests.states import made_state

HERE = Surroundings(
    trainer=lambda config, store: DeviceTurns(config),
    exporter=lambda config, store: DeviceExports(config),
)
"""Torch is in this process already."""

ONE_THREAD = HardwareConfig(threads=1)
HASH = "ab" * 32
FOREIGN = "some labels of the device's data are not the federation's: its own log names them"
FEW = DataConfig(source="embedded", split="dirichlet:0.5", devices=40, index=0)
MODEL = model_spec(ModelConfig(), DataConfig(source="embedded"))
STATE = made_state(
    federation="gates",
    phase="waiting",
    layout=Layout.of(meta_network(MODEL)).hash,
    model=MODEL,
    deadline=0.0,
)


def network(**fields: Any) -> ModelSpec:
    return msgspec.structs.replace(STATE.model, **fields)


def foreign(**fields: Any) -> dict[str, Any]:
    """Another network than that of the device's data, and its layout."""
    spec = network(**({"mean": (), "std": ()} if "vocabulary" in fields else {}), **fields)
    return {"model": spec, "layout": Layout.of(meta_network(spec)).hash}


def answer(folder: Path, allowed: tuple[str, ...] = (), **announced: Any) -> Any:
    """The worker's result after an announcement."""
    config = AgentConfig(
        federation="gates",
        device="box",
        state=str(folder),
        data=DataConfig(source="embedded"),
        methods=allowed,
        max_memory_bytes=2**30,
    )
    agent = Agent(config, HERE)
    agent.runner.start()
    agent.worker._prepare(msgspec.structs.replace(STATE, **announced))
    return agent.loop.inbox.get_nowait()


@pytest.mark.parametrize(
    ("announced", "sentence"),
    [
        ({"method": "nosuch(x=1)"}, "unknown method 'nosuch'"),
        ({"method": "lfd"}, "lfd needs a network with a cosine head"),
        ({"method": "keepsake", "files": {"keepsake": HASH}}, "that this device does not have"),
        ({"method": "FILE:Keepsake"}, "is not of the form name or name(key=value, ...)"),
        ({"method": "a\nb\x1b" + "c" * 1900}, r"method 'a\nb\x1bccc"),
        ({"model": network(name="nosuch")}, "network cannot be built: no network 'nosuch'"),
        ({"model": network(shape=(1, 8192, 8192))}, "raise max_model_bytes if that is right"),
        ({"model": network(shape=(1, 1, 1))}, "choose another network or larger images"),
        ({"model": network(name="mlpnet")}, "network mlpnet has layout"),
        ({"layout": HASH}, f"the federation's is {HASH}"),
        ({"encoding": "float8"}, "float8"),
        ({"model": network(labels=tuple("abcdefghij"))}, FOREIGN),
        (foreign(name="fasttext", shape=(8,), vocabulary=10_000), UNFIT),
        (foreign(name="fasttext", shape=(8,), vocabulary=10_000_000), "of memory, this device"),
        (foreign(labels=tuple(map(str, range(100_000)))), "of memory, this device allows"),
        (
            foreign(name="resnet18", shape=(3, 64, 64), mean=(0.5,) * 3, std=(0.5,) * 3),
            UNFIT,
        ),
        ({"model": network(mean=(0.5, 0.5))}, "has 2 values, but its images have 1 channels"),
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
    status = Status("ab" * 16, True, device="box", activity="unable", problem=unable.reason)
    assert decode(encode(status), Status) == status


class StartedTrainer:
    """Notes what the runner's start asks of a trainer."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self.asked.append(name)


CUDA = {"hardware": HardwareConfig(device="cuda")}


@pytest.mark.parametrize(
    ("fields", "resting", "asked"),
    [
        ({}, False, ["start"]),
        ({}, True, []),
        (CUDA, False, ["start", "load_methods"]),
        (CUDA, True, ["start", "load_methods", "stop"]),
        ({"methods": ("own.py:Own",)}, True, ["start", "load_methods", "stop"]),
    ],
)
def test_a_box_that_rests_starts_no_trainer_but_for_a_check(
    tmp_path: Path, fields: dict[str, Any], resting: bool, asked: list[str]
) -> None:
    config = AgentConfig(federation="gates", device="box", state=str(tmp_path), **fields)
    trainer: Any = StartedTrainer()
    agent = Agent(config, Surroundings(trainer=lambda *_: trainer))
    agent.runner.start(resting)
    assert trainer.asked == asked


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


def test_a_device_with_unreadable_images_takes_part_and_says_how_many(tmp_path: Path) -> None:
    for number in range(4):
        place = tmp_path / "images" / "Bag" / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (28, 28), number).save(place)
    place.write_bytes(b"a broken file")
    data = DataConfig(source="folder", root=str(tmp_path / "images"))
    config = AgentConfig(federation="gates", device="box", state=str(tmp_path / "s"), data=data)
    agent = Agent(config, HERE)
    agent.runner.start()
    assert agent.runner.flaw == ""
    agent.worker._prepare(STATE)
    assert isinstance(agent.loop.inbox.get_nowait(), Prepared)
    assert agent.runner.flaw == (
        "files of the device's data that cannot be read: 1; its own log names them"
    )


def test_what_is_wrong_with_the_data_is_for_the_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A state with other labels must not have the device say which ones it has."""
    unable = answer(tmp_path, model=network(labels=tuple("abcdefghij")))
    assert (unable.reason, unable.cause) == (FOREIGN, Cause.DATA)
    assert "no label 'T-shirt/top'" in caplog.text


class Device:
    """A device that is ready, with the federation's first model at hand."""

    def __init__(
        self,
        folder: Path,
        around: Surroundings = HERE,
        allowed: tuple[str, ...] = (),
        hardware: HardwareConfig = ONE_THREAD,
        **announced: Any,
    ) -> None:
        config = AgentConfig(
            federation="gates",
            device="box",
            state=str(folder),
            data=FEW,
            methods=allowed,
            hardware=hardware,
        )
        self.agent = Agent(config, around)
        self.runner, self.store = self.agent.runner, self.agent.store
        self.store.open()
        self.runner.start()
        self.net = FlatModel(build_for(MODEL, 1))
        version = f"000000-{self.net.sha256()[:16]}"
        self.data = tensors.encode(self.net.layout, {"model": as_numpy(self.net.vector)})
        manifest = chunks.manifest(self.data)
        facts = {"version": version, "manifest": manifest, **announced}
        self.state = msgspec.structs.replace(STATE, **facts)
        self.agent.worker._prepare(self.state)
        assert isinstance(self.answer(), Prepared)

    def answer(self) -> Any:
        return self.agent.loop.inbox.get_nowait()

    def receive(self, data: bytes, version: str) -> None:
        manifest = chunks.manifest(data)
        self.store.expect(version, manifest)
        self.store.keep(version, 0, data)
        self.runner.check_model(version, manifest)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Callable[..., Device]]:
    made: list[Device] = []

    def make(**announced: Any) -> Device:
        made.append(Device(tmp_path, **announced))
        return made[-1]

    yield make
    for each in made:
        each.store.close()


def test_a_version_is_the_hash_of_its_numbers_whoever_sent_them(
    device: Callable[..., Device],
) -> None:
    """A forged state could give other numbers the name of a version that is to come back."""
    box = device()
    poison = as_numpy(box.net.vector) * 2
    data = tensors.encode(box.net.layout, {"model": poison})
    with pytest.raises(WireError, match=f"not those of version {box.state.version}"):
        box.receive(data, box.state.version)
    assert box.store.index.held == ""
    box.receive(box.data, box.state.version)
    assert box.store.index.held == box.state.version


def test_a_training_stops_between_two_steps_and_leaves_nothing(
    device: Callable[..., Device],
) -> None:
    """However many epochs a state asked for."""
    box = device(training=Training(10_000, 8, 0.01, 0.0, 0.0))
    box.receive(box.data, box.state.version)
    before = sorted(path.name for path in box.store.folder.iterdir())
    worker = threading.Thread(target=box.agent.worker._train, args=(box.state,))
    worker.start()
    time.sleep(0.2)
    assert worker.is_alive()
    box.agent.worker.abandon()
    worker.join(30)
    assert box.answer() == Abandoned()
    assert box.store.index.turn is None
    assert sorted(path.name for path in box.store.folder.iterdir()) == before


@pytest.mark.parametrize(
    ("training", "outcome"),
    [(Training(1, 8, 1e6, 0.99, 1e6), TurnFailed), (Training(1, 8, 0.01, 0.0, 0.0), Trained)],
)
def test_a_training_that_comes_to_nothing_ends_nothing(
    device: Callable[..., Device], training: Training, outcome: type
) -> None:
    box = device(training=training)
    box.receive(box.data, box.state.version)
    box.agent.worker._train(box.state)
    assert isinstance(box.answer(), outcome)


def test_what_nobody_foresaw_in_a_preparation_is_a_sentence_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr("fededge_agent.trainer.turns.build_for", fail)
    unable = answer(tmp_path)
    assert isinstance(unable, Unable)
    assert unable.reason == "the preparation failed: RuntimeError: not enough memory"
    assert "Traceback" in caplog.text
