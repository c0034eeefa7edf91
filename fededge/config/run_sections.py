"""Sections about the run: model, training, rounds, defences, transfer, rollout."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from msgspec import Meta

from fededge.config.base import Section, described
from fededge.federated.selection import expected_turns
from fededge.wire.messages import (
    BatchSize,
    ChunkBytes,
    Epochs,
    LearningRate,
    Lease,
    Momentum,
    NonNegative,
)

__all__ = [
    "ModelConfig",
    "RobustConfig",
    "RolloutConfig",
    "RoundsConfig",
    "TrainingConfig",
    "TransferConfig",
]


ENDLESS_TURNS = 1000
"""Rounds over which a method paces itself in a run without an end."""


class ModelConfig(Section, frozen=True):
    """The network, its inputs and its labels; values left out are taken from the data."""

    name: Annotated[
        str,
        described("lenet, cnn4, resnet20, vgg8, …; 'your/net.py:make'; 'torchvision:NAME'"),
    ] = "lenet"
    head: Annotated[str, described("its last layer: linear, bias-free, cosine or cosine:TAU")] = (
        "linear"
    )
    labels: Annotated[tuple[str, ...], described("the classes, in order")] = ()
    shape: Annotated[
        tuple[int, ...], described("channels, height, width; or tokens of a text")
    ] = ()
    mean: Annotated[tuple[float, ...], described("of each channel, for pixels from 0 to 1")] = ()
    std: Annotated[tuple[float, ...], described("of each channel, for pixels from 0 to 1")] = ()
    vocabulary: Annotated[int, described("for texts: number of tokens; 0: images", ge=0)] = 0
    weights: Annotated[
        str,
        described("coordinator only: safetensors file that a new run begins with; empty: drawn"),
    ] = ""


class TrainingConfig(Section, frozen=True):
    """The local training on each device."""

    epochs: Annotated[Epochs, described("passes over the device's data per round")] = 1
    batch_size: Annotated[BatchSize, described("examples per step")] = 32
    lr: Annotated[LearningRate, described("learning rate")] = 0.01
    momentum: Annotated[Momentum, described("of SGD")] = 0.9
    weight_decay: Annotated[NonNegative, described("of SGD")] = 1e-5
    clip_norm: Annotated[NonNegative, described("gradients are clipped to this norm; 0: never")] = (
        0.0
    )


class RoundsConfig(Section, frozen=True):
    """Rounds: start, selection, end, stragglers and failures."""

    count: Annotated[int, described("rounds to run; 0: without end", ge=0, le=999_999)] = 10
    mode: Annotated[
        Literal["synchronous", "buffered"],
        described(
            "buffered (FedBuff): a new version after every `buffer` updates, from any device"
        ),
    ] = "synchronous"
    buffer: Annotated[int, described("if buffered: updates per version", ge=1)] = 10
    participants: Annotated[
        int, described("updates that a round aims for; 0: from all devices present", ge=0)
    ] = 0
    share: Annotated[
        float, described("instead of participants: this share of the devices present", ge=0, le=1)
    ] = 0.0
    selection: Annotated[
        Literal["random", "round-robin", "recency"],
        described("of devices: a seeded draw, in turn by id, or the longest not heard from first"),
    ] = "random"
    min_devices: Annotated[
        int, described("a round starts when this many devices are present", ge=1)
    ] = 2
    min_examples: Annotated[
        int, described("devices with fewer examples are not selected", ge=0)
    ] = 0
    over_select: Annotated[
        float, described("select this many times `participants`, against stragglers", ge=1, le=10)
    ] = 1.0
    quorum: Annotated[int, described("fewest updates that end a round at its deadline", ge=1)] = 1
    deadline: Annotated[float, described("seconds until a round's deadline", gt=0, le=1e7)] = 600.0
    slack: Annotated[
        float,
        described(
            "stragglers get this many times the time of the first two thirds; 0: no cutoff", ge=0
        ),
    ] = 5.0
    lease: Annotated[
        Lease, described("seconds without a sign of life after which a device is absent")
    ] = 90.0
    grace: Annotated[
        float, described("extra seconds at the deadline for updates in transfer", ge=0, le=1e6)
    ] = 0.0
    late: Annotated[
        Literal["refuse", "fold"],
        described("an update after its round: refuse it, or fold it into the next round"),
    ] = "refuse"
    max_staleness: Annotated[
        int, described("oldest update that is folded, in rounds", ge=1, le=1000)
    ] = 5
    staleness_power: Annotated[
        float, described("p: an update s rounds old has weight (1 + s) ** -p", ge=0, le=10)
    ] = 0.5
    retries: Annotated[int, described("retries of a device that fails", ge=0)] = 2
    backoff: Annotated[
        float, described("seconds before the first retry, doubled each time", ge=0, le=1e6)
    ] = 30.0
    interval: Annotated[
        float, described("seconds between a version and the next round", ge=0, le=1e7)
    ] = 0.0
    hours: Annotated[
        tuple[str, ...],
        described("rounds begin only then, local time: '22:00-06:00', 'Sat,Sun 00:00-24:00'"),
    ] = ()
    new_data: Annotated[
        int, described("a round begins when so many devices have new examples; 0: at once", ge=0)
    ] = 0
    rest_after: Annotated[
        int,
        described(
            "versions without a gain, then rest until there are new examples; 0: never", ge=0
        ),
    ] = 0
    rest_gain: Annotated[
        float, described("points of accuracy above the best that are a gain", ge=0, le=100)
    ] = 0.1
    quarantine_after: Annotated[
        int, described("refused updates in a row that quarantine a device; 0: never", ge=0)
    ] = 3
    quarantine_seconds: Annotated[float, described("length of a quarantine", ge=0, le=1e9)] = 3600.0

    @property
    def folds(self) -> bool:
        """True if updates from earlier rounds are accepted."""
        return self.mode == "buffered" or self.late == "fold"

    @property
    def expected_turns(self) -> int:
        """The expected number of turns of a device in the run, with `min_devices` devices.

        Without an end, a method that paces itself by them does so over ENDLESS_TURNS rounds.
        """
        wanted = self.participants or math.ceil(round(self.share * self.min_devices, 6))
        if self.mode == "buffered":
            wanted = self.buffer
        return expected_turns(self.count or ENDLESS_TURNS, wanted, self.min_devices)

    def over(self, done: int) -> bool:
        """True if a run with so many rounds is done."""
        return bool(self.count) and done >= self.count


class RobustConfig(Section, frozen=True):
    """Defences against hostile and faulty updates."""

    max_value: Annotated[
        float, described("refuse an update with a larger number (float16 holds 65504)", gt=0)
    ] = 65504.0
    norm_factor: Annotated[
        float,
        described("refuse a change longer than this times the fleet's median; 0: never", ge=0),
    ] = 30.0
    max_weight_share: Annotated[
        float,
        described("largest share of a round's weight for one of 3 or more devices", gt=0, le=1),
    ] = 0.5
    max_norm: Annotated[float, described("refuse a change with a larger norm; 0: never", ge=0)] = (
        0.0
    )
    clip_norm: Annotated[
        float, described("scale a longer change down to this norm; 0: never", ge=0)
    ] = 0.0
    combine: Annotated[
        Literal["mean", "median", "trimmed-mean", "krum"],
        described("aggregation: the method's weighted mean, or one that resists hostile devices"),
    ] = "mean"
    trim: Annotated[
        float, described("trimmed-mean leaves out this share at either end", ge=0, lt=0.5)
    ] = 0.1
    byzantine: Annotated[int, described("number of hostile devices that krum expects", ge=0)] = 1
    max_drop: Annotated[
        float,
        described("a version is bad if it loses more points of accuracy to the best", gt=0, le=100),
    ] = 20.0
    roll_back: Annotated[
        bool, described("return to the last good version automatically when one is bad")
    ] = False


class TransferConfig(Section, frozen=True):
    """The transfer of models and updates."""

    chunk_bytes: Annotated[ChunkBytes, described("size of a chunk")] = 256 * 1024
    encoding: Annotated[
        str,
        described(
            "of updates: float32, float16, bfloat16 or int8; with +delta, +zstd or +delta+zstd"
        ),
    ] = "float32"


class RolloutConfig(Section, frozen=True):
    """Staged rollout of new personal models; left out, each device decides for itself."""

    stages: Annotated[
        tuple[Annotated[float, Meta(gt=0, le=1)], ...],
        described("share of the devices that may use them, stage by stage", min_length=1),
    ] = (0.05, 0.25, 1.0)
    soak: Annotated[float, described("shortest stage, in seconds", ge=0, le=1e7)] = 3600.0
    abort: Annotated[
        float,
        described("abort if more than this share of a stage's devices reports a problem", ge=0),
    ] = 0.2
