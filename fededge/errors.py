"""Every error that FedEdge raises on purpose, sorted by what its reader has to do.

FedEdgeError
├── ConfigError      edit the configuration, a flag or an environment variable
├── DataError        fix the device's data: a folder, a file, a missing class
├── LayoutError      two models do not have the same tensors
├── MethodError      a method or a composition of methods is used wrongly
├── TransportError   the broker cannot be reached, or refuses us
├── RefusedError     the federation refuses this coordinator or agent
├── WireError        drop this message: bytes from outside are not what they must be
├── EgressError      a bug: something outside the egress contract was about to leave
├── StoreError       a file of our own is unreadable or locked
│   └── DiskFullError  free some space: what was to be written is not lost, it comes again
└── ExportError      an exported model does not agree with the one it was made from
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
    "LayoutError",
    "MethodError",
    "RefusedError",
    "StoreError",
    "TransportError",
    "WireError",
]

MOST_QUOTED = 1000
"""Characters of an error about bytes from outside."""


class FedEdgeError(Exception):
    """Base of all errors whose message is written for a person: one sentence, no traceback."""

    exit_code = 1


class ConfigError(FedEdgeError):
    exit_code = 2


class DataError(FedEdgeError):
    exit_code = 2


class LayoutError(FedEdgeError):
    exit_code = 2


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
    """Its text quotes bytes from outside: it is plain, and short enough to be sent back."""

    def __init__(self, text: str) -> None:
        super().__init__(plain(text, MOST_QUOTED))


class EgressError(FedEdgeError):
    pass


class ExportError(FedEdgeError):
    pass
