"""Everything that reads bytes from outside, as functions of bytes: each returns, or refuses them.

A refusal is the project's own error for that kind of input. Anything else that is raised is a bug,
and so is a result that does not keep what the reader promises.
"""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

from fededge import methods
from fededge.config import AgentConfig, CoordinatorConfig, load
from fededge.errors import ConfigError, FedEdgeError, MethodError, WireError
from fededge.flat import Layout
from fededge.model_spec import ModelSpec
from fededge.models import Preprocess
from fededge.storage import pieces
from fededge.storage.sealed import read_sealed, sealed
from fededge.wire import chunks, container, reports, tensors
from fededge.wire.chunks import Assembly
from fededge.wire.encoding import Encoding
from fededge.wire.messages import (
    Claim,
    Manifest,
    Message,
    Presence,
    Reply,
    Report,
    State,
    Status,
    TaskMessage,
    Training,
    decode,
    encode,
)
from fededge.wire.signing import signed_by
from fededge.wire.topics import Topics
from fededge_agent.store.index import Index, SavedTurn, StoredFile

__all__ = ["TARGETS", "Target"]


@dataclass(frozen=True)
class Target:
    """A reader, how it may refuse, and inputs that it takes."""

    read: Callable[[bytes], None]
    refusals: tuple[type[FedEdgeError], ...]
    seeds: tuple[bytes, ...]

    def __call__(self, data: bytes) -> bool:
        """Return True if the input is accepted; any other exception than a refusal is a find."""
        try:
            self.read(data)
        except self.refusals as error:
            check_refusal(error)
            return False
        return True


MOST_SAID = 4000


def check_refusal(error: FedEdgeError) -> None:
    """It is for a person, and for a log: short, whatever was refused."""
    assert 0 < len(str(error)) < MOST_SAID, f"a refusal of {len(str(error))} characters"


# Topics

TOPICS = Topics("gates")
VERSION = "000003-9f86d081884c7d65"
TOPIC_SEEDS = (
    TOPICS.state,
    TOPICS.model(VERSION, 0),
    TOPICS.update("gate-7", VERSION, 12),
    *(TOPICS.device("gate-7", kind) for kind in ("status", "claim", "task", "report", "reply")),
    f"{TOPICS.coordinator}/status",
)


def read_topic(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    address = TOPICS.parse(text)
    parts = {"state": TOPICS.state, "model": TOPICS.model(address.version, address.chunk)}
    parts["update"] = TOPICS.update(address.device, address.version, address.chunk)
    if address.kind.startswith("coordinator "):
        parts[address.kind] = f"{TOPICS.coordinator}/{address.kind.split()[1]}"
    assert parts.get(address.kind, TOPICS.device(address.device, address.kind)) == text


# Messages

SIGNATURE = "0a" * 64
STATE = State(
    federation="gates",
    run="run",
    seed=0,
    round=3,
    rounds=10,
    phase="open",
    version=VERSION,
    sha256="9f" * 32,
    layout="60" * 32,
    method="fedprox(mu=0.1)+mixup",
    training=Training(epochs=1, batch_size=32, lr=0.01, momentum=0.9, weight_decay=1e-5),
    model=ModelSpec("lenet", ("truck", "bicycle"), (1, 28, 28), (0.286,), (0.353,)),
    manifest=Manifest(2, 262144, 265432, "fd" * 32),
    deadline=600.0,
    asked=2,
    accuracy=0.71,
    files={"keepsake": "ab" * 32},
    issued=1767225600000,
    signature=SIGNATURE,
)
MESSAGES: tuple[Message, ...] = (
    STATE,
    Presence("5d" * 16, True, "gates", "9e" * 16, SIGNATURE),
    Status("7d" * 16, True, device="gate-7", activity="ready", layout="60" * 32, examples=9),
    Claim("9e" * 16),
    TaskMessage("gate-7", "run", VERSION, SIGNATURE),
    Report("gate-7", "run", VERSION, "60" * 32, STATE.manifest, {"examples": 9.0, "loss": 1e-5}),
    Reply("resend", VERSION, "why", (1, 2, 3), "gate-7", "run", SIGNATURE),
)
KEYS = (Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key(),)


def read_message(data: bytes) -> None:
    """The first byte says which kind; what is read and written again is the same message."""
    kind = type(MESSAGES[data[0] % len(MESSAGES)]) if data else Claim
    message = decode(data[1:], kind)
    assert decode(encode(message), kind) == message
    manifest = getattr(message, "manifest", None)
    if manifest is not None:
        chunks.check_manifest(manifest, 1_000_000)
    if isinstance(message, TaskMessage | Reply | Presence):
        assert not signed_by(message, KEYS)


def read_state(data: bytes) -> None:
    """A field of a good state is replaced: what an agent does with it before it builds anything."""
    fields = State.__struct_fields__
    name = fields[data[0] % len(fields)] if data else "method"
    try:
        value: Any = json.loads(data[1:], parse_constant=str)
    except (ValueError, RecursionError):
        value = data[1:].decode("utf-8", "replace")
    altered = {**msgspec.to_builtins(STATE), "files": {}, name: value}
    try:
        text = json.dumps(altered).encode("utf-8", "replace")
    except RecursionError:
        return
    state = decode(text, State)
    assert not signed_by(state, KEYS)
    stack = methods.announced(state.method, state.files, ())
    # The name that is announced next must lead to the same method.
    assert str(methods.announced(str(stack), state.files, ())) == str(stack)
    Preprocess(state.model)


# Chunks and tensors

PAYLOAD = bytes(range(256)) * 10
FACTS = chunks.manifest(PAYLOAD, 1024)


def read_chunk(data: bytes) -> None:
    """A fuzzer cannot guess a checksum: the first byte says whether it is put right for it."""
    message = bytes(data[1:])
    if data[:1] > b"\x7f" and len(message) >= chunks.HEADER.size:
        message = message[:4] + zlib.crc32(message[8:]).to_bytes(4, "little") + message[8:]
    piece = Assembly(FACTS, 0.0).take(message, 1.0)
    assert piece is not None
    offset, content, _ = piece
    assert offset + len(content) <= len(PAYLOAD)


WHOLE = chunks.manifest(PAYLOAD, 4096)
REPORT = Report("gate-7", "run", VERSION, "60" * 32, WHOLE, {"examples": 9.0})


def read_report(data: bytes) -> None:
    """A report that may carry its update: what is taken is the payload, and nothing else."""
    report, chunk = reports.split(data)
    if not chunk:
        assert decode(encode(report), Report) == report
        return
    assert reports.split(reports.join(report, bytes(chunk))) == (report, chunk)
    data_of = chunks.whole(chunk, report.manifest)
    assert len(data_of) == report.manifest.bytes <= report.manifest.chunk_bytes


LAYOUT = Layout.of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
VECTOR = np.linspace(-1, 1, LAYOUT.size, dtype=np.float32)


def read_tensors(data: bytes) -> None:
    vectors = tensors.decode(LAYOUT, data)
    assert np.isfinite(vectors["model"]).all()
    again = tensors.decode(LAYOUT, tensors.encode(LAYOUT, vectors))
    assert again["model"].tobytes() == vectors["model"].tobytes()


def read_update(data: bytes) -> None:
    """The first byte says which encoding. A fuzzer cannot compress: the second says who does."""
    encoding = Encoding.parse(ENCODINGS[data[0] % len(ENCODINGS)] if data else "float32")
    payload = bytes(data[2:])
    if encoding.zstd and data[1:2] > b"\x7f":
        payload = zstandard.compress(payload)
    model = encoding.unpack(LAYOUT, payload, VECTOR)
    assert model.shape == VECTOR.shape
    assert np.isfinite(model).all()
    if not encoding.zstd:
        part = encoding.unpack_part(LAYOUT, io.BytesIO(payload), SOME, VECTOR[SOME])
        assert np.array_equal(part, model[SOME])


SOME = slice(3, 9)
ENCODINGS = [
    f"{numbers}{more}"
    for more in ("", "+delta", "+zstd", "+delta+zstd")
    for numbers in get_args(tensors.Numbers)
    if numbers != "int8" or "delta" in more
]


def updates() -> tuple[bytes, ...]:
    """An update in each encoding, the compressed ones also before they are compressed."""
    found = []
    for index, text in enumerate(ENCODINGS):
        packed, _ = Encoding.parse(text).pack(LAYOUT, VECTOR + 0.5, VECTOR)
        found.append(bytes([index, 0]) + packed)
        if "zstd" in text:
            found.append(bytes([index, 0xFF]) + zstandard.decompress(packed))
    return tuple(found)


# Readers of files that a crash or a bad disk may have damaged

REPORT = Report("gate-7", "run", VERSION, "60" * 32, FACTS, {"examples": 9.0})
INDEX = Index(
    instance="i",
    held=VERSION,
    run="run",
    private=StoredFile("3.private", "ab" * 32),
    turn=SavedTurn(REPORT, StoredFile("3.update", "ab" * 32), StoredFile("3.accepted", "cd" * 32)),
)


def read_leftover(data: bytes) -> None:
    """The first byte says which file it is; an index gets the checksum that nobody can guess."""
    kind, content = data[0] % 3 if data else 0, bytes(data[1:])
    path = folder() / "left.safetensors"
    if kind == 0:
        path.write_bytes(PAYLOAD)
        path.with_suffix(".coming").write_bytes(content)
        pieces.expected(path, Report)
        assert pieces.arrived(path, FACTS) <= set(range(FACTS.chunks))
    elif kind == 1:
        checksum = hashlib.sha256(content).hexdigest().encode()
        path.write_bytes(b'{"sha256":"' + checksum + b'","content":' + content + b"}")
        read_sealed(path, Index)
    else:
        path.write_bytes(content)
        with path.open("rb") as file:
            container.read(file)


def leftovers() -> tuple[bytes, ...]:
    listed = sealed(REPORT) + b"\n"
    for index in range(FACTS.chunks):
        piece = PAYLOAD[index * 1024 : (index + 1) * 1024]
        listed += pieces.RECORD.pack(index * 1024, len(piece), zlib.crc32(piece))
    kept = io.BytesIO()
    arrays = {"scaffold.c_i": VECTOR, "#turns": np.array([3])}
    container.write(kept, {name: container.from_array(array) for name, array in arrays.items()})
    return b"\0" + listed, b"\1" + msgspec.json.encode(INDEX), b"\2" + kept.getvalue()


# Configuration

AGENT = """\
federation = "gates"
device = "gate-7"
state = "state"
[broker]
host = "broker.example"
port = 1883
[data]
source = "embedded"
split = "dirichlet:0.1"
devices = 4
"""
COORDINATOR = """\
federation = "gates"
state = "state"
method = "fedprox(mu=0.1)+mixup"
[training]
lr = 0.1
[rounds]
count = 3
min_devices = 2
participants = 2
[model]
name = "lenet"
"""


@cache
def folder() -> Path:
    """An empty folder: paths in a configuration are relative to it."""
    return Path(tempfile.mkdtemp(prefix="fededge-fuzz-"))


def read_config(data: bytes) -> None:
    path = folder() / "config.toml"
    path.write_bytes(data[1:])
    path.chmod(0o600)
    kind = AgentConfig if data[:1] < b"\x80" else CoordinatorConfig
    config = load(path, kind, {})
    assert Path(config.state).is_absolute()


def mine(*seeds: bytes | str) -> tuple[bytes, ...]:
    return tuple(seed.encode() if isinstance(seed, str) else seed for seed in seeds)


# A reader that is added gets its line here, and its seeds a folder in corpus/.
TARGETS = {
    "topics": Target(read_topic, (WireError,), mine(*TOPIC_SEEDS)),
    "messages": Target(
        read_message,
        (WireError,),
        tuple(bytes([i]) + encode(message) for i, message in enumerate(MESSAGES)),
    ),
    "state": Target(
        read_state,
        (WireError, MethodError, ConfigError),
        tuple(
            bytes([i]) + json.dumps(value).encode()
            for i, value in enumerate(msgspec.to_builtins(STATE).values())
        ),
    ),
    "chunks": Target(
        read_chunk,
        (WireError,),
        tuple(b"\0" + chunks.pack(PAYLOAD, FACTS, i) for i in range(3)),
    ),
    "reports": Target(
        read_report,
        (WireError,),
        (encode(REPORT), reports.join(REPORT, chunks.pack(PAYLOAD, WHOLE, 0))),
    ),
    "tensors": Target(
        read_tensors,
        (WireError,),
        (tensors.encode(LAYOUT, {"model": VECTOR}),),
    ),
    "updates": Target(read_update, (WireError,), updates()),
    "leftovers": Target(read_leftover, (WireError,), leftovers()),
    "config": Target(
        read_config, (ConfigError,), mine("\0" + AGENT, b"\xff" + COORDINATOR.encode())
    ),
}
