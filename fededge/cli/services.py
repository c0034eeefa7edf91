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

__all__ = ["Claim", "Progress", "add_service_options", "run_until_signal"]

Claim = Callable[..., None]
Progress = Callable[[], None]


class Service(Protocol):
    def run(self) -> object: ...
    def stop(self) -> None: ...


def add_service_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="its TOML file")
    parser.add_argument("--verbose", action="store_true", help="log more")


def run_until_signal(
    make: Callable[[Claim, Progress], Service], claim: Claim, verbose: bool
) -> None:
    """Run a service until it ends; SIGTERM and SIGINT stop it cleanly.

    Args:
        make: the service, from a function that claims its name and one that notes progress.
        claim: claims the name. Under systemd it is repeated until the broker is there.
        verbose: log more.
    """
    from fededge.service.notify import Notifier
    from fededge.service.patience import PatientClaim, StopRequestedError
    from fededge.service.watchdog import Watchdog

    logs.set_up(verbose)
    notifier = Notifier.from_environment()
    if notifier.active:
        faulthandler.enable()  # the watchdog's SIGABRT leaves in the log where each thread hung
    progress = Watchdog(notifier).progress
    patient = PatientClaim(claim, notifier, progress)
    service = make(patient if notifier.active else claim, progress)

    def stop(*_: object) -> None:
        notifier.stopping()
        patient.stop()
        service.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with contextlib.suppress(StopRequestedError):
        service.run()
