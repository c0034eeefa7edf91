"""`fededge init`: write a federation's first files, to read and to edit."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from fededge._internal.suggestions import unknown
from fededge.config import AgentConfig, CoordinatorConfig, DataConfig, template
from fededge.errors import ConfigError
from fededge.storage.files import replace_file

if TYPE_CHECKING:
    from fededge.broker.provisioning import FleetSize

__all__ = ["add_to", "data_section"]

TEXT = """\
Write the first files of a federation.

  coordinator, agent   print a commented configuration file: the required keys, and the others
                       with their defaults, each with its meaning
  certificates         make a CA, and a certificate for the broker, the coordinator and each device
  broker               write a configuration for Mosquitto with an access list that confines every
                       device to its own topics, and a password for each
  key                  make the key pair with which the coordinator signs its models

The last three write into the folder --out. Run again they keep what is there, add what is new
(a device, a federation, a port), let nobody in who was shut out, and say what they did.
With --out FILE the first two write a file that does not exist yet.

examples:
  fededge init coordinator --federation gates > coordinator.toml
  fededge init agent --federation gates --device gate-7 --broker 10.0.0.2 \\
    --data folder:/srv/camera/labelled > agent.toml
  fededge init certificates --out pki --broker 10.0.0.2 --devices gate-6 gate-7
  fededge init broker --out broker --federation gates --certificates pki
  fededge init broker --out broker --federation gates --devices gate-6 gate-7
  fededge init broker --out broker --federation doors --devices door-1
  fededge init key --out keys
  fededge init agent --federation gates --device gate-7 --broker 10.0.0.2 \\
    --certificates /etc/fededge --trusted-key /etc/fededge/signing.pub > agent.toml
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("what", choices=tuple(WRITERS), help="what to write")
    parser.add_argument("--federation", default="my-federation", help="name of the federation")
    parser.add_argument("--device", default="device-1", help="id of the device (agent)")
    parser.add_argument("--broker", default="localhost", help="host of the MQTT broker")
    parser.add_argument(
        "--data",
        metavar="SOURCE[:PATH]",
        help="examples of the device, such as folder:images (agent), or to evaluate the model on "
        "(coordinator)",
    )
    parser.add_argument(
        "--devices",
        nargs="+",
        default=[],
        metavar="ID",
        help="devices that get a certificate (`certificates`) or a password (`broker`; without "
        "--devices the broker asks for certificates)",
    )
    parser.add_argument(
        "--enrolment",
        action="store_true",
        help="a certificate with which new boxes may ask for their own over the broker, and do "
        "nothing else (certificates)",
    )
    _add_files(parser)
    parser.add_argument(
        "--days", type=int, default=1825, help="validity of certificates (default: 1825)"
    )
    parser.add_argument(
        "--port", type=int, help="port of the broker (default: 1883, or 8883 with --certificates)"
    )
    _add_sizes(parser)
    parser.add_argument("--out", type=Path, metavar="PATH", help="folder or file to write")
    parser.set_defaults(run=run)


def _add_files(parser: argparse.ArgumentParser) -> None:
    """Add the files of a closed broker that a configuration names."""
    parser.add_argument(
        "--certificates",
        type=Path,
        metavar="DIR",
        help="use TLS with the folder of `init certificates`, or its path on the target machine",
    )
    parser.add_argument(
        "--password-file", metavar="FILE", help="path of the password (coordinator, agent)"
    )
    parser.add_argument("--signing-key", metavar="FILE", help="key of `init key` (coordinator)")
    parser.add_argument("--trusted-key", metavar="FILE", help="key of `init key` (agent)")


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the sizes of the federation, which bound its broker's memory."""
    sizes = parser.add_argument_group("the memory limit of a broker")
    sizes.add_argument("--fleet", type=int, metavar="N", help="number of devices (default: 100)")
    sizes.add_argument(
        "--at-once",
        type=int,
        metavar="N",
        help="devices that send an update at once: participants times over_select (default: 10)",
    )
    sizes.add_argument(
        "--model-bytes",
        type=int,
        metavar="N",
        help="size of a model on the wire: 4 for each of its numbers (default: 67108864)",
    )
    sizes.add_argument(
        "--chunk-bytes",
        type=int,
        metavar="N",
        help="as in the coordinator's [transfer] section (default: 262144)",
    )


def run(options: argparse.Namespace) -> None:
    WRITERS[options.what](options)


def _coordinator(options: argparse.Namespace) -> None:
    from fededge.broker.access_list import COORDINATOR

    values = {**_common(options, COORDINATOR), "method": "fedavg"}
    if options.signing_key:
        values["signing_key"] = options.signing_key
    _give(options, template(CoordinatorConfig, values))


def _agent(options: argparse.Namespace) -> None:
    values = {**_common(options, options.device), "device": options.device}
    if options.trusted_key:
        values["trusted_key"] = options.trusted_key
    _give(options, template(AgentConfig, values))


def _give(options: argparse.Namespace, text: str) -> None:
    """Print a configuration, or write the file --out, but never over one that is there."""
    path: Path | None = options.out
    if path is None:
        print(text, end="")
    elif path.exists():
        print(f"{path}: kept as it is")
    else:
        replace_file(path, text.encode())
        print(f"{path}: made")


def _common(options: argparse.Namespace, name: str) -> dict[str, Any]:
    broker: dict[str, Any] = {"host": options.broker, "port": _port(options)}
    folder = options.certificates
    if folder:
        broker |= {"tls": True, "ca": str(folder / "ca.crt")}
    if folder and not options.password_file:
        broker |= {"certificate": str(folder / f"{name}.crt"), "key": str(folder / f"{name}.key")}
    if options.password_file:
        broker |= {"username": name, "password_file": options.password_file}
    common = {"federation": options.federation, "state": "state", "broker": broker}
    return {**common, "data": data_section(options.data or "none")}


def data_section(text: str) -> dict[str, str]:
    """The keys that `--data SOURCE[:PATH]` sets."""
    source, _, root = text.partition(":")
    known = get_args(get_type_hints(DataConfig)["source"])
    if source not in known:
        raise ConfigError(f"--data {text}: {unknown('source', source, known)}")
    return {"source": source, "root": root} if root else {"source": source}


def _certificates(options: argparse.Namespace) -> None:
    from fededge.broker.access_list import COORDINATOR, ENROL
    from fededge.credentials.certificates import BROKER, CA, add_certificates

    folder = _folder(options)
    asking = [ENROL] if options.enrolment else []
    names = [COORDINATOR, *asking, *_devices(options)]
    if not 1 <= options.days <= 36500:
        raise ConfigError(f"--days {options.days}: must be 1 to 36500")
    made = add_certificates(folder, options.broker, names, options.days)
    for name in (CA, BROKER, *names):
        print(f"{folder / name}.crt: {'made' if name in made else 'kept'}")


def _broker(options: argparse.Namespace) -> None:
    from fededge.broker.provisioning import BrokerPlan, write_broker

    devices, size, certificates = tuple(_devices(options)), _size(options), options.certificates
    there = options.out is not None and (options.out / "mosquitto.conf").exists()
    if not devices and certificates is None and not there:
        raise ConfigError(
            "an open broker protects nothing: give --devices (a password for each), "
            "--certificates (from `fededge init certificates`), or both (TLS and passwords)"
        )
    folder, resized = _folder(options), any(_given(options).values())
    if certificates is not None:
        certificates = certificates.absolute()
    plan = BrokerPlan(
        folder, options.federation, devices, certificates, options.port, size, resized
    )
    print("\n".join(write_broker(plan)))
    print(f"start it: mosquitto -c {folder / 'mosquitto.conf'}")
    if there:
        print("if it runs: systemctl restart mosquitto (a reload may end it: docs/security.md)")
    if devices:
        print(f"passwords: {folder / 'secrets'}, one file for each user; carry each to its machine")


def _given(options: argparse.Namespace) -> dict[str, int | None]:
    """The sizes that are on the command line."""
    names = ("fleet", "at_once", "model_bytes", "chunk_bytes")
    return {name: getattr(options, name) for name in names}


def _size(options: argparse.Namespace) -> FleetSize:
    from fededge.broker.provisioning import FleetSize

    fleet = max(100, len(options.devices)) if options.fleet is None else options.fleet
    usual = {"fleet": fleet, "at_once": min(10, fleet), "model_bytes": 64 << 20}
    usual["chunk_bytes"] = 256 << 10
    sizes = {name: usual[name] if n is None else n for name, n in _given(options).items()}
    bounds = {"fleet": (1, 1_000_000), "at_once": (1, fleet), "model_bytes": (1, 1 << 40)}
    for name, (least, most) in {**bounds, "chunk_bytes": (1024, 16 << 20)}.items():
        if not least <= sizes[name] <= most:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} {sizes[name]}: must be {least} to {most}")
    return FleetSize(*sizes.values())


def _key(options: argparse.Namespace) -> None:
    from fededge.credentials.signing_keys import make_keys

    folder = _folder(options)
    for path, made in make_keys(folder / "signing.key", folder / "signing.pub").items():
        print(f"{path}: {'made' if made else 'kept'}")
    print(
        f"for the coordinator alone: signing_key = {folder / 'signing.key'}\n"
        f"for every agent: trusted_key = {folder / 'signing.pub'}"
    )


WRITERS = {
    "coordinator": _coordinator,
    "agent": _agent,
    "certificates": _certificates,
    "broker": _broker,
    "key": _key,
}


def _port(options: argparse.Namespace) -> int:
    from fededge.broker.provisioning import PLAIN_PORT, TLS_PORT

    port: int = options.port or (PLAIN_PORT if options.certificates is None else TLS_PORT)
    return port


def _folder(options: argparse.Namespace) -> Path:
    if options.out is None:
        raise ConfigError(f"`fededge init {options.what}` writes several files: give --out DIR")
    folder: Path = options.out.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be made ({error.strerror})") from None
    return folder


def _devices(options: argparse.Namespace) -> list[str]:
    """Return the device ids; each must be valid in topics and file names."""
    from fededge.enrolment.request import check_device

    return [check_device("--devices", name) for name in options.devices]
