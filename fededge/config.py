"""The TOML file of each side: its keys, their meaning, and errors that name the key.

Every field carries its help, so that `fededge init` can write a commented file.
"""

from __future__ import annotations

import difflib
import math
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from fededge.errors import ConfigError, FedEdgeError, WireError
from fededge.files import check_private, read_file
from fededge.selection import expected_turns
from fededge.wire.encoding import Encoding
from fededge.wire.topics import check_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "AgentConfig",
    "BrokerConfig",
    "CoordinatorConfig",
    "DataConfig",
    "ExportConfig",
    "ModelConfig",
    "RobustConfig",
    "RolloutConfig",
    "RoundsConfig",
    "TrainingConfig",
    "TransferConfig",
    "load",
    "load_either",
    "template",
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
    export: ExportConfig = ExportConfig()


S = TypeVar("S", bound=Side)
T = TypeVar("T", bound=Section)

BROKER_FILES = ("ca", "certificate", "key", "password_file")
KEY_FILES = ("signing_key", "trusted_key")


def load(path: Path, kind: type[S], environment: Mapping[str, str] = os.environ) -> S:
    """Read a configuration; a mistake is one sentence: the file, the key and what is allowed."""
    values = _values(path)
    _check_keys(path, values, kind, "")
    _check_secret(path, values)
    try:
        config = msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_readable(str(error), kind)}") from None
    try:
        finished = _finished(config, path.parent, environment)
        _check_choices(finished)
    except FedEdgeError as error:
        raise ConfigError(f"{path}: {error}") from None
    return finished


def _check_secret(path: Path, values: Mapping[str, Any]) -> None:
    """A file with a password in it is for its owner's eyes."""
    broker = values.get("broker")
    if isinstance(broker, Mapping) and broker.get("password"):
        check_private("broker.password is in it", path)


def load_either(path: Path) -> Side:
    """Read a configuration of either side: only an agent's names its device."""
    return load(path, AgentConfig if "device" in _values(path) else CoordinatorConfig)


def _values(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return values
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from None


def _finished(config: S, folder: Path, environment: Mapping[str, str]) -> S:
    """Names checked, paths made absolute, the password taken from where it is kept."""
    from fededge.methods import located

    replace = msgspec.structs.replace
    check_name("federation", config.federation)
    if isinstance(config, AgentConfig):
        check_name("device", config.device)
        config = replace(
            config,
            methods=tuple(located(m, folder) for m in config.methods),
            export=_located(config.export, folder, KEY_FILES),
        )
    if isinstance(config, CoordinatorConfig):
        _check_rounds(config.rounds)
        _check_rollout(config.rollout)
        config = replace(config, method=located(config.method, folder))
    data = config.data
    if data.root:
        data = replace(data, root=str(folder.absolute() / Path(data.root).expanduser()))
    broker = _with_password(_located(config.broker, folder, BROKER_FILES), environment)
    config = _located(config, folder, ("state", *KEY_FILES))
    return replace(config, data=data, broker=broker)


def _located(section: T, folder: Path, keys: Iterable[str]) -> T:
    """The section with its paths made absolute: they are relative to the file that names them."""
    given = {key: value for key in keys if (value := getattr(section, key, ""))}
    found = {key: str(folder.absolute() / Path(path).expanduser()) for key, path in given.items()}
    return msgspec.structs.replace(section, **found)


def _with_password(broker: BrokerConfig, environment: Mapping[str, str]) -> BrokerConfig:
    """The broker's section with the password from where it is kept."""
    if PASSWORD_VARIABLE in environment:
        return msgspec.structs.replace(broker, password=environment[PASSWORD_VARIABLE])
    if not broker.password_file:
        return broker
    if broker.password:
        raise ConfigError("broker.password and broker.password_file are both set; leave one out")
    path = Path(broker.password_file)
    data = read_file("broker.password_file", path)
    check_private("broker.password_file", path)
    try:
        password = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        password = ""
    if not password or "\n" in password:
        raise ConfigError(f"broker.password_file: '{path}' must hold one line, the password")
    return msgspec.structs.replace(broker, password=password)


def _check_choices(config: Side) -> None:
    """Names that are looked up elsewhere: better refused now than after the broker has answered."""
    from fededge import methods, models

    if isinstance(config, CoordinatorConfig):
        try:
            Encoding.parse(config.transfer.encoding)
        except WireError as error:
            raise ConfigError(f"transfer.encoding: {error}") from None
        network = models.sketch(config.model.name, config.model.head)
        methods.method(config.method).needs(network)
    if isinstance(config, AgentConfig):
        for reference in config.methods:
            methods.own_method(reference)
        if config.model is not None:
            models.check_name(config.model.name)
    _check_tls(config.broker)
    _check_signing(config)
    if config.data.root and not Path(config.data.root).exists():
        raise ConfigError(f"data.root: there is no '{config.data.root}'")


def _check_tls(broker: BrokerConfig) -> None:
    from fededge.transport import tls

    for key in ("ca", "certificate", "key"):
        if getattr(broker, key) and not broker.tls:
            raise ConfigError(f"broker.{key} is set, but broker.tls is not true: add tls = true")
    if bool(broker.certificate) != bool(broker.key):
        raise ConfigError("broker.certificate and broker.key belong together: set both or none")
    tls.context(broker)


def _check_signing(config: Side) -> None:
    from fededge.wire import signing

    if isinstance(config, CoordinatorConfig) and config.signing_key:
        signing.read_signing_key(Path(config.signing_key))
    if isinstance(config, AgentConfig) and config.trusted_key:
        signing.read_trusted_keys(Path(config.trusted_key))
    if isinstance(config, AgentConfig) and config.export.signing_key:
        signing.read_signing_key(Path(config.export.signing_key))


def _check_rollout(rollout: RolloutConfig | None) -> None:
    """The last stage must reach everybody: else the others would never get a new model."""
    if rollout is None:
        return
    if list(rollout.stages) != sorted(set(rollout.stages)) or rollout.stages[-1] != 1:
        raise ConfigError(
            f"rollout.stages is {list(rollout.stages)}: each must be larger than the one before, "
            "and the last must be 1.0"
        )


def _check_rounds(rounds: RoundsConfig) -> None:
    """A quorum that the devices asked cannot make would leave every round open for ever."""
    if rounds.participants and rounds.share:
        raise ConfigError("rounds.participants and rounds.share are both set; choose one")
    most = rounds.participants or rounds.min_devices
    if rounds.quorum > most:
        raise ConfigError(
            f"rounds.quorum is {rounds.quorum}, but a round may begin with {most} devices; "
            "raise rounds.min_devices and rounds.participants, or lower the quorum"
        )
    if rounds.participants > rounds.min_devices:
        raise ConfigError(
            f"rounds.participants is {rounds.participants}, but a round may begin with "
            f"rounds.min_devices = {rounds.min_devices} devices; raise rounds.min_devices"
        )
    if rounds.mode == "buffered" and rounds.buffer > rounds.min_devices:
        raise ConfigError(
            f"rounds.buffer is {rounds.buffer}, but there may be only rounds.min_devices = "
            f"{rounds.min_devices} devices, and each counts once in a version; raise "
            "rounds.min_devices, or lower the buffer"
        )


def _check_keys(path: Path, values: Mapping[str, Any], kind: type[Struct], where: str) -> None:
    """Refuse unknown keys before anything else, with the nearest known one."""
    hints = get_type_hints(kind)
    for key, value in values.items():
        if key not in hints:
            close = difflib.get_close_matches(key, hints, n=1)
            guess = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(hints)}"
            place = f" in [{where}]" if where else ""
            raise ConfigError(f"{path}: unknown key '{key}'{place}; {guess}")
        section = _section(hints[key])
        if section is not None and isinstance(value, Mapping):
            _check_keys(path, value, section, key)


def _section(hint: Any) -> type[Struct] | None:
    """The section class in a type hint, also where it is optional."""
    for part in (hint, *getattr(hint, "__args__", ())):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def _readable(error: str, kind: type[Struct]) -> str:
    """`Expected `int` … - at `$.broker.port`` as `broker.port: expected int …`, and the choices."""
    text, _, place = error.replace("`", "").partition(" - at $.")
    text = text[0].lower() + text[1:].replace("object", "a table")
    choices = ", ".join(map(repr, _choices(kind, place.split("."))))
    return (f"{place}: {text}" if place else text) + (f"; allowed: {choices}" if choices else "")


def _choices(kind: type[Struct], keys: list[str]) -> tuple[Any, ...]:
    """The values that a key with a closed set of them may take."""
    hint = get_type_hints(kind).get(keys[0])
    section = _section(hint)
    if section is not None:
        return _choices(section, keys[1:]) if keys[1:] else ()
    return get_args(hint) if get_origin(hint) is Literal else ()


def template(kind: type[Side], values: Mapping[str, Any]) -> str:
    """A commented TOML file with every key: given ones set, the others shown with their default."""
    hints = get_type_hints(kind, include_extras=True)
    lines = [f"# {kind.__doc__}"]
    sections: list[str] = []
    for field in msgspec.structs.fields(kind):
        section = _section(get_type_hints(kind)[field.name])
        if section is None:
            lines += _lines(field, hints, values)
        else:
            sections += ["", f"# {section.__doc__}"]
            sections += _section_lines(field, section, values.get(field.name))
    return "\n".join(lines + sections) + "\n"


def _section_lines(
    field: msgspec.structs.FieldInfo, section: type[Struct], values: Mapping[str, Any] | None
) -> list[str]:
    """A section; one that may be left out, and is not given, is commented out as a whole."""
    hints = get_type_hints(section, include_extras=True)
    mark = "# " if values is None and field.default is None else ""
    fields = msgspec.structs.fields(section)
    keys = [line for each in fields for line in _lines(each, hints, values or {})]
    return [f"{mark}[{field.name}]", *keys]


def _lines(
    field: msgspec.structs.FieldInfo, hints: Mapping[str, Any], values: Mapping[str, Any]
) -> list[str]:
    meta = hints[field.name].__metadata__[0]
    value = values.get(field.name, field.default)
    mark = "" if field.name in values or field.required else "# "
    shown = "" if value is msgspec.NODEFAULT else value
    return [f"{mark}{field.name} = {_toml(shown)}  # {meta.description}"]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return msgspec.json.encode(value).decode()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value)
