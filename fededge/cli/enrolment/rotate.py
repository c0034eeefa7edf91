"""`fededge rotate`: new passwords, certificates and signing keys, while the old ones are valid."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fededge.errors import ConfigError

if TYPE_CHECKING:
    from fededge.config import BrokerConfig

__all__ = ["add_to"]

TEXT = """\
Replace passwords, certificates and signing keys while the fleet runs.

  certificates   make new ones for --devices, or for all that expire within --expiring days; the old
                 ones stay valid until they expire, so each machine changes when it suits
  password       make a new password for --devices: each file of secrets then holds the new and the
                 old one, and an agent tries both; with --finish the broker takes the new one
  key            make a second signing key: signing.pub then holds both, and agents trust both; with
                 --finish the coordinator signs with the new one, and signing.pub has it alone

Carry the files to their machines between the two steps. With --config, the coordinator's, --finish
tells a running Mosquitto the new passwords; without it the broker needs a restart.

examples:
  fededge rotate certificates --out pki --expiring 60
  fededge rotate password --out broker --devices gate-7
  fededge rotate password --out broker --devices gate-7 --finish --config coordinator.toml
  fededge rotate key --out keys
  fededge rotate key --out keys --finish
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("what", choices=tuple(ROTATIONS), help="what to replace")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the folder of `fededge init`"
    )
    parser.add_argument(
        "--devices",
        nargs="+",
        default=[],
        metavar="ID",
        help="whose; also coordinator, and broker for certificates",
    )
    parser.add_argument(
        "--expiring", type=int, metavar="DAYS", help="all certificates that expire within DAYS"
    )
    parser.add_argument(
        "--days", type=int, default=1825, help="validity of certificates (default: 1825)"
    )
    parser.add_argument("--finish", action="store_true", help="the second step: the new one alone")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the coordinator's, to reach the broker"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    ROTATIONS[options.what](options)


def _certificates(options: argparse.Namespace) -> None:
    from fededge.credentials.rotation import expiring, renew

    if not 1 <= options.days <= 36500:
        raise ConfigError(f"--days {options.days}: must be 1 to 36500")
    names = list(options.devices)
    if options.expiring is not None:
        names += [name for name in expiring(options.out, options.expiring) if name not in names]
    elif not names:
        raise ConfigError("give --devices, or --expiring with a number of days")
    for name in names:
        made = renew(options.out, name, options.days)
        kept = "with a new key" if made else "for the key that is on its box"
        print(f"{options.out / name}.crt: made, {kept}; the one before is valid until it expires")
    if not names:
        print(f"no certificate expires within {options.expiring} days")


def _password(options: argparse.Namespace) -> None:
    from fededge.broker.password_rotation import finish_password, prepare_password

    if not options.devices:
        raise ConfigError("give --devices")
    broker = _broker(options)  # before the file of its password changes
    for name in options.devices:
        if options.finish:
            password = finish_password(options.out, name)
            print(f"{name}: {_tell(broker, name, password)}")
        else:
            path = prepare_password(options.out, name)
            print(f"{path}: holds the new password and the old one; carry it to {name}")
    if not options.finish:
        print("then, once they have it: the same command with --finish")


def _broker(options: argparse.Namespace) -> BrokerConfig | None:
    from fededge.config import CoordinatorConfig, load

    return None if options.config is None else load(options.config, CoordinatorConfig).broker


def _tell(broker: BrokerConfig | None, user: str, password: str) -> str:
    """Tell the running broker; the result in words."""
    from fededge.cli.enrolment.broker_control import tell_password

    if broker is None:
        return "the file has the new password; now: systemctl restart mosquitto"
    problem = tell_password(broker, user, password)
    if problem:
        return f"the file has the new password, but {problem}; now: systemctl restart mosquitto"
    return "the broker takes the new password alone"


def _key(options: argparse.Namespace) -> None:
    from fededge.credentials.rotation import finish_key, prepare_key

    keys: Path = options.out
    if options.finish:
        finish_key(keys)
        print(f"{keys / 'signing.key'}: is the new key; restart the coordinator with it")
        print(f"{keys / 'signing.pub'}: holds the new key alone; carry it to every box")
        return
    prepare_key(keys)
    print(f"{keys / 'signing.pub'}: holds the new key and the old one; carry it to every box")
    print("then, once they have it: the same command with --finish")


ROTATIONS = {"certificates": _certificates, "password": _password, "key": _key}
