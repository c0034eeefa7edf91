"""A deadline for reading one HTTP request from a client that may be slow."""

from __future__ import annotations

import io
import socket
import time
from typing import Any

__all__ = ["DeadlineReader"]


class DeadlineReader(io.RawIOBase):
    """Reads from a socket until a request's deadline, then raises TimeoutError.

    A socket's own timeout restarts with every byte, so a client that sends one byte now and then
    could hold a thread for ever.
    """

    def __init__(self, link: socket.socket, seconds: float) -> None:
        self.link = link
        self.seconds = seconds
        self.end: float | None = None

    def begin(self) -> None:
        """Expect a new request: its time starts with its first byte, which may take as long."""
        self.end = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        left = self.seconds if self.end is None else self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self.link.settimeout(left)
        count = self.link.recv_into(buffer)
        if self.end is None:
            self.end = time.monotonic() + self.seconds
        return count
