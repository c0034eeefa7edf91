"""`fededge devices`: list the devices of a federation, and order what becomes of them."""

from __future__ import annotations

import argparse
import re
from typing import Any

from fededge.cli.fleet.access import change_access
from fededge.cli.fleet.coordinator_client import add_fleet_options, fleet_of, give, print_json
from fededge.errors import ConfigError

__all__ = ["add_to"]

TEXT = """\
List the devices of a federation, and order what becomes of them. Run it on the coordinator's
machine: it talks to the running coordinator, or works on its folder while it is down.

  drain       the device ends its turn, and is not asked again
  rest        the same for a stated time
  quarantine  its updates are refused, and it is not asked; an update of the open round is dropped
  revoke      the same, and the broker cuts it off: for a box that is lost or stolen
  release     it is asked again: ends drain, rest, quarantine and revocation
  forget      all records of it go; if it joins again, it is new
  pending     list the boxes that ask to be enrolled over the broker
  accept      enrol a box that asks with `fededge enroll`

examples:
  fededge devices list --config coordinator.toml
  fededge devices show cam-1 --config coordinator.toml
  fededge devices rest cam-1 --for 2h --config coordinator.toml
  fededge devices quarantine cam-1 --reason "its lens is covered" --config coordinator.toml
"""

ACTIONS = {
    "list": "show all devices",
    "show": "show one device",
    "drain": "let it end its turn, and do not ask it again",
    "rest": "do not ask it for a while",
    "quarantine": "refuse its updates, and do not ask it",
    "revoke": "refuse its updates, and have the broker shut it out",
    "release": "ask it again: ends drain, rest, quarantine and revocation",
    "forget": "remove all records of it",
}

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    for name, text in ACTIONS.items():
        action = actions.add_parser(name, help=text, description=f"{text.capitalize()}.")
        if name != "list":
            action.add_argument("device", metavar="DEVICE", help="its id")
        if name == "rest":
            action.add_argument(
                "--for", dest="time", required=True, metavar="TIME", help="30s, 20m, 2h or 3d"
            )
        if name in ("quarantine", "revoke"):
            action.add_argument("--reason", default="", help="kept in the journal")
        add_fleet_options(action)
    parser.set_defaults(run=run)
    _add_enrolment(actions)


def _add_enrolment(actions: Any) -> None:
    """Add the actions for boxes that are not enrolled yet."""
    from fededge.cli.enrolment import accept

    text = "list the boxes that ask to be enrolled over the broker"
    action = actions.add_parser("pending", help=text, description=f"{text.capitalize()}.")
    add_fleet_options(action)
    action.set_defaults(run=accept.list_pending)
    formatter = argparse.RawDescriptionHelpFormatter
    text = "enrol a box that asks with `fededge enroll`"
    accept.add_to(actions.add_parser("accept", help=text, formatter_class=formatter))


def run(options: argparse.Namespace) -> None:
    if options.action == "list":
        _list(options)
    elif options.action == "show":
        _show(options)
    elif options.action in ("revoke", "release"):
        change_access(options, _order(options))
    else:
        give(options, _order(options))


def _order(options: argparse.Namespace) -> Any:
    from fededge_server.machine.fleet import orders

    match options.action:
        case "rest":
            return orders.RestOrder(options.device, seconds(options.time))
        case "quarantine":
            return orders.QuarantineOrder(options.device, options.reason)
        case "revoke":
            return orders.RevokeOrder(options.device, options.reason)
        case "drain":
            return orders.DrainOrder(options.device)
        case "release":
            return orders.ReleaseOrder(options.device)
        case _:
            return orders.ForgetOrder(options.device)


def seconds(text: str) -> float:
    """The seconds of '90s', '20m', '2h' or '3d'."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text.strip())
    if found is None:
        raise ConfigError(f"--for: '{text}' is no time; write it as 30s, 20m, 2h or 3d")
    return float(int(found[1]) * UNITS[found[2]])


def _list(options: argparse.Namespace) -> None:
    from fededge.cli.fleet.device_table import print_devices

    devices = fleet_of(options).devices()
    if options.json:
        print_json(devices)
    else:
        print_devices(devices)


def _show(options: argparse.Namespace) -> None:
    device = fleet_of(options).device(options.device)
    if options.json:
        print_json(device)
        return
    from fededge._internal.plain_text import plain
    from fededge.cli.fleet.device_table import cells_of

    for name, text in {**cells_of(device), "software": device.software}.items():
        if text:
            print(f"{name}: {plain(text)}")
