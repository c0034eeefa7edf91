"""The common part of services: config file, logs, and a clean stop on SIGTERM."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Protocol

from fededge._internal import logs

__all__ = ["add_service_options", "run_until_signal"]


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
