"""All bytes that leave an agent, taken from its TCP connection, for each of the five methods.

Present on the device: its images and labels, a label histogram, and what the method keeps (a weak
learner, an inherited model, ALA's weights). Nothing but the contract's fields may be on the wire.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.numpy

from fededge import methods
from fededge.broker.local import Broker
from fededge.config import DataConfig, ModelConfig
from fededge.data.local import device_examples, model_spec
from fededge.flat import Layout
from fededge.models import build_for
from fededge.wire import reports, tensors
from fededge.wire.chunks import Assembly
from fededge.wire.messages import Claim, Message, Report, Status, decode
from fededge.wire.topics import Topics
from tests.recording import CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, Packet, Recorder, packets

if TYPE_CHECKING:
    from tests.integration.conftest import Federation

pytestmark = pytest.mark.slow

# Each method's private tensors, which no update may contain.
KEPT = {
    "fedacd": (),
    "fedala": ("fedala.W",),
    "fedbalance": ("fedbalance.psi",),
    "map": ("map.hpm",),
    "lfd": (),
}
ROUNDS = 3
WINDOW = 4
"""So many numbers in a row are no coincidence."""


def windows(vector: np.ndarray[Any, Any]) -> set[bytes]:
    """Every few neighbours of a vector as bytes, but not those that are all alike: a row of zeros
    is in any file.
    """
    flat = np.ascontiguousarray(vector).reshape(-1)
    found = {flat[i : i + WINDOW].tobytes() for i in range(len(flat) - WINDOW + 1)}
    size = flat.itemsize
    return {w for w in found if w.strip(b"\0") and w[:size] * WINDOW != w}


def shows(stream: bytes, vector: np.ndarray[Any, Any]) -> bool:
    """Return True if any piece of the vector appears in the stream."""
    secret = windows(vector)
    size = WINDOW * vector.itemsize
    return any(stream[i : i + size] in secret for i in range(len(stream) - size + 1))


def test_the_search_would_find_a_leak() -> None:
    rng = np.random.default_rng(0)
    secret = rng.standard_normal(1000).astype(np.float32)
    noise = rng.bytes(100_000)
    assert not shows(noise, secret)
    assert shows(noise[:777] + secret[40:50].tobytes() + noise[777:], secret)


class Capture:
    """The messages that one agent sent, parsed by the protocol."""

    def __init__(self, recorder: Recorder, federation: str) -> None:
        self.bytes = recorder.everything
        self.packets = [p for stream in recorder.streams for p in packets(bytes(stream))]
        self.topics = Topics(federation)
        self.said: dict[str, list[Message]] = {"status": [], "claim": [], "report": []}
        self.chunks: dict[str, list[bytes]] = {}
        for packet in self.packets:
            if packet.kind in (CONNECT, PUBLISH) and packet.topics:
                self._sort(packet)

    def _sort(self, packet: Packet) -> None:
        """A message that is none of the schema is a WireError, and fails the test."""
        address = self.topics.parse(packet.topics[0])
        assert address.device == "box"
        if address.kind == "update":
            self.chunks.setdefault(address.version, []).append(packet.payload)
        elif address.kind == "report":
            report, chunk = reports.split(packet.payload)
            self.said["report"].append(report)
            self.chunks.setdefault(report.version, []).extend([bytes(chunk)] if chunk else [])
        else:
            kinds: dict[str, type[Message]] = {"status": Status, "claim": Claim}
            self.said[address.kind].append(decode(packet.payload, kinds[address.kind]))

    @property
    def filters(self) -> set[str]:
        asked = (p for p in self.packets if p.kind in (SUBSCRIBE, UNSUBSCRIBE))
        return {topic for packet in asked for topic in packet.topics}

    def updates(self) -> dict[str, bytes]:
        """By version, what the chunks make together."""
        reports = {r.version: r for r in self.said["report"] if isinstance(r, Report)}
        assert reports.keys() == self.chunks.keys()
        found: dict[str, bytes] = {}
        for version, report in reports.items():
            whole, assembly = bytearray(report.manifest.bytes), Assembly(report.manifest, 0.0)
            for message in self.chunks[version]:
                piece = assembly.take(message, 0.0)
                if piece is not None:
                    whole[piece[0] : piece[0] + len(piece[1])] = piece[1]
            assert assembly.complete
            found[version] = bytes(whole)
        return found


def private_tensors(state: Path) -> dict[str, np.ndarray[Any, Any]]:
    found: dict[str, np.ndarray[Any, Any]] = {}
    for path in [*(state / "private").glob("*.private"), *(state / "private").glob("*.accepted")]:
        found |= safetensors.numpy.load(path.read_bytes())
    return {name: value for name, value in found.items() if value.ndim}


@pytest.mark.parametrize("name", KEPT)
def test_nothing_but_the_contract_leaves_a_device(
    federation: Federation, broker: Broker, name: str
) -> None:
    model = ModelConfig(head="cosine" if name == "lfd" else "linear")
    coordinator = federation.coordinator(
        method=name, model={"head": model.head}, rounds={"count": ROUNDS, "min_devices": 2}
    )
    federation.agent("other", index=1)
    with Recorder(broker.host, broker.port) as recorder:
        where = federation.broker | {"port": recorder.port}
        agent = federation.agent("box", index=0, broker=where)
        assert federation.ended(coordinator) == 0, coordinator.said(20)
        agent.terminate()
        assert federation.ended(agent) == 0
        capture = Capture(recorder, federation.name)
    data = DataConfig(
        source="npz", root=str(federation.images), split="dirichlet:0.5", devices=2, index=0
    )
    spec = model_spec(model, data)
    layout = Layout.of(build_for(spec, 0))

    assert len(capture.updates()) == ROUNDS
    for payload in capture.updates().values():
        check_update(layout, payload)
    check_messages(capture, name)

    uploads = [tensors.decode(layout, p)["model"] for p in capture.updates().values()]
    assert all(shows(capture.bytes, upload) for upload in uploads)
    kept = private_tensors(federation.state("box"))
    secret = {k: v for k, v in kept.items() if not any(same(v, upload) for upload in uploads)}
    assert set(KEPT[name]) <= set(secret), sorted(kept)
    examples = device_examples(data, spec)
    counts = examples.counts.numpy()
    assert len(set(counts.tolist())) > 3  # skewed: not all alike
    for dtype in ("int64", "int32", "float32", "float64"):
        secret[f"histogram as {dtype}"] = counts.astype(dtype)
    for dtype in ("float32", "float64"):
        secret[f"shares as {dtype}"] = (counts / counts.sum()).astype(dtype)
    secret["labels"] = examples.y.numpy()
    assert [key for key, vector in secret.items() if shows(capture.bytes, vector)] == []
    texts = [json.dumps(counts.tolist()), ",".join(map(str, counts.tolist()))]
    assert not any(text.encode() in capture.bytes for text in texts)
    pixels = examples.x.numpy().reshape(-1)
    assert not any(
        pixels[i : i + 32].tobytes() in capture.bytes
        for i in range(0, len(pixels), 32)
        if len(set(pixels[i : i + 32].tolist())) > 8
    )


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.tobytes() == b.tobytes()


def check_update(layout: Layout, payload: bytes) -> None:
    """The layout's tensors, each once, and no byte beside them."""
    length = int.from_bytes(payload[:8], "little")
    header = json.loads(payload[8 : 8 + length])
    assert set(header) == {entry.name for entry in layout.entries}
    assert all(set(facts) == {"dtype", "shape", "data_offsets"} for facts in header.values())
    assert len(payload) == 8 + length + 4 * layout.size


def check_messages(capture: Capture, method: str) -> None:
    allowed = methods.method(method).scalars
    for report in capture.said["report"]:
        assert isinstance(report, Report)
        assert set(report.scalars) <= allowed
    for status in capture.said["status"]:
        assert isinstance(status, Status)
        assert status.problem == ""
    topics = capture.topics
    own = {topics.device("box", kind) for kind in ("task", "reply", "claim", "status")}
    models = {f for f in capture.filters if f.startswith(f"{topics.root}/model/")}
    public = {topics.state, f"{topics.coordinator}/status"}
    assert capture.filters == own | models | public
    assert len(models) == ROUNDS
