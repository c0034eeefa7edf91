"""Every JSON message, as a schema: what is not in it does not pass, in either direction."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from fededge._internal.plain_text import LINE, MOST
from fededge.errors import WireError
from fededge.model_spec import ModelSpec

__all__ = [
    "MOST_ASKED",
    "Claim",
    "Manifest",
    "Presence",
    "Reply",
    "Report",
    "Rollout",
    "State",
    "Status",
    "TaskMessage",
    "decode",
    "encode",
    "round_of",
]

MOST_BYTES = 4 * 1024 * 1024
"""A state names every label, …"""

MOST_OTHERS = 64 * 1024
"""… and all other messages are far smaller: what a device says must not take long to read."""

MOST_ASKED = 1000
"""Missing chunks that one reply may name."""

# `\Z`, not `$`: that one also matches before a newline at the end.
Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Version = Annotated[str, Meta(pattern=r"^[0-9]{6}-[0-9a-f]{16}\Z")]
DeviceId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")]
Instance = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Answers = Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")]
Signature = Annotated[str, Meta(pattern=r"^([0-9a-f]{128})?\Z")]
Run = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z")]
Line = Annotated[str, Meta(max_length=MOST, pattern=LINE)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Chunks = Annotated[int, Meta(ge=1, le=1_000_000)]
MethodName = Annotated[str, Meta(pattern=r"^[\w-]{1,64}\Z")]
ScalarName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,39}\Z")]


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all messages: immutable, and closed to fields that the schema does not name."""


class Manifest(Message, frozen=True):
    """How to check a transfer: its chunks, its bytes and their SHA-256."""

    chunks: Chunks
    chunk_bytes: Annotated[int, Meta(ge=1024, le=16 * 1024 * 1024)]
    bytes: Count
    sha256: Hash


class Training(Message, frozen=True):
    """`Hyper` on the wire."""

    epochs: Annotated[int, Meta(ge=1, le=10_000)]
    batch_size: Annotated[int, Meta(ge=1, le=1_000_000)]
    lr: Annotated[float, Meta(gt=0, le=1e6)]
    momentum: Annotated[float, Meta(ge=0, lt=1)]
    weight_decay: Annotated[float, Meta(ge=0, le=1e6)]
    clip_norm: Annotated[float, Meta(ge=0, le=1e6)] = 0.0


class Rollout(Message, frozen=True):
    """Which personal models devices may use, by the round that they were trained in.

    Those of rounds before `released` are for all; those of rounds from `after` to before `until`
    for the devices whose place is below `cut`. `number` counts the rollouts of a run.
    """

    number: Count
    released: Count
    after: Count
    until: Count
    cut: Annotated[float, Meta(ge=0, le=1)]


class State(Message, frozen=True):
    """The coordinator's retained word: where the federation stands and what it trains.

    `deadline` is seconds from its publication, not a clock time: the coordinator's clock decides.
    A device that gives no sign of life for `lease` seconds is gone. `restored` names the version
    whose model this one repeats, if the run went back. Other devices are told as numbers only.
    """

    federation: DeviceId
    run: Run
    seed: Count
    round: Count
    rounds: Count
    phase: Literal["waiting", "open", "done"]
    version: Version
    sha256: Hash
    layout: Hash
    method: Line
    training: Training
    model: ModelSpec
    manifest: Manifest
    deadline: float
    lease: Annotated[float, Meta(ge=5, le=1e6)] = 90.0
    asked: Count = 0
    accuracy: float | None = None
    files: Annotated[dict[MethodName, Hash], Meta(max_length=64)] = {}
    encoding: Annotated[str, Meta(pattern=r"^[a-z0-9+]{1,64}\Z")] = "float32"
    turns: Annotated[int, Meta(ge=1, le=2**53)] = 1
    rollout: Rollout | None = None
    problem: Line = ""
    quarantined: Count = 0
    restored: Annotated[str, Meta(pattern=r"^([0-9]{6}-[0-9a-f]{16})?\Z")] = ""
    issued: Count = 0
    signature: Signature = ""


class Presence(Message, frozen=True):
    """Who holds the coordinator's name: retained, with a last will of `online: false`.

    `answers` repeats the nonce of a claim that this presence answers.
    """

    instance: Instance
    online: bool
    federation: DeviceId
    answers: Answers = ""
    signature: Signature = ""


class Status(Message, frozen=True):
    """A device's retained word about itself: that it holds its name, and what it does.

    `model_round` is the round that its app's model was trained in, -1 without one. `model_state`
    is what became of the newest model, within rollout number `rollout` if that is not 0.
    """

    instance: Instance
    online: bool
    answers: Answers = ""
    device: DeviceId = ""
    activity: Literal[
        "offline", "starting", "unable", "ready", "fetching", "training", "failed"
    ] = "offline"
    layout: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    examples: Count = 0
    software: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.+-]{0,64}\Z")] = ""
    problem: Line = ""
    model_round: Annotated[int, Meta(ge=-1, le=2**53)] = -1
    model_state: Literal[
        "none", "idle", "promoted", "held", "rejected", "rolled-back", "bad", "pinned"
    ] = "none"
    rollout: Count = 0


class Claim(Message, frozen=True):
    """A process asks whether its name is taken: who holds it repeats the nonce."""

    nonce: Instance


class TaskMessage(Message, frozen=True):
    """The coordinator invites a device to train from this version."""

    device: DeviceId
    run: Run
    version: Version
    signature: Signature = ""


class Report(Message, frozen=True):
    """A device has an update: the scalars of its turn, and how to check the chunks."""

    device: DeviceId
    run: Run
    version: Version
    layout: Hash
    manifest: Manifest
    scalars: Annotated[dict[ScalarName, float], Meta(max_length=64)]


class Reply(Message, frozen=True):
    """The coordinator's answer to a report.

    The rounds decide what it says; the shell adds whom it answers, and the signature.
    """

    kind: Literal["accepted", "resend", "late", "refused"]
    version: Version
    reason: Line = ""
    chunks: Annotated[tuple[Count, ...], Meta(max_length=MOST_ASKED)] = ()
    device: Annotated[str, Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?\Z")] = ""
    run: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{0,64}\Z")] = ""
    signature: Signature = ""


M = TypeVar("M", bound=Message)


def round_of(version: str) -> int:
    """The round that begins from a version: the number of rounds that led to it."""
    return int(version[:6])


def encode(message: Message) -> bytes:
    return msgspec.json.encode(message)


def decode(data: bytes, kind: type[M]) -> M:
    """Read a message of this kind, or say in one sentence why it is none."""
    most = MOST_BYTES if kind is State else MOST_OTHERS
    if len(data) > most:
        raise WireError(f"a {kind.__name__} of {len(data)} bytes is over the limit of {most}")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(f"not a {kind.__name__}: {_shortened(str(error))}") from None


def _shortened(text: str) -> str:
    """msgspec's sentence, without the long pattern that it names before the field."""
    return re.sub("matching regex '.*'", "of the allowed characters", text)[:300]
