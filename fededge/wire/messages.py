"""Schemas of all JSON messages; fields outside the schema are refused in both directions."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from fededge._internal.plain_text import LINE, MAX_TEXT, SCALAR_NAME
from fededge.errors import WireError
from fededge.model_spec import ModelSpec
from fededge.wire.topics import NAME_PATTERN, VERSION_PATTERN

__all__ = [
    "MAX_OTHER_BYTES",
    "MAX_RESEND",
    "UNKNOWN_FIELD",
    "BatchSize",
    "ChunkBytes",
    "Claim",
    "Epochs",
    "LearningRate",
    "Lease",
    "Manifest",
    "Momentum",
    "NonNegative",
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

MAX_STATE_BYTES = 4 * 1024 * 1024
"""Largest state: it names every label."""

MAX_OTHER_BYTES = 64 * 1024
"""Largest other message: decoding a device's message must be quick."""

MAX_RESEND = 1000
"""Missing chunks that one reply may name."""

NEVER = object()
"""Equal to no value."""

UNKNOWN_FIELD = "unknown field"
NEWER = "; its sender may run a newer version of FedEdge: upgrade FedEdge here"

# `\Z`, because `$` also matches before a trailing newline.
HASH, INSTANCE = "[0-9a-f]{64}", "[0-9a-f]{32}"
Hash = Annotated[str, Meta(pattern=rf"^{HASH}\Z")]
OptionalHash = Annotated[str, Meta(pattern=rf"^({HASH})?\Z")]
Version = Annotated[str, Meta(pattern=rf"^{VERSION_PATTERN}\Z")]
OptionalVersion = Annotated[str, Meta(pattern=rf"^({VERSION_PATTERN})?\Z")]
DeviceId = Annotated[str, Meta(pattern=rf"^{NAME_PATTERN}\Z")]
OptionalDeviceId = Annotated[str, Meta(pattern=rf"^({NAME_PATTERN})?\Z")]
Instance = Annotated[str, Meta(pattern=rf"^{INSTANCE}\Z")]
OptionalInstance = Annotated[str, Meta(pattern=rf"^({INSTANCE})?\Z")]
Signature = Annotated[str, Meta(pattern=r"^([0-9a-f]{128})?\Z")]
Run = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z")]
Line = Annotated[str, Meta(max_length=MAX_TEXT, pattern=LINE)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Chunks = Annotated[int, Meta(ge=1, le=1_000_000)]
MethodName = Annotated[str, Meta(pattern=r"^[\w-]{1,64}\Z")]
ScalarName = Annotated[str, Meta(pattern=rf"^{SCALAR_NAME}\Z")]
ChunkBytes = Annotated[int, Meta(ge=1024, le=16 * 1024 * 1024)]
Lease = Annotated[float, Meta(ge=5, le=1e6)]
Epochs = Annotated[int, Meta(ge=1, le=10_000)]
BatchSize = Annotated[int, Meta(ge=1, le=1_000_000)]
LearningRate = Annotated[float, Meta(gt=0, le=1e6)]
Momentum = Annotated[float, Meta(ge=0, lt=1)]
NonNegative = Annotated[float, Meta(ge=0, le=1e6)]


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all messages: immutable, and refuses fields outside the schema."""


class Manifest(Message, frozen=True):
    """Number of chunks, size and SHA-256 of a transfer, by which the receiver checks it."""

    chunks: Chunks
    chunk_bytes: ChunkBytes
    bytes: Count
    sha256: Hash


class Training(Message, frozen=True):
    """The training hyper-parameters (`Hyper`) on the wire."""

    epochs: Epochs
    batch_size: BatchSize
    lr: LearningRate
    momentum: Momentum
    weight_decay: NonNegative
    clip_norm: NonNegative = 0.0


class Rollout(Message, frozen=True):
    """The personal models that devices may use, by the round that they were trained in.

    All devices may use models from rounds before `released`. Devices whose place is below `cut` may
    also use models from rounds `after` <= r < `until`. `number` counts the rollouts of a run.
    """

    number: Count
    released: Count
    after: Count
    until: Count
    cut: Annotated[float, Meta(ge=0, le=1)]


class State(Message, frozen=True):
    """The coordinator's retained state: the progress of the federation and what it trains.

    `deadline` counts seconds from publication, because only the coordinator's clock decides; of a
    run that rests, until the rest ends, or 0 if only new examples end it; `resting` says why. A
    device without a sign of life for `lease` seconds is absent. `restored` names the version whose
    model this one repeats, after a rollback or with new settings. The method's own state began anew
    when `renewed` rounds were done. Other devices appear only as counts.
    """

    federation: DeviceId
    run: Run
    seed: Count
    round: Count
    rounds: Count
    phase: Literal["waiting", "resting", "open", "done"]
    version: Version
    sha256: Hash
    layout: Hash
    method: Line
    training: Training
    model: ModelSpec
    manifest: Manifest
    deadline: float
    lease: Lease = 90.0
    asked: Count = 0
    accuracy: float | None = None
    files: Annotated[dict[MethodName, Hash], Meta(max_length=64)] = {}
    encoding: Annotated[str, Meta(pattern=r"^[a-z0-9+]{1,64}\Z")] = "float32"
    turns: Annotated[int, Meta(ge=1, le=2**53)] = 1
    rollout: Rollout | None = None
    problem: Line = ""
    quarantined: Count = 0
    restored: OptionalVersion = ""
    resting: Line = ""
    renewed: Count = 0
    issued: Count = 0
    signature: Signature = ""


class Presence(Message, frozen=True):
    """The coordinator's presence: retained, with a last will of `online: false`.

    `answers` repeats the nonce of a claim that this presence answers.
    """

    instance: Instance
    online: bool
    federation: DeviceId
    answers: OptionalInstance = ""
    signature: Signature = ""


class Status(Message, frozen=True):
    """A device's retained status: its presence and its activity.

    `model_round` is the round in which the app's model was trained, -1 without one. `model_state`
    is the outcome of the newest model, in rollout number `rollout` if that is not 0. While it is
    training, `step` of `steps` are done, if that is known.
    """

    instance: Instance
    online: bool
    answers: OptionalInstance = ""
    device: DeviceId = ""
    activity: Literal[
        "offline", "starting", "unable", "resting", "ready", "fetching", "training", "failed"
    ] = "offline"
    layout: OptionalHash = ""
    examples: Count = 0
    software: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.+-]{0,64}\Z")] = ""
    problem: Line = ""
    model_round: Annotated[int, Meta(ge=-1, le=2**53)] = -1
    model_state: Literal[
        "none", "idle", "promoted", "held", "rejected", "rolled-back", "bad", "pinned"
    ] = "none"
    rollout: Count = 0
    step: Count = 0
    steps: Count = 0


class Claim(Message, frozen=True):
    """A process asks whether its name is in use; the holder answers with the nonce."""

    nonce: Instance


class TaskMessage(Message, frozen=True):
    """The coordinator invites a device to train from this version."""

    device: DeviceId
    run: Run
    version: Version
    signature: Signature = ""


class Report(Message, frozen=True):
    """A device announces an update: the scalars of its turn and the manifest of the chunks."""

    device: DeviceId
    run: Run
    version: Version
    layout: Hash
    manifest: Manifest
    scalars: Annotated[dict[ScalarName, float], Meta(max_length=64)]


class Reply(Message, frozen=True):
    """The coordinator's answer to a report.

    The rounds decide its content; the shell adds the device, the run and the signature.
    """

    kind: Literal["accepted", "resend", "late", "refused"]
    version: Version
    reason: Line = ""
    chunks: Annotated[tuple[Count, ...], Meta(max_length=MAX_RESEND)] = ()
    device: OptionalDeviceId = ""
    run: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{0,64}\Z")] = ""
    signature: Signature = ""


M = TypeVar("M", bound=Message)


def round_of(version: str) -> int:
    """The round that starts from a version, which is the number of rounds before it."""
    return int(version[:6])


LATER: dict[type[Message], dict[str, object]] = {
    State: {"resting": "", "renewed": 0},
    Status: {"step": 0, "steps": 0},
}
"""Fields that version 0.1.0 does not know, with their defaults.

It refuses a message that has one, so a field is left out while it has its default.
"""


def encode(message: Message) -> bytes:
    later = LATER.get(type(message))
    if later is None:
        return msgspec.json.encode(message)
    values = ((name, getattr(message, name)) for name in message.__struct_fields__)
    return msgspec.json.encode({n: value for n, value in values if later.get(n, NEVER) != value})


def decode(data: bytes, kind: type[M]) -> M:
    """Decode a message of this kind; WireError if it is not valid."""
    most = MAX_STATE_BYTES if kind is State else MAX_OTHER_BYTES
    if len(data) > most:
        raise WireError(f"a {kind.__name__} of {len(data)} bytes is over the limit of {most}")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        newer = NEWER if UNKNOWN_FIELD in str(error) else ""
        raise WireError(f"not a {kind.__name__}: {_shortened(str(error))}{newer}") from None


def _shortened(text: str) -> str:
    """msgspec's error text without the long pattern that it quotes."""
    return re.sub("matching regex '.*'", "of the allowed characters", text)[:300]
