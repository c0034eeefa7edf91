"""The sections of the two files, key by key; each key carries its help."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from fededge.federated.selection import expected_turns

__all__ = [
    "PASSWORD_VARIABLE",
    "AgentConfig",
    "BrokerConfig",
    "CoordinatorConfig",
    "DataConfig",
    "ExportConfig",
    "ModelConfig",
    "RobustConfig",
    "RolloutConfig",
    "RoundsConfig",
    "Section",
    "Side",
    "TrainingConfig",
    "TransferConfig",
    "section_of",
]

PASSWORD_VARIABLE = "FEDEDGE_PASSWORD"


def _help(text: str, **limits: Any) -> Meta:
    return Meta(description=text, **limits)


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections: immutable, and closed to keys that it does not name."""


class BrokerConfig(Section, frozen=True):
    """The MQTT broker that connects the coordinator and the agents."""

    host: Annotated[str, _help("name or address of the broker", min_length=1)] = "localhost"
    port: Annotated[int, _help("1883, or 8883 with TLS", ge=1, le=65535)] = 1883
    tls: Annotated[bool, _help("encrypt the connection, and check who the broker is")] = False
    ca: Annotated[str, _help("with tls: who may sign for the broker; empty: the system's CAs")] = ""
    certificate: Annotated[str, _help("with tls: ours, if the broker wants one")] = ""
    key: Annotated[str, _help("of the certificate; a file that nobody else can read")] = ""
    username: Annotated[str, _help("empty: connect anonymously, or by the certificate")] = ""
    password: Annotated[str, _help(f"better in {PASSWORD_VARIABLE}, or in a password_file")] = ""
    password_file: Annotated[str, _help("holds the password; nobody else can read it")] = ""
    protocol: Annotated[
        Literal["5", "3.1.1"], _help("MQTT version; 3.1.1 for brokers that lack MQTT 5")
    ] = "5"
    keepalive: Annotated[int, _help("seconds between signs of life", ge=5, le=3600)] = 30
    wait: Annotated[float, _help("seconds to wait for the broker at start", ge=0, le=86400)] = 10.0

    def __repr__(self) -> str:
        """Without the password: what is printed ends up in a log."""
        return f"BrokerConfig({self.username}@{self.host}:{self.port}, tls={self.tls})"


class ModelConfig(Section, frozen=True):
    """The network that is trained, and what it is for; left out, taken from the data."""

    name: Annotated[str, _help("a network of the zoo: lenet, cnn4, resnet20, vgg8, …")] = "lenet"
    head: Annotated[str, _help("its last layer: linear, bias-free, cosine or cosine:TAU")] = (
        "linear"
    )
    labels: Annotated[tuple[str, ...], _help("the classes, in order")] = ()
    shape: Annotated[tuple[int, ...], _help("channels, height, width; or tokens of a text")] = ()
    mean: Annotated[tuple[float, ...], _help("of a channel, of 1: for normalisation")] = ()
    std: Annotated[tuple[float, ...], _help("of a channel, of 1: for normalisation")] = ()
    vocabulary: Annotated[int, _help("for texts: how many tokens there are", ge=0)] = 0


class TrainingConfig(Section, frozen=True):
    """How each device trains in its turn."""

    epochs: Annotated[int, _help("passes over the device's data a round", ge=1, le=10_000)] = 1
    batch_size: Annotated[int, _help("examples a step", ge=1, le=1_000_000)] = 32
    lr: Annotated[float, _help("learning rate", gt=0, le=1e6)] = 0.01
    momentum: Annotated[float, _help("of SGD", ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, _help("of SGD", ge=0, le=1e6)] = 1e-5
    clip_norm: Annotated[float, _help("largest norm of a gradient; 0: any", ge=0, le=1e6)] = 0.0


class RoundsConfig(Section, frozen=True):
    """When a round begins, whom it asks, when it ends, and what becomes of who is late or fails."""

    count: Annotated[int, _help("rounds to run", ge=1, le=100_000)] = 10
    mode: Annotated[
        Literal["synchronous", "buffered"],
        _help("buffered (FedBuff): a new version with every so many updates, whoever sends them"),
    ] = "synchronous"
    buffer: Annotated[int, _help("if buffered: updates that make a version", ge=1)] = 10
    participants: Annotated[
        int, _help("devices whose updates a round wants; 0: all present", ge=0)
    ] = 0
    share: Annotated[
        float, _help("instead of participants: this share of the devices present", ge=0, le=1)
    ] = 0.0
    selection: Annotated[
        Literal["random", "round-robin", "recency"],
        _help("who is chosen: a seeded draw, one after the other, or who was heard longest ago"),
    ] = "random"
    min_devices: Annotated[int, _help("wait for so many before a round", ge=1)] = 2
    min_examples: Annotated[int, _help("devices with fewer examples sit out", ge=0)] = 0
    over_select: Annotated[float, _help("ask so many times more than wanted", ge=1, le=10)] = 1.0
    quorum: Annotated[int, _help("a deadline needs so many updates to end a round", ge=1)] = 1
    deadline: Annotated[float, _help("seconds that a round may take", gt=0, le=1e7)] = 600.0
    slack: Annotated[
        float,
        _help("once two thirds have answered, the others get so many times that; 0: all", ge=0),
    ] = 5.0
    lease: Annotated[
        float, _help("seconds without a sign of life after which a device is gone", ge=5, le=1e6)
    ] = 90.0
    grace: Annotated[
        float, _help("seconds more at the deadline for who is sending already", ge=0, le=1e6)
    ] = 0.0
    late: Annotated[
        Literal["refuse", "fold"],
        _help("an update that comes after its round: refused, or folded into the next one"),
    ] = "refuse"
    max_staleness: Annotated[
        int, _help("folded updates may be so many rounds old", ge=1, le=1000)
    ] = 5
    staleness_power: Annotated[
        float, _help("a change that is s rounds old counts (1 + s) to minus this", ge=0, le=10)
    ] = 0.5
    retries: Annotated[int, _help("times that a failing device is asked again", ge=0)] = 2
    backoff: Annotated[
        float, _help("seconds that it rests before, then twice as long, …", ge=0, le=1e6)
    ] = 30.0
    quarantine_after: Annotated[
        int, _help("refused updates in a row that put a device in quarantine; 0: none do", ge=0)
    ] = 3
    quarantine_seconds: Annotated[float, _help("how long it sits out", ge=0, le=1e9)] = 3600.0

    @property
    def folds(self) -> bool:
        """Whether updates of earlier rounds are taken."""
        return self.mode == "buffered" or self.late == "fold"

    @property
    def expected_turns(self) -> int:
        """How often a device takes part in the run, if there are `min_devices` of them."""
        wanted = self.participants or math.ceil(round(self.share * self.min_devices, 6))
        if self.mode == "buffered":
            wanted = self.buffer
        return expected_turns(self.count, wanted, self.min_devices)


class RobustConfig(Section, frozen=True):
    """What the coordinator does about updates that are wrong on purpose or by accident."""

    max_value: Annotated[
        float, _help("an update with a larger number is refused; float16 holds 65504", gt=0)
    ] = 65504.0
    norm_factor: Annotated[
        float,
        _help("a change of so many times the fleet's median is refused; 0: none is", ge=0),
    ] = 30.0
    max_weight_share: Annotated[
        float, _help("of all weights in a round, that one of three or more may have", gt=0, le=1)
    ] = 0.5
    max_norm: Annotated[
        float, _help("an update that changes the model by more is refused; 0: none is", ge=0)
    ] = 0.0
    clip_norm: Annotated[
        float, _help("a longer change is scaled down to this norm; 0: none is", ge=0)
    ] = 0.0
    combine: Annotated[
        Literal["mean", "median", "trimmed-mean", "krum"],
        _help("how updates become one: the method's weighted mean, or one that a few cannot move"),
    ] = "mean"
    trim: Annotated[
        float, _help("trimmed-mean leaves out this share at either end", ge=0, lt=0.5)
    ] = 0.1
    byzantine: Annotated[int, _help("krum expects so many hostile devices", ge=0)] = 1
    max_drop: Annotated[
        float,
        _help("a version is bad that loses so many points of accuracy to the best", gt=0, le=100),
    ] = 20.0
    roll_back: Annotated[
        bool, _help("go back to the last good version by itself when one is bad")
    ] = False


class TransferConfig(Section, frozen=True):
    """How models and updates travel."""

    chunk_bytes: Annotated[
        int, _help("size of a chunk on the wire", ge=1024, le=16 * 1024 * 1024)
    ] = 256 * 1024
    encoding: Annotated[
        str,
        _help("of updates: float32, float16, bfloat16 or int8; with +delta, +zstd or +delta+zstd"),
    ] = "float32"


class RolloutConfig(Section, frozen=True):
    """New personal models reach the fleet in stages; left out, each device decides for itself."""

    stages: Annotated[
        tuple[Annotated[float, Meta(gt=0, le=1)], ...],
        _help("shares of the devices that may use them, one stage after the other", min_length=1),
    ] = (0.05, 0.25, 1.0)
    soak: Annotated[float, _help("seconds that a stage lasts at least", ge=0, le=1e7)] = 3600.0
    abort: Annotated[
        float, _help("more than this share of a stage's devices says bad or worse: abort", ge=0)
    ] = 0.2


class ExportConfig(Section, frozen=True):
    """The personal model as files for apps: their variants, and when a new one takes over."""

    variants: Annotated[
        tuple[Literal["fp16", "int8"], ...], _help("made beside float32: fp16, int8")
    ] = ("int8",)
    prefer: Annotated[
        Literal["fp32", "fp16", "int8"], _help("what apps get, if it loses no more than max_drop")
    ] = "fp32"
    max_drop: Annotated[
        float, _help("points of accuracy that the preferred variant may lose", ge=0, le=100)
    ] = 0.5
    margin: Annotated[
        float, _help("points by which a new model may be worse than the current", ge=0, le=100)
    ] = 0.0
    keep: Annotated[int, _help("so many last models stay on disk", ge=1, le=1000)] = 3
    signing_key: Annotated[str, _help("file of the key that signs manifests; empty: none")] = ""

    @property
    def made(self) -> tuple[str, ...]:
        """The variants to make: those asked for, and the preferred one."""
        wanted = {*self.variants, self.prefer}
        return tuple(name for name in ("fp16", "int8") if name in wanted)


class DataConfig(Section, frozen=True):
    """Labelled examples: a device's own, or the coordinator's for evaluation."""

    source: Annotated[
        Literal[
            "embedded",
            "fashion-mnist",
            "mnist",
            "cifar10",
            "cifar100",
            "tiny-imagenet",
            "agnews",
            "folder",
            "npz",
            "csv",
            "none",
        ],
        _help("where the examples come from; a coordinator may have none"),
    ] = "embedded"
    root: Annotated[str, _help("folder or file of the source; relative to this file")] = ""
    split: Annotated[
        str, _help("for experiments: share one set among devices, as 'dirichlet:0.1'")
    ] = ""
    devices: Annotated[int, _help("with split: how many devices share the set", ge=0)] = 0
    index: Annotated[int, _help("with split: which of them this is, from 0", ge=0)] = 0
    seed: Annotated[int, _help("of the split", ge=0, le=2**53)] = 0
    test_share: Annotated[float, _help("share of the examples that is held out", ge=0, lt=1)] = 0.2


class Side(Section, frozen=True, kw_only=True):
    """What both sides have to know."""

    federation: Annotated[str, _help("name of the federation, the same on all sides")]
    state: Annotated[str, _help("folder for models and all that must last; relative to this file")]
    broker: BrokerConfig = BrokerConfig()
    data: DataConfig = DataConfig()


class CoordinatorConfig(Side, frozen=True, kw_only=True):
    """The coordinator of a federation."""

    method: Annotated[
        str, _help("how to train: 'fedavg', 'fedprox(mu=0.1)+mixup', 'your/file.py:Name', …")
    ] = "fedavg"
    seed: Annotated[
        int, _help("decides the first model, the selection, the batches", ge=0, le=2**53)
    ] = 0
    signing_key: Annotated[str, _help("file of the key that signs the models; empty: none")] = ""
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    rounds: RoundsConfig = RoundsConfig()
    robust: RobustConfig = RobustConfig()
    keep_versions: Annotated[
        int, _help("model files of so many last versions are kept; 0: all", ge=0)
    ] = 10
    transfer: TransferConfig = TransferConfig()
    rollout: Annotated[
        RolloutConfig | None, _help("release new personal models in stages; left out: at once")
    ] = None


class AgentConfig(Side, frozen=True, kw_only=True):
    """An agent: one per device."""

    device: Annotated[str, _help("this device's id, unique in the federation")]
    methods: Annotated[
        tuple[str, ...], _help("your own methods that it may run, each as 'path/to/file.py:Name'")
    ] = ()
    trusted_key: Annotated[
        str, _help("file of the key that must have signed the models; empty: any will do")
    ] = ""
    model: Annotated[
        ModelConfig | None, _help("insist on a network; left out: the federation's")
    ] = None
    max_model_bytes: Annotated[
        int, _help("a larger network than this is refused, whatever the federation says", ge=1)
    ] = 2 * 2**30
    max_memory_bytes: Annotated[
        int, _help("so is a training that takes more memory; 0: half of the machine's", ge=0)
    ] = 0
    export: ExportConfig = ExportConfig()


def section_of(hint: Any) -> type[Struct] | None:
    """The section class in a type hint, also where it is optional."""
    for part in (hint, *getattr(hint, "__args__", ())):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None
