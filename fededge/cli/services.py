"""The common part of services: config file, logs, the service manager, and a clean stop."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from fededge._internal import logs

__all__ = ["Claim", "Progress", "add_service_options", "run_service", "run_until_signal"]

Claim = Callable[..., None]
Progress = Callable[[], None]


class Service(Protocol):
    def run(self) -> object: ...
    def stop(self) -> None: ...


def add_service_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="its TOML file")
    parser.add_argument("--verbose", action="store_true", help="log more")


def run_until_signal(service: Service, verbose: bool) -> None:
    """Run a service until it ends; SIGTERM and SIGINT stop it cleanly."""
    logs.set_up(verbose)
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
        from fededge.service.patience import PatientClaim
        from fededge.service.watchdog import Watchdog

        self.notifier = Notifier.from_environment()
        progress = Watchdog(self.notifier).progress
        self.patient = PatientClaim(claim, self.notifier, progress)
        self.service = make(self.patient if self.notifier.active else claim, progress)

    def run(self) -> None:
        from fededge.service.patience import StopRequestedError

        if self.notifier.active:
            faulthandler.enable()  # the watchdog's SIGABRT leaves in the log where each thread hung
        with contextlib.suppress(StopRequestedError):
            self.service.run()

    def stop(self) -> None:
        """Ask `run` to return; safe from a signal handler."""
        self.notifier.stopping()
        self.patient.stop()
        self.service.stop()


def run_service(
    make: Callable[[Claim, Progress], Service], claim: Claim, options: argparse.Namespace
) -> None:
    """Run a supervised service until it ends."""
    run_until_signal(Supervised(make, claim), options.verbose)
