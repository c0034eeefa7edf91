"""The federation's network, and the version of its model that is current: in memory and on disk."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping

import msgspec

from fededge import methods
from fededge.config import CoordinatorConfig
from fededge.errors import DiskFullError
from fededge.federated.robust import norm_of
from fededge.flat import Vector
from fededge.method.base import State as MethodState
from fededge.storage.files import replacing
from fededge.storage.source import FileSource
from fededge.wire import chunks, tensors
from fededge.wire.encoding import Encoding
from fededge.wire.source import Source
from fededge_server.merging import Current
from fededge_server.network import Network
from fededge_server.store import Progress, Store

__all__ = ["Versions"]

log = logging.getLogger("coordinator")


class Versions:
    """The constructor only stores; `prepare` has the network built, `resume` loads its model."""

    def __init__(self, config: CoordinatorConfig, store: Store) -> None:
        self.config = config
        self.store = store
        self.network = Network(config.model, config.data, config.method, config.seed)
        self._norm: tuple[str, float] | None = None

    def prepare(self) -> None:
        config = self.config
        self.method = methods.method(config.method)
        self.encoding = Encoding.parse(config.transfer.encoding)
        self.spec, self.layout, self.model = self.network.start()

    def facts(self, run: str) -> dict[str, str]:
        """What a run is, and stays as long as it lasts."""
        config = self.config
        return {
            "run": run,
            "federation": config.federation,
            "method": str(self.method),
            "seed": str(config.seed),
            "model": f"{self.spec.name}, head {self.spec.head}",
            "layout": self.layout.hash,
            "encoding": str(self.encoding),
            "transfer.chunk_bytes": str(config.transfer.chunk_bytes),
            **_told("training", config.training),
            **_told("robust", config.robust),
            **{f"file of {name}": sha256 for name, sha256 in self.method.files.items()},
        }

    def resume(self) -> None:
        """Go on from the version that the journal names, or make the first one."""
        progress = self.store.progress()
        if progress is None:
            self.advance(0, self.model, self.method.initial(self.layout), {}, None)
            return
        self.progress = progress
        del self.model  # before there is another one
        self.model, state = self.store.load(progress.version, self.layout)
        self.state: MethodState = state
        log.info("resuming after round %d", progress.rounds_done)

    def go_back(self, version: str) -> None:
        """Make a version of an earlier one's model, with what the method remembered then."""
        model, state = self.store.load(version, self.layout)
        self.advance(self.progress.rounds_done + 1, model, state, {}, None, version)

    @property
    def norm(self) -> float:
        """The norm of the current model."""
        if self._norm is None or self._norm[0] != self.progress.version:
            norm = norm_of(self.layout.size, lambda span: self.model[span])
            self._norm = self.progress.version, norm
        return self._norm[1]

    def current(self, number: int) -> Current:
        return Current(number, self.progress.version, self.model, self.state)

    def advance(
        self,
        done: int,
        model: Vector,
        state: MethodState,
        reports: Mapping[str, Mapping[str, float]],
        seconds: float | None,
        restored: str = "",
    ) -> None:
        """Evaluate a model, and make it the current version: on disk first.

        Args:
            restored: the version that the model is of, if the run goes back to it.
        """
        sha256 = self.layout.sha256(model)
        version = f"{done:06d}-{sha256[:16]}"
        score = self.network.accuracy(model)
        progress = Progress(done, version, sha256, score, restored)
        self.store.advance(progress, self.layout, model, state, reports, seconds)
        self.progress, self.model, self.state = progress, model, state
        shown = "" if score is None else f", global accuracy {score:.1%}"
        log.info("version %s from %d updates%s", version, len(reports), shown)

    # What travels

    def payload(self) -> Source:
        """The file of the bytes that every device gets; if the disk is full, the bytes."""
        sent = self.method.send(self.state)
        if not sent and not self.encoding.zstd:
            return FileSource(self.store.model(self.progress.version))
        vectors = {"model": self.model, **sent}
        try:
            with replacing(self.store.published, synced=False) as file:
                self.encoding.send(file, self.layout, vectors)
        except DiskFullError:
            buffer = io.BytesIO()
            self.encoding.send(buffer, self.layout, vectors)
            return buffer.getvalue()
        return FileSource(self.store.published)

    @property
    def most_chunks(self) -> int:
        """Chunks that a version may have had: zstd makes of some less than of others."""
        size = tensors.payload_limit(self.layout, 1 + len(self.method.sends))
        return chunks.count(size, self.config.transfer.chunk_bytes)

    @property
    def update_limit(self) -> int:
        """More bytes than this cannot be an honest update."""
        return tensors.payload_limit(self.layout)


def _told(section: str, values: msgspec.Struct) -> dict[str, str]:
    """A section of the configuration, key by key."""
    return {f"{section}.{key}": str(value) for key, value in msgspec.structs.asdict(values).items()}
