"""Loading of a configuration: read the file, check it, resolve paths, fetch the password."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from fededge._internal.lazy_torch import torch_is_loaded
from fededge.config.base import Section, section_of
from fededge.config.credentials import with_credentials
from fededge.config.hardware_sections import EvaluationHardwareConfig, HardwareConfig
from fededge.config.passwords import with_password
from fededge.config.run_sections import ModelConfig, RolloutConfig, RoundsConfig
from fededge.config.sections import AgentConfig, BrokerConfig, CoordinatorConfig, Side
from fededge.errors import ConfigError, FedEdgeError, WireError
from fededge.hardware import check_device_name
from fededge.hardware.hours import parse_hours
from fededge.hardware.priority import check_ionice
from fededge.storage.files import check_private
from fededge.wire.topics import check_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["check_run", "load", "load_either"]

S = TypeVar("S", bound=Side)
T = TypeVar("T", bound=Section)

BROKER_FILES = ("ca", "certificate", "key", "password_file")
KEY_FILES = ("signing_key", "trusted_key")


def load(path: Path, kind: type[S], environment: Mapping[str, str] = os.environ) -> S:
    """Load a configuration; ConfigError names the file, the key and the allowed values."""
    values = _values(path)
    _check_keys(path, values, kind, "")
    _check_secret(path, values)
    try:
        config = msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_readable(str(error), kind)}") from None
    try:
        resolved = _resolved(config, path.parent, environment)
        _check_choices(resolved)
    except FedEdgeError as error:
        raise ConfigError(f"{path}: {error}") from None
    return resolved


def _check_secret(path: Path, values: Mapping[str, Any]) -> None:
    """Refuse a file that has a password in it and that every user can read."""
    broker = values.get("broker")
    if isinstance(broker, Mapping) and broker.get("password"):
        check_private("broker.password is in it", path)


def load_either(path: Path) -> Side:
    """Load a configuration of either side: only an agent's has the key `device`."""
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


def _resolved(config: S, folder: Path, environment: Mapping[str, str]) -> S:
    """Check the names, make paths absolute, fetch the password."""
    from fededge import models
    from fededge.methods import absolute_paths

    replace = msgspec.structs.replace
    config = with_credentials(config, environment)
    check_name("federation", config.federation)
    if isinstance(config, AgentConfig):
        check_name("device", config.device)
        if config.model is not None and config.model.weights:
            raise ConfigError(
                "model.weights: an agent reads no weights, its coordinator does; remove it here"
            )
        config = replace(
            config,
            methods=tuple(absolute_paths(m, folder) for m in config.methods),
            networks=tuple(models.absolute_reference(n, folder) for n in config.networks),
            model=None if config.model is None else _absolute_model(config.model, folder),
            export=_absolute(config.export, folder, KEY_FILES),
        )
    if isinstance(config, CoordinatorConfig):
        model = _absolute(_absolute_model(config.model, folder), folder, ("weights",))
        config = replace(config, model=model, method=absolute_paths(config.method, folder))
    data = config.data
    if data.root:
        data = replace(data, root=str(folder.absolute() / Path(data.root).expanduser()))
    broker = with_password(_absolute(config.broker, folder, BROKER_FILES), environment)
    config = _absolute(config, folder, ("state", *KEY_FILES))
    return replace(config, data=data, broker=broker)


def _absolute_model(model: ModelConfig, folder: Path) -> ModelConfig:
    from fededge import models

    return msgspec.structs.replace(model, name=models.absolute_reference(model.name, folder))


def _absolute(section: T, folder: Path, keys: Iterable[str]) -> T:
    """The section with absolute paths; in the file they are relative to its folder."""
    paths = {key: value for key in keys if (value := getattr(section, key, ""))}
    found = {key: str(folder.absolute() / Path(path).expanduser()) for key, path in paths.items()}
    return msgspec.structs.replace(section, **found)


def _check_choices(config: Side) -> None:
    """Check names of methods, networks, encodings and files before connecting to the broker."""
    from fededge import methods, models

    if isinstance(config, CoordinatorConfig):
        models.check_configured(config.model.name)
        check_run(config)
        _check_hardware(config.hardware)
    if isinstance(config, AgentConfig):
        _check_hardware(config.hardware)
        _check_gate(config.hardware)
        if torch_is_loaded():  # else the trainer process imports them: a plugin may import torch
            for reference in config.methods:
                methods.plugin_method(reference)
        for reference in config.networks:
            models.check_reference(reference)
        if config.model is not None:
            models.check_configured(config.model.name)
    _check_tls(config.broker)
    _check_signing(config)
    if config.data.root and not Path(config.data.root).exists():
        raise ConfigError(f"data.root: there is no '{config.data.root}'")


def check_run(config: CoordinatorConfig) -> None:
    """Check that the settings of a run are valid and fit each other; ConfigError if not."""
    from fededge import methods, models
    from fededge.wire.encoding import Encoding  # loads numpy

    _check_rounds(config.rounds)
    _check_rollout(config.rollout)
    try:
        Encoding.parse(config.transfer.encoding)
    except WireError as error:
        raise ConfigError(f"transfer.encoding: {error}") from None
    method = methods.method(config.method)
    # Else it is checked when the network is built.
    if torch_is_loaded() and models.in_zoo(config.model.name):
        method.needs(models.probe_network(config.model.name, config.model.head))
    _check_robust(config, [layer.name for layer in method.overriding["sums"]])


def _check_hardware(hardware: EvaluationHardwareConfig) -> None:
    try:
        check_device_name(hardware.device)
    except ConfigError as error:
        raise ConfigError(f"hardware.{error}") from None


def _check_gate(hardware: HardwareConfig) -> None:
    """Check the hours and the priority; the agent itself looks for the sensors at its start."""
    try:
        parse_hours(hardware.when.hours)
    except ConfigError as error:
        raise ConfigError(f"hardware.when.hours: {error}") from None
    if hardware.priority.ionice:
        try:
            check_ionice(hardware.priority.ionice)
        except ConfigError as error:
            raise ConfigError(f"hardware.priority.{error}") from None


def _check_tls(broker: BrokerConfig) -> None:
    from fededge.credentials import tls

    for key in ("ca", "certificate", "key"):
        if getattr(broker, key) and not broker.tls:
            raise ConfigError(f"broker.{key} is set, but broker.tls is not true: add tls = true")
    if bool(broker.certificate) != bool(broker.key):
        raise ConfigError("broker.certificate and broker.key belong together: set both or none")
    tls.context(broker)


def _check_signing(config: Side) -> None:
    side = config.export if isinstance(config, AgentConfig) else config
    signing, trusted = getattr(side, "signing_key", ""), getattr(config, "trusted_key", "")
    if not signing and not trusted:
        return
    from fededge.credentials import signing_keys  # loads cryptography: 7 MB

    if trusted:
        signing_keys.read_trusted_keys(Path(trusted))
    if signing:
        signing_keys.read_signing_key(Path(signing))


def _check_rollout(rollout: RolloutConfig | None) -> None:
    """Require increasing stages that end at 1: else some devices would never get a new model."""
    if rollout is None:
        return
    if list(rollout.stages) != sorted(set(rollout.stages)) or rollout.stages[-1] != 1:
        raise ConfigError(
            f"rollout.stages is {list(rollout.stages)}: each must be larger than the one before, "
            "and the last must be 1.0"
        )


def _check_rounds(rounds: RoundsConfig) -> None:
    """Refuse a quorum that the selected devices cannot reach: no round would ever end."""
    try:
        parse_hours(rounds.hours)
    except ConfigError as error:
        raise ConfigError(f"rounds.hours: {error}") from None
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


def _check_robust(config: CoordinatorConfig, summing: list[str]) -> None:
    """Refuse a combination that would fail at a merge; `summing` methods need more than a mean."""
    combine, fewest = config.robust.combine, config.robust.byzantine + 3
    if combine == "krum" and config.rounds.quorum < fewest:
        raise ConfigError(
            f"rounds.quorum is {config.rounds.quorum}, but robust.combine = 'krum' needs "
            f"robust.byzantine + 3 = {fewest} updates; raise rounds.quorum"
        )
    if combine in ("median", "trimmed-mean") and summing:
        raise ConfigError(
            f"robust.combine is '{combine}', but method '{summing[0]}' steps by a sum over all "
            "updates; choose combine = 'krum' or 'mean', or another method"
        )


def _check_keys(path: Path, values: Mapping[str, Any], kind: type[Struct], where: str) -> None:
    """Refuse unknown keys, and suggest the closest known one."""
    hints = get_type_hints(kind)
    for key, value in values.items():
        if key not in hints:
            close = difflib.get_close_matches(key, hints, n=1)
            guess = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(hints)}"
            place = f" in [{where}]" if where else ""
            raise ConfigError(f"{path}: unknown key '{key}'{place}; {guess}")
        section = section_of(hints[key])
        if section is not None and isinstance(value, Mapping):
            _check_keys(path, value, section, f"{where}.{key}" if where else key)


def _readable(error: str, kind: type[Struct]) -> str:
    """`Expected `int` … - at `$.broker.port`` as `broker.port: expected int …`, and the choices."""
    text, _, place = error.replace("`", "").partition(" - at $.")
    text = text[0].lower() + text[1:].replace("object", "a table")
    choices = ", ".join(map(repr, _choices(kind, place.split("."))))
    return (f"{place}: {text}" if place else text) + (f"; allowed: {choices}" if choices else "")


def _choices(kind: type[Struct], keys: list[str]) -> tuple[Any, ...]:
    """The allowed values of a key that is an enumeration, else nothing."""
    hint = get_type_hints(kind).get(keys[0])
    section = section_of(hint)
    if section is not None:
        return _choices(section, keys[1:]) if keys[1:] else ()
    return get_args(hint) if get_origin(hint) is Literal else ()
