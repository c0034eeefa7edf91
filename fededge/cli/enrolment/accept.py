"""`fededge devices accept`: sign a box's request once its fingerprint was compared."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fededge.cli.enrolment.enroll import read_small
from fededge.errors import ConfigError, RefusedError
from fededge.storage.files import read_file, write_public

if TYPE_CHECKING:
    from fededge.config import CoordinatorConfig
    from fededge.enrolment.answer import EnrolmentAnswer
    from fededge.enrolment.request import EnrolmentRequest

__all__ = ["add_to", "list_pending"]

TEXT = """\
Accept a box that asks with `fededge enroll`: sign a certificate for its key.

Compare the fingerprint with the one that the box shows, by a way that nobody else controls: read it
on its screen, or have somebody there read it out. Without --fingerprint it is shown, and you are
asked. The CA's key may be on a machine without network: carry the request there, the answer back.
Without --request the box has asked over the broker, and the answer goes there.

examples:
  fededge devices accept gate-7 --config coordinator.toml --certificates pki \\
    --fingerprint 5e2c-81f0-…
  fededge devices accept gate-7 --request gate-7.request --answer gate-7.answer \\
    --certificates pki --federation gates --broker broker.example --trusted-key signing.pub
"""

TLS_PORT = 8883


@dataclass(frozen=True)
class Site:
    """Where the federation is; `trusted_key`: the coordinator's public key as PEM, or empty."""

    federation: str
    host: str
    port: int
    trusted_key: str


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("device", metavar="ID", help="id of the box")
    parser.add_argument("--fingerprint", help="as the box shows it")
    parser.add_argument("--request", type=Path, metavar="FILE", help="of the box")
    parser.add_argument("--answer", type=Path, metavar="FILE", help="for the box; with --request")
    parser.add_argument(
        "--certificates",
        type=Path,
        required=True,
        metavar="DIR",
        help="the folder of `fededge init certificates`, with the CA's key",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the coordinator's, for the flags below"
    )
    parser.add_argument("--federation", help="name of the federation")
    parser.add_argument("--broker", metavar="HOST", help="the broker, as the box reaches it")
    parser.add_argument("--port", type=int, help=f"of the broker (default: {TLS_PORT})")
    parser.add_argument("--trusted-key", type=Path, metavar="FILE", help="signing.pub")
    parser.add_argument(
        "--days", type=int, default=1825, help="validity of the certificate (default: 1825)"
    )
    parser.add_argument(
        "--replace", action="store_true", help="the device is enrolled, and has a new key"
    )
    parser.set_defaults(run=run)


def list_pending(options: argparse.Namespace) -> None:
    """List the boxes whose requests wait at the broker; anybody may have written them."""
    from fededge.cli.enrolment.enrolment_line import pending
    from fededge.config import CoordinatorConfig, load

    config = load(options.config, CoordinatorConfig)
    found = {
        name: request.fingerprint
        for name, request in pending(config.broker, config.federation).items()
    }
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for name, fingerprint in found.items():
        print(f"{name}  {fingerprint}")
    if not found:
        print("no box asks to be enrolled")


def run(options: argparse.Namespace) -> None:
    from fededge.config import CoordinatorConfig, load
    from fededge.enrolment.answer import EnrolmentAnswer, accept, ca_fingerprint

    if not 1 <= options.days <= 36500:
        raise ConfigError(f"--days {options.days}: must be 1 to 36500")
    if (options.request is None) != (options.answer is None):
        raise ConfigError("--request and --answer go together; without both, over the broker")
    config = None if options.config is None else load(options.config, CoordinatorConfig)
    site = _site(options, config)
    request = _request(options, config)
    if request.device != options.device:
        raise ConfigError(f"--request: it is of device '{request.device}', not '{options.device}'")
    _confirm(request, options.fingerprint)
    certificate = accept(options.certificates, request, options.days, options.replace)
    ca = read_file("--certificates", options.certificates / "ca.crt").decode("ascii", "replace")
    facts = (site.federation, site.host, site.port)
    answer = EnrolmentAnswer(request.device, *facts, certificate, ca, site.trusted_key)
    print(f"{request.device}: accepted, with the key {request.fingerprint}")
    print(f"the CA is {ca_fingerprint(ca)}")
    _give(options, config, answer)


def _request(options: argparse.Namespace, config: CoordinatorConfig | None) -> EnrolmentRequest:
    from fededge.cli.enrolment.enrolment_line import pending_request
    from fededge.enrolment.request import LARGEST_REQUEST, read_request

    if options.request is not None:
        return read_request(read_small("--request", options.request, LARGEST_REQUEST))
    if config is None:
        raise ConfigError("give --request FILE, or --config for a request at the broker")
    return pending_request(config.broker, config.federation, options.device)


def _give(
    options: argparse.Namespace, config: CoordinatorConfig | None, answer: EnrolmentAnswer
) -> None:
    import msgspec

    from fededge.cli.enrolment.enrolment_line import send_answer

    data, device = msgspec.json.encode(answer), answer.device
    if options.answer is None:
        assert config is not None
        send_answer(config.broker, config.federation, device, data)
        print("the answer is at the broker; the box takes it by itself")
        return
    write_public(options.answer, data)
    print(f"{options.answer}: the answer, for the box")
    print(f"on the box: fededge enroll --device {device} --answer {options.answer.name} …")


def _confirm(request: EnrolmentRequest, given: str | None) -> None:
    """Return if the operator vouches for the key; else nothing is signed."""
    from fededge.enrolment.request import same_fingerprint

    shown = request.fingerprint
    if given is not None:
        if not same_fingerprint(given, shown):
            raise RefusedError(
                f"--fingerprint {given}: the request of {request.device} has {shown}; it is not "
                "the box's, so nothing was signed"
            )
        return
    print(f"{request.device} asks with the key {shown}")
    if not sys.stdin.isatty():
        raise ConfigError("compare it with the box's, then give --fingerprint")
    if input("Does the box show the same fingerprint? [y/N] ").strip().lower() not in ("y", "yes"):
        raise RefusedError(f"{request.device} is not accepted: nothing was signed")


def _site(options: argparse.Namespace, config: CoordinatorConfig | None) -> Site:
    if config is not None:
        return _configured(options, config)
    if not options.federation or not options.broker:
        raise ConfigError("give the coordinator's --config, or --federation and --broker")
    return Site(
        options.federation, options.broker, options.port or TLS_PORT, _trusted_key(options) or ""
    )


def _configured(options: argparse.Namespace, config: CoordinatorConfig) -> Site:
    """The coordinator's own settings; a flag goes before them."""
    key = _trusted_key(options)
    if key is None and config.signing_key:
        key = _public_keys(Path(config.signing_key))
    return Site(
        options.federation or config.federation,
        options.broker or config.broker.host,
        options.port or config.broker.port,
        key or "",
    )


def _public_keys(private: Path) -> str:
    """The public key of the coordinator's; during a rotation both, from `signing.pub` beside it."""
    from fededge.credentials.signing_keys import public_pem, read_signing_key, read_trusted_keys

    own, public = read_signing_key(private), private.with_suffix(".pub")
    if public.exists() and own.public_key() in read_trusted_keys(public):
        return public.read_text("ascii")
    return public_pem(own).decode()


def _trusted_key(options: argparse.Namespace) -> str | None:
    from fededge.credentials.signing_keys import read_trusted_keys

    if options.trusted_key is None:
        return None
    read_trusted_keys(options.trusted_key)
    return read_file("--trusted-key", options.trusted_key).decode("ascii", "replace")
