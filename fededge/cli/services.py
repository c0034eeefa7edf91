"""The common part of services: config file, logs, the service manager, and a clean stop."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from fededge import __version__
from fededge._internal import logs

if TYPE_CHECKING:
    from fededge.config import AgentConfig, CoordinatorConfig

__all__ = [
    "Claim",
    "Progress",
    "add_service_options",
    "load_config",
    "run_service",
    "run_until_signal",
]

log = logging.getLogger("service")

ATTEMPT = 2.0
"""Longest `[broker] wait` of a service: RepeatedClaim repeats it, and the watchdog waits for it."""

S = TypeVar("S", "AgentConfig", "CoordinatorConfig")
Claim = Callable[..., None]
Progress = Callable[[], None]


class Service(Protocol):
    def run(self) -> object: ...
    def stop(self) -> None: ...


def add_service_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="its TOML file")
    parser.add_argument("--verbose", action="store_true", help="log more")
    parser.add_argument(
        "--log-format",
        choices=("auto", "text", "json"),
        help="format of the log; auto: json under systemd, else text (default: as configured)",
    )


def load_config(options: argparse.Namespace, kind: type[S]) -> S:
    """Load the configuration, and log as it and the flags say; so does the error of a bad file."""
    from msgspec.structs import replace

    from fededge.config import load
    from fededge.service.notify import Notifier

    os.environ[logs.FORM_VARIABLE] = options.log_format or "auto"
    config = load(options.config, kind)
    if Notifier.from_environment().active:
        brief = min(config.broker.wait, ATTEMPT)
        config = replace(config, broker=replace(config.broker, wait=brief))
    level = "debug" if options.verbose else config.log.level
    logs.set_up(level, options.log_format or config.log.format)
    return config


def run_until_signal(service: Service) -> None:
    """Run a service until it ends; SIGTERM and SIGINT stop it cleanly."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.stop())
    service.run()


class Supervised:
    """A service that tells systemd how it is, and waits for its broker; on a terminal, it fails.

    Args:
        make: the service, from a function that claims its name and one that notes progress.
        claim: claims the name; TransportError if the broker is not there.
    """

    def __init__(self, make: Callable[[Claim, Progress], Service], claim: Claim) -> None:
        from fededge.service.notify import Notifier
        from fededge.service.repeated_claim import RepeatedClaim
        from fededge.service.watchdog import Watchdog

        self.signalled = False
        self.notifier = Notifier.from_environment()
        progress = Watchdog(self.notifier).progress
        self.waiting = RepeatedClaim(claim, self.notifier, progress)
        self.service = make(self.waiting if self.notifier.active else claim, progress)

    def run(self) -> None:
        from fededge.service.repeated_claim import StopRequestedError

        if self.notifier.active:
            faulthandler.enable()  # the watchdog's SIGABRT leaves in the log where each thread hung
        log.info("starting: FedEdge %s", __version__)
        with contextlib.suppress(StopRequestedError):
            self.service.run()
        log.info("stopped%s", " by a signal" if self.signalled else "")

    def stop(self) -> None:
        """Ask `run` to return; safe from a signal handler, which must not log."""
        self.signalled = True
        self.notifier.stopping()
        self.waiting.stop()
        self.service.stop()


def run_service(make: Callable[[Claim, Progress], Service], claim: Claim) -> None:
    """Run a supervised service until it ends."""
    run_until_signal(Supervised(make, claim))
