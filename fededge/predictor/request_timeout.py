"""Reading from a client that may be slow: a request has a time for the whole of it."""

from __future__ import annotations

import io
import socket
import time
from typing import Any

__all__ = ["Patience"]


class Patience(io.RawIOBase):
    """What a socket receives, until the time of a request is over.

    A timeout of the socket's own begins anew with every byte, so a client that sends one now and
    then would hold its thread for ever.
    """

    def __init__(self, link: socket.socket, seconds: float) -> None:
        self.link = link
        self.seconds = seconds
        self.end: float | None = None

    def begin(self) -> None:
        """A new request: its time begins with its first byte, and so long it is waited for."""
        self.end = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        left = self.seconds if self.end is None else self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time of the request is over")
        self.link.settimeout(left)
        count = self.link.recv_into(buffer)
        if self.end is None:
            self.end = time.monotonic() + self.seconds
        return count
