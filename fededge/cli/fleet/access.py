"""`fededge devices revoke` and `release`: the coordinator's word, and then the broker's."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from fededge.cli.fleet.coordinator_client import fleet_of, give
from fededge.errors import RefusedError

__all__ = ["change_access"]


def change_access(options: argparse.Namespace, order: Any) -> None:
    """Give the order, and have the broker confirm what it means for it.

    The coordinator tells the broker, too; it cannot do so while it is down, and it does not wait.

    Raises:
        RefusedError: the order stands, but the broker has not confirmed it.
    """
    from fededge.broker.dynamic_security import admission, denial
    from fededge.cli.enrolment.broker_control import tell_broker
    from fededge.config import CoordinatorConfig, load

    revoked = options.action == "revoke"
    before = [] if revoked else [each.standing for each in _devices(options)]
    give(options, order)
    if not revoked and "revoked" not in before:
        return
    broker = load(options.config, CoordinatorConfig).broker
    problem = tell_broker(broker, partial(denial if revoked else admission, options.device))
    if problem:
        does = "shut it out" if revoked else "let it in"
        raise RefusedError(f"the coordinator obeys, but {problem}; {does} there (docs/security.md)")
    if not options.json:
        print(f"the broker {'has cut it off' if revoked else 'lets it in again'}")


def _devices(options: argparse.Namespace) -> list[Any]:
    """The device that is meant, if the coordinator knows it."""
    return [each for each in fleet_of(options).devices() if each.device == options.device]
