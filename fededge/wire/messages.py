"""Every JSON message, as a schema: what is not in it does not pass, in either direction."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from fededge.errors import WireError
from fededge.spec import ModelSpec

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
]

MOST_BYTES = 4 * 1024 * 1024
"""A state message names every label; everything else is far smaller."""

MOST_ASKED = 1000
"""Missing chunks that one reply may name."""

# `\Z`, not `$`: that one also matches before a newline at the end.
Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Version = Annotated[str, Meta(pattern=r"^[0-9]{6}-[0-9a-f]{16}\Z")]
DeviceId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")]
Text = Annotated[str, Meta(max_length=2000)]
Line = Annotated[str, Meta(max_length=2000, pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z")]
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
    """

    federation: DeviceId
    run: Text
    seed: Count
    round: Count
    rounds: Count
    phase: Literal["waiting", "open", "done"]
    version: Version
    sha256: Hash
    layout: Hash
    method: Text
    training: Training
    model: ModelSpec
    manifest: Manifest
    deadline: float
    devices: tuple[DeviceId, ...] = ()
    accuracy: float | None = None
    files: Annotated[dict[MethodName, Hash], Meta(max_length=64)] = {}
    encoding: Text = "float32"
    turns: Annotated[int, Meta(ge=1, le=2**53)] = 1
    rollout: Rollout | None = None
    problem: Line = ""
    quarantined: tuple[DeviceId, ...] = ()
    issued: Count = 0
    signature: Annotated[str, Meta(pattern=r"^([0-9a-f]{128})?\Z")] = ""


class Presence(Message, frozen=True):
    """Who holds a name: retained, with a last will of `online: false`.

    `answers` repeats the instance of a claim that this presence answers.
    """

    instance: Text
    online: bool
    answers: Text = ""


class Status(Presence, frozen=True):
    """A device's retained word about itself.

    `model_round` is the round that its app's model was trained in, -1 without one. `model_state`
    is what became of the newest model, within rollout number `rollout` if that is not 0.
    """

    device: DeviceId = ""
    activity: Literal[
        "offline", "starting", "unable", "ready", "fetching", "training", "failed"
    ] = "offline"
    layout: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    examples: Count = 0
    software: Text = ""
    problem: Line = ""
    model_round: Annotated[int, Meta(ge=-1, le=2**53)] = -1
    model_state: Literal[
        "none", "idle", "promoted", "held", "rejected", "rolled-back", "bad", "pinned"
    ] = "none"
    rollout: Count = 0


class Claim(Message, frozen=True):
    """A starting process asks whether its name is taken."""

    instance: Text


class TaskMessage(Message, frozen=True):
    """The coordinator invites a device to train from this version."""

    device: DeviceId
    round: Count
    version: Version


class Report(Message, frozen=True):
    """A device has an update: the scalars of its turn, and how to check the chunks."""

    device: DeviceId
    run: Text
    round: Count
    version: Version
    layout: Hash
    manifest: Manifest
    scalars: Annotated[dict[ScalarName, float], Meta(max_length=64)]


class Reply(Message, frozen=True):
    """The coordinator's answer to a report or a status."""

    kind: Literal["accepted", "resend", "late", "refused"]
    version: Annotated[str, Meta(pattern=r"^([0-9]{6}-[0-9a-f]{16})?\Z")] = ""
    reason: Text = ""
    chunks: Annotated[tuple[Count, ...], Meta(max_length=MOST_ASKED)] = ()
    fatal: bool = False


M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    return msgspec.json.encode(message)


def decode(data: bytes, kind: type[M]) -> M:
    """Read a message of this kind, or say in one sentence why it is none."""
    if len(data) > MOST_BYTES:
        raise WireError(f"a {kind.__name__} of {len(data)} bytes is over the limit of {MOST_BYTES}")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(f"not a {kind.__name__}: {str(error)[:300]}") from None
