"""Every error that FedEdge raises on purpose, sorted by the remedy.

FedEdgeError
├── ConfigError      edit the configuration, a flag or an environment variable
├── DataError        fix the device's data: a folder, a file, a missing class
├── LayoutError      two models have different tensors
├── HardwareError    the training device ran out of memory, or failed
├── MethodError      a method or a composition of methods is used wrongly
├── TransportError   the broker is unreachable, or refuses the connection
├── RefusedError     the federation refuses this coordinator or agent
├── WireError        drop this message: bytes from outside are malformed or forged
├── EgressError      a bug: data outside the egress contract was about to leave the device
├── StoreError       a file of FedEdge's own is unreadable or locked
│   └── DiskFullError  free some space: the write is retried, nothing is lost
├── ExportError      an exported model does not agree with its source model
└── ProcessDiedError a process of ours was killed or crashed: what it did is tried again
"""

from __future__ import annotations

from fededge._internal.plain_text import plain

__all__ = [
    "ConfigError",
    "DataError",
    "DiskFullError",
    "EgressError",
    "ExportError",
    "FedEdgeError",
    "HardwareError",
    "LayoutError",
    "MethodError",
    "ProcessDiedError",
    "RefusedError",
    "StoreError",
    "TransportError",
    "WireError",
]

MAX_QUOTED = 1000
"""Longest text, in characters, of an error about bytes from outside."""


class FedEdgeError(Exception):
    """Base of all errors whose message is for the user: one sentence, no traceback."""

    exit_code = 1


class ConfigError(FedEdgeError):
    exit_code = 2


class DataError(FedEdgeError):
    """`public` is the part for other machines: it names no file and no label of the device's."""

    exit_code = 2

    def __init__(self, text: str, public: str = "") -> None:
        super().__init__(text)
        self.public = public


class LayoutError(FedEdgeError):
    exit_code = 2


class HardwareError(FedEdgeError):
    """The accelerator ran out of memory, or failed; another turn may work."""


class MethodError(FedEdgeError):
    exit_code = 2


class TransportError(FedEdgeError):
    exit_code = 2


class RefusedError(FedEdgeError):
    exit_code = 2


class StoreError(FedEdgeError):
    exit_code = 2


class DiskFullError(StoreError):
    pass


class WireError(FedEdgeError):
    """Its text may quote bytes from outside, so it is escaped and cut to a length safe to send."""

    def __init__(self, text: str) -> None:
        super().__init__(plain(text, MAX_QUOTED))


class EgressError(FedEdgeError):
    pass


class ExportError(FedEdgeError):
    pass


class ProcessDiedError(FedEdgeError):
    exit_code = 2
