"""`fededge enroll`: a box makes its own key, asks for a certificate, and takes the answer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fededge.cli.operation.unit_files import service_state
from fededge.errors import ConfigError
from fededge.storage.files import make_folder, read_bounded, read_file, write_public

if TYPE_CHECKING:
    from fededge.enrolment.answer import EnrolmentAnswer, TrustedAnswer

__all__ = ["add_to", "read_small"]

SERVICES = Path("/etc/fededge")
"""The folder whose agent.toml is that of the machine's one agent; one below it is an instance's."""

TEXT = """\
Enrol this box in a federation with certificates. Its private key is made here and never leaves it.

  1. on the box        write a request, and read the fingerprint of the box's key
  2. at the operator   accept the request by this fingerprint: `fededge devices accept`
  3. on the box        take the answer: certificate, CA, the coordinator's key, agent.toml

Request and answer are files, or with --broker messages: the box then waits for its answer. Neither
holds a secret. A box that is enrolled asks again, with the same key, to renew its certificate; its
agent.toml is kept.

examples:
  fededge enroll --device gate-7 --out /etc/fededge --request gate-7.request
  fededge enroll --device gate-7 --out /etc/fededge --answer gate-7.answer
  fededge enroll --device gate-7 --out /etc/fededge --answer gate-7.answer \\
    --ca-fingerprint 5e2c-81f0-… --data folder:/srv/camera/labelled
  fededge enroll --device gate-7 --out /etc/fededge --broker broker.example --federation gates \\
    --certificates enrolment
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("--device", required=True, metavar="ID", help="id of this box")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder of this box's files"
    )
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--request", type=Path, metavar="FILE", help="write the request here")
    way.add_argument("--answer", type=Path, metavar="FILE", help="take the operator's answer")
    way.add_argument("--broker", metavar="HOST", help="ask over this broker, and wait")
    _add_line(parser)
    parser.add_argument(
        "--ca-fingerprint",
        metavar="FINGERPRINT",
        help="refuse an answer of a CA whose key has another one; the operator knows it",
    )
    parser.add_argument(
        "--data",
        metavar="SOURCE[:PATH]",
        default="none",
        help="examples of the device, such as folder:images, for agent.toml",
    )
    parser.set_defaults(run=run)


def _add_line(parser: argparse.ArgumentParser) -> None:
    line = parser.add_argument_group("over a broker")
    line.add_argument("--federation", help="its name")
    line.add_argument(
        "--certificates",
        type=Path,
        metavar="DIR",
        help="folder with ca.crt, enrol.crt and enrol.key of `init certificates --enrolment`",
    )
    line.add_argument("--port", type=int, default=8883, help="of the broker (default: 8883)")
    line.add_argument(
        "--wait", type=float, default=3600.0, metavar="SECONDS", help="(default: 3600)"
    )


def run(options: argparse.Namespace) -> None:
    from fededge.enrolment.answer import LARGEST_ANSWER

    folder: Path = options.out.absolute()
    key = folder / f"{options.device}.key"
    if options.answer is not None:
        data = read_small("--answer", options.answer, LARGEST_ANSWER)
        _take(folder, key, options, data)
        return
    pem = _make(folder, key, options.device)
    if options.request is not None:
        write_public(options.request, pem)
        print(f"{options.request}: the request, for the operator")
        print(f"accept it there: fededge devices accept {options.device} --request …")
    else:
        _take(folder, key, options, _ask(options, pem))


def _make(folder: Path, key: Path, device: str) -> bytes:
    from fededge.enrolment.request import make_request, read_request

    make_folder(folder)
    there = key.exists()
    request = make_request(key, device)
    print(f"{key}: {'kept' if there else 'made'}; it stays on this box")
    print(f"fingerprint: {read_request(request).fingerprint}", flush=True)
    return request


def _ask(options: argparse.Namespace, pem: bytes) -> bytes:
    """Ask over the broker, as the user of boxes that are not enrolled yet."""
    from fededge.broker.access_list import ENROL
    from fededge.cli.enrolment.enrolment_line import ask
    from fededge.config import BrokerConfig
    from fededge.enrolment.request import read_request

    folder = options.certificates
    if folder is None or not options.federation:
        raise ConfigError("--broker needs --federation, and --certificates with enrol.crt")
    broker = BrokerConfig(
        host=options.broker,
        port=options.port,
        tls=True,
        ca=str(folder / "ca.crt"),
        certificate=str(folder / f"{ENROL}.crt"),
        key=str(folder / f"{ENROL}.key"),
    )
    accept = f"fededge devices accept {options.device} …"
    print(f"{options.device} is pending; accept it: {accept}", flush=True)
    return ask(broker, options.federation, read_request(pem), pem, options.wait)


def _take(folder: Path, key: Path, options: argparse.Namespace, data: bytes) -> None:
    from fededge.enrolment.answer import read_answer
    from fededge.enrolment.request import fingerprint, read_key

    own = read_key(key).public_key()
    answer = read_answer(data, options.device, own)
    _check_ca(folder, answer, options.ca_fingerprint)
    facts = answer.facts
    write_public(folder / "ca.crt", facts.ca.encode())
    if facts.trusted_key:
        write_public(folder / "signing.pub", facts.trusted_key.encode())
    write_public(folder / f"{facts.device}.crt", facts.certificate.encode())
    config = folder / "agent.toml"
    kept = config.exists()
    if not kept:
        write_public(config, _configuration(config, facts, options.data).encode())
    print(f"{folder / facts.device}.crt: taken, for the key {fingerprint(own)}")
    print(f"{folder / 'ca.crt'}: the CA's fingerprint is {answer.ca_fingerprint}")
    print(f"{config}: {'kept as it is' if kept else 'made'}")
    print(f"next: fededge doctor --config {config}")
    if service_state(config) != "state":
        instance = "" if folder == SERVICES else f" --instance {folder.name}"
        print(f"then: sudo fededge install-service agent{instance} --now")


def _check_ca(folder: Path, answer: TrustedAnswer, wanted: str | None) -> None:
    """Refuse a CA that is not the one of which the operator, or an earlier answer, told."""
    from fededge.enrolment.request import same_fingerprint

    if wanted is not None and not same_fingerprint(wanted, answer.ca_fingerprint):
        raise ConfigError(
            f"--ca-fingerprint {wanted}: the answer's CA has {answer.ca_fingerprint}; it is not "
            "the operator's, so nothing was written"
        )
    path = folder / "ca.crt"
    if path.exists() and read_file("--out", path).decode(errors="replace") != answer.facts.ca:
        raise ConfigError(
            f"{path}: this box knows another CA than the answer's ({answer.ca_fingerprint}); if "
            "the operator has a new one, move this file away"
        )


def _configuration(path: Path, facts: EnrolmentAnswer, data: str) -> str:
    from fededge.cli.operation.init import data_section
    from fededge.config import AgentConfig, template

    folder = path.parent
    files = {"ca": "ca.crt", "certificate": f"{facts.device}.crt", "key": f"{facts.device}.key"}
    broker = {"host": facts.host, "port": facts.port, "tls": True}
    values = {
        "federation": facts.federation,
        "device": facts.device,
        "state": service_state(path),
        "broker": {**broker, **{name: str(folder / file) for name, file in files.items()}},
        "data": data_section(data, written=True),
    }
    if facts.trusted_key:
        values["trusted_key"] = str(folder / "signing.pub")
    return template(AgentConfig, values)


def read_small(flag: str, path: Path, most: int) -> bytes:
    """Read a file that somebody else may have made."""
    try:
        return read_bounded(path, most)
    except OSError as error:
        raise ConfigError(f"{flag}: '{path}' cannot be read ({error.strerror})") from None
