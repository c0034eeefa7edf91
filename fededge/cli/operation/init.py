"""`fededge init`: write a federation's first files, to read and to edit."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, get_args, get_type_hints

from fededge._internal.suggestions import unknown
from fededge.cli.operation.fleet_size import add_sizes, fleet_size, given_sizes
from fededge.cli.operation.unit_files import service_state
from fededge.config import AgentConfig, CoordinatorConfig, DataConfig, template
from fededge.errors import ConfigError
from fededge.storage.files import read_file, write_private, write_public

__all__ = ["add_to", "data_section"]

TEXT = """\
Write the first files of a federation.

  coordinator, agent   print a commented configuration file: the required keys, and the others
                       with their defaults, each with its meaning
  certificates         make a CA, and a certificate for the broker, the coordinator and each device
  broker               write a configuration for Mosquitto with an access list that confines every
                       device to its own topics, and a password for each
  key                  make the key pair with which the coordinator signs its models
  federation           all of a closed federation on this machine: certificates, broker, key and
                       coordinator.toml, with a certificate for boxes that ask to be enrolled

The last four write into the folder --out. Run again they keep what is there, add what is new
(a device, a federation, a port), let nobody in who was shut out, and say what they did.
With --out FILE the first two write a file that does not exist yet.

examples:
  sudo fededge init federation --federation gates --broker broker.example --out /etc/fededge \\
    --data folder:/srv/gates/test --service
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
    add_sizes(parser)
    parser.add_argument("--out", type=Path, metavar="PATH", help="folder or file to write")
    parser.set_defaults(run=run)


def _add_files(parser: argparse.ArgumentParser) -> None:
    """Add the files of a closed broker, for a configuration and for its service."""
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
    parser.add_argument(
        "--service",
        action="store_true",
        help="give the files to this machine's Mosquitto, and restart it (broker, federation)",
    )


def run(options: argparse.Namespace) -> None:
    WRITERS[options.what](options)


def _coordinator(options: argparse.Namespace) -> None:
    from fededge.broker.access_list import COORDINATOR

    values = {**_common(options, COORDINATOR), "method": "fedavg"}
    if options.signing_key:
        values["signing_key"] = _named(options, options.signing_key)
    _give(options, template(CoordinatorConfig, values))


def _agent(options: argparse.Namespace) -> None:
    values = {**_common(options, options.device), "device": options.device}
    if options.trusted_key:
        values["trusted_key"] = _named(options, options.trusted_key)
    _give(options, template(AgentConfig, values))


def _give(options: argparse.Namespace, text: str) -> None:
    """Print a configuration, or write the file --out, but never over one that is there."""
    path: Path | None = options.out
    if path is None:
        print(text, end="")
    elif path.exists():
        print(f"{path}: kept as it is")
    else:
        write_public(path, text.encode())
        print(f"{path}: made")


def _common(options: argparse.Namespace, name: str) -> dict[str, Any]:
    broker: dict[str, Any] = {"host": options.broker, "port": _port(options)}
    folder = options.certificates and Path(_named(options, options.certificates))
    if folder:
        broker |= {"tls": True, "ca": str(folder / "ca.crt")}
    if folder and not options.password_file:
        broker |= {"certificate": str(folder / f"{name}.crt"), "key": str(folder / f"{name}.key")}
    if options.password_file:
        broker |= {"username": name, "password_file": options.password_file}
    common = {"federation": options.federation, "state": _state(options), "broker": broker}
    return {**common, "data": data_section(options.data or "none", options.out is not None)}


def _state(options: argparse.Namespace) -> str:
    return "state" if options.out is None else service_state(options.out)


def _named(options: argparse.Namespace, path: str | Path) -> str:
    """A path in a file that we write: what is here has the same place from any folder."""
    there = options.out is not None and Path(path).exists()
    return str(Path(path).absolute() if there else path)


def data_section(text: str, written: bool) -> dict[str, str]:
    """The keys that `--data SOURCE[:PATH]` sets; `written`: in a file of our own."""
    source, _, root = text.partition(":")
    root = str(Path(root).absolute()) if root and written and Path(root).exists() else root
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
    if options.enrolment:
        _give_to_boxes(folder)


def _give_to_boxes(folder: Path) -> None:
    """Collect the files with which a new box asks, in a folder that can be carried as a whole."""
    from fededge.broker.access_list import ENROL
    from fededge.credentials.certificates import CA

    carried = folder / "enrolment"
    for name in (f"{CA}.crt", f"{ENROL}.crt"):
        write_public(carried / name, read_file("--out", folder / name))
    write_private(carried / f"{ENROL}.key", read_file("--out", folder / f"{ENROL}.key"))
    carried.chmod(0o700)
    print(f"{carried}: for every new box; carry this folder there")


def _broker(options: argparse.Namespace) -> None:
    from fededge.broker.provisioning import BrokerPlan, write_broker
    from fededge.broker.system_service import check_service, start_service

    if options.service:
        check_service()
    devices, size, certificates = (
        tuple(_devices(options)),
        fleet_size(options),
        options.certificates,
    )
    there = options.out is not None and (options.out / "mosquitto.conf").exists()
    if not devices and certificates is None and not there:
        raise ConfigError(
            "an open broker protects nothing: give --devices (a password for each), "
            "--certificates (from `fededge init certificates`), or both (TLS and passwords)"
        )
    folder, resized = _folder(options), any(given_sizes(options).values())
    if certificates is not None:
        certificates = certificates.absolute()
    plan = BrokerPlan(
        folder, options.federation, devices, certificates, options.port, size, resized
    )
    print("\n".join(write_broker(plan)))
    if options.service:
        print("\n".join(start_service(folder / "mosquitto.conf")))
        return
    print(f"start it: mosquitto -c {folder / 'mosquitto.conf'}")
    if there:
        print("if it runs: systemctl restart mosquitto (a reload may end it: docs/security.md)")
    if devices:
        print(f"passwords: {folder / 'secrets'}, one file for each user; carry each to its machine")


def _key(options: argparse.Namespace) -> None:
    from fededge.credentials.signing_keys import make_keys

    folder = _folder(options)
    for path, made in make_keys(folder / "signing.key", folder / "signing.pub").items():
        print(f"{path}: {'made' if made else 'kept'}")
    print(
        f"for the coordinator alone: signing_key = {folder / 'signing.key'}\n"
        f"for every agent: trusted_key = {folder / 'signing.pub'}"
    )


def _federation(options: argparse.Namespace) -> None:
    """Write all files of a closed federation, each by its own writer, below one folder."""
    folder = _folder(options)
    pki, keys = folder / "pki", folder / "keys"
    given = {**vars(options), "certificates": pki, "enrolment": True, "devices": []}
    given["signing_key"] = str(keys / "signing.key")
    _certificates(argparse.Namespace(**{**given, "out": pki, "devices": options.devices}))
    _key(argparse.Namespace(**{**given, "out": keys}))
    _broker(argparse.Namespace(**{**given, "out": folder / "broker"}))
    config = folder / "coordinator.toml"
    _coordinator(argparse.Namespace(**{**given, "out": config}))
    if service_state(config) != "state":
        print("next: sudo fededge install-service coordinator --now")
    else:
        print(f"next: fededge coordinator --config {config}")


WRITERS = {
    "coordinator": _coordinator,
    "agent": _agent,
    "certificates": _certificates,
    "broker": _broker,
    "key": _key,
    "federation": _federation,
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
