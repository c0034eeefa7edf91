"""The run's network beside the journal: a coordinator that restarts need not build it with torch.

It is a copy of what the configuration gives. One that is missing, damaged, of another format or of
another configuration is not used: the network is built, and the journal refuses it if it differs.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import msgspec
from msgspec import Struct

from fededge import __version__
from fededge.errors import DiskFullError
from fededge.flat import Entry, Layout
from fededge.model_spec import ModelSpec
from fededge.models import announced_name
from fededge.storage.files import replace_file
from fededge.storage.sealed import read_sealed, sealed
from fededge_server.model.network import Founded, NetworkRequest

__all__ = ["keep_network", "kept_network"]

log = logging.getLogger("coordinator")

FORMAT = 1


class KeptNetwork(Struct, frozen=True, forbid_unknown_fields=True):
    """Spec and layout. `built_from`: the hash of the configuration and of FedEdge's version."""

    format: int
    built_from: str
    spec: ModelSpec
    entries: tuple[Entry, ...]


def kept_network(folder: Path, wanted: NetworkRequest) -> Founded | None:
    """The network that an earlier process has built of the same configuration, without values."""
    path = _path(folder)
    kept = read_sealed(path, KeptNetwork)
    if kept is None and path.exists():
        log.warning("%s: damaged, or of another format; the network is built again", path)
    if kept is None or (kept.format, kept.built_from) != (FORMAT, _origin(wanted)):
        return None
    return Founded.without_values(kept.spec, Layout(kept.entries))


def keep_network(folder: Path, wanted: NetworkRequest, founded: Founded) -> None:
    """Keep the network of a run whose first version is in the journal."""
    kept = KeptNetwork(FORMAT, _origin(wanted), founded.spec, founded.layout.entries)
    try:
        replace_file(_path(folder), sealed(kept) + b"\n")
    except DiskFullError as error:
        log.warning("%s; the next start builds the network again", error)


def _path(folder: Path) -> Path:
    return folder / "network.json"


def _origin(wanted: NetworkRequest) -> str:
    model = msgspec.structs.asdict(wanted.model)
    model.pop("weights", None)  # numbers, which change nothing in the network
    model["name"] = announced_name(wanted.model.name)  # a user's file may have changed
    facts = (__version__, model, wanted.data, wanted.method, wanted.seed)
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()
