"""Messages to the service manager: systemd's notification protocol, without a library."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

from fededge._internal.plain_text import plain

__all__ = ["Notifier"]

MAX_STATUS = 400
"""Longest status text, in characters: `systemctl status` shows one line."""


class Notifier:
    """Sends datagrams to systemd's socket; without one (on a terminal) it does nothing."""

    def __init__(self, address: str = "", watchdog: float = 0.0) -> None:
        """`watchdog`: seconds without a sign of life after which systemd restarts us; 0: never."""
        self.address = address
        self.watchdog = watchdog

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Notifier:
        """The manager that started this process, if any."""
        micros = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog = int(micros) / 1e6 if mine and micros.isdecimal() else 0.0
        return cls(environment.get("NOTIFY_SOCKET", ""), watchdog)

    @property
    def active(self) -> bool:
        return bool(self.address)

    def ready(self) -> None:
        """The service is up; whoever waited for its start goes on."""
        self._send("READY=1")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(f"STATUS={plain(text, MAX_STATUS)}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        """A manager that does not listen must not end the service."""
        if not self.address:
            return
        abstract = self.address.startswith("@")
        address = "\0" + self.address[1:] if abstract else self.address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
            one.sendto(text.encode(), address)
