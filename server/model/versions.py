"""The current version of the federation's model: in memory, on disk, and as it travels."""

from __future__ import annotations

import io
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fededge import methods
from fededge.config import CoordinatorConfig
from fededge.errors import ConfigError, DiskFullError
from fededge.federated.robust import norm_of
from fededge.federated.warm_start import StartWeights, read_weights
from fededge.flat import Layout, Vector
from fededge.method.base import State as MethodState
from fededge.method.stack import Stack
from fededge.model_spec import ModelSpec
from fededge.storage.files import replacing
from fededge.storage.source import FileSource
from fededge.wire import chunks, tensors
from fededge.wire.encoding import Encoding
from fededge.wire.messages import Manifest, round_of
from fededge.wire.source import Source
from fededge_server.machine.settings import Settings, told
from fededge_server.model.merging import Current
from fededge_server.model.network import Founded, Network
from fededge_server.model.run_settings import agree, begins_anew
from fededge_server.store import NewSettings, Progress, Store

__all__ = ["Versions", "run_identity"]

log = logging.getLogger("coordinator")


NOTHING = Progress(-1, "", "", None)
"""Before the first version."""


@dataclass
class Versions:
    """The current version, and what all versions of a run have in common.

    `settings` are those in force, and `config` has them. `state` is what the method's coordinator
    half remembers; it began anew when `renewed` rounds were done. `wall` is the time of day.
    """

    config: CoordinatorConfig
    store: Store
    network: Network
    run: str
    settings: Settings
    method: Stack
    encoding: Encoding
    spec: ModelSpec
    layout: Layout
    progress: Progress
    model: Vector
    state: MethodState
    renewed: int = 0
    wall: Callable[[], float] = time.time
    _norm: tuple[str, float] | None = None
    _written: chunks.Payload | None = None

    @classmethod
    def resume(
        cls,
        config: CoordinatorConfig,
        store: Store,
        network: Network,
        founded: Founded,
        wall: Callable[[], float] = time.time,
    ) -> Versions:
        """Go on from the version that the journal names, or make the first one."""
        spec, layout, model = founded
        run = store.fact("run") or uuid.uuid4().hex
        session = store.fact("session") or uuid.uuid4().hex[:16]
        progress = store.progress()
        start = _start(config, store, founded, begun=progress is not None)  # before it is a run
        store.agree({**run_identity(config, run, spec, layout), "session": session})
        settings = agree(store, config, progress, wall())
        config = settings.put_into(config)
        method, encoding = methods.method(config.method), Encoding.parse(config.transfer.encoding)
        state: MethodState = method.initial(layout)
        if progress is not None:
            model, state = store.load(progress.version, layout)
            log.info("resuming after round %d", progress.rounds_done)
        found = progress or NOTHING
        versions = cls(
            config,
            store,
            network,
            run,
            settings,
            method,
            encoding,
            spec,
            layout,
            found,
            model,
            state,
            store.renewed,
            wall,
        )
        if progress is None and start is None:
            versions.advance(0, model, state, {}, None)
        elif start is not None:
            versions.advance(0, start.model, state, {}, None, begun_with=start.said)
        return versions

    def go_back(self, version: str) -> None:
        """Make a version of an earlier one's model, with the method's state of then.

        If another method made that state, the method's own begins anew.
        """
        model, then = self.store.load(version, self.layout)
        anew = round_of(version) < self.renewed
        state: MethodState = self.method.initial(self.layout) if anew else then
        settings = NewSettings(self.settings, "", True) if anew else None
        self.advance(
            self.progress.rounds_done + 1, model, state, {}, None, version, settings=settings
        )

    def take_effect(self, ordered: Settings) -> bool:
        """Put ordered settings in force, in the journal first.

        Returns:
            True if a version of its own begins with them, because devices train by other terms.
        """
        progress, what = self.progress, told(self.settings, ordered)
        config = ordered.put_into(self.config)
        if ordered.job == self.settings.job:
            new = NewSettings(ordered, what, False)
            self.store.put_in_force(new, self.wall(), progress.rounds_done)
            self.config, self.settings = config, ordered
            return False
        method, encoding = methods.method(ordered.method), Encoding.parse(ordered.transfer.encoding)
        fresh = method.initial(self.layout)
        renewed = begins_anew(self.method, method, self.state, fresh)
        state = fresh if renewed else self.state
        number, version = progress.rounds_done + 1, progress.version
        new = NewSettings(ordered, what, renewed)
        self.advance(number, self.model, state, {}, None, version, settings=new)
        self.config, self.settings, self.method, self.encoding = config, ordered, method, encoding
        return True

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
        *,
        settings: NewSettings | None = None,
        begun_with: str = "",
    ) -> None:
        """Evaluate a model, and make it the current version: on disk first.

        Args:
            restored: the version that the model is of, if it is the model of one.
            settings: come into force with this version.
            begun_with: of the first version: where its weights come from, if not from the seed.
        """
        sha256 = self.layout.sha256(model)
        version = f"{done:06d}-{sha256[:16]}"
        score = self.network.accuracy(model)
        progress = Progress(done, version, sha256, score, restored, self.wall())
        size = self.config.transfer.chunk_bytes
        self._written = self.store.advance(
            progress, self.layout, model, state, reports, seconds, settings, begun_with, size
        )
        if settings is not None and settings.renewed:
            self.renewed = done
        self.progress, self.model, self.state = progress, model, state
        shown = "" if score is None else f", global accuracy {score:.1%}"
        log.info("version %s from %d updates%s", version, len(reports), shown)

    # Bytes on the wire

    def payload(self) -> Source:
        """The file that every device gets; if the disk is full, its bytes."""
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

    def chunked(self) -> chunks.Payload:
        """The bytes that travel, cut and summed: a file that we wrote is not read for it."""
        source, chunk_bytes = self.payload(), self.config.transfer.chunk_bytes
        written = self._written
        if written is None or (written.source, written.facts.chunk_bytes) != (source, chunk_bytes):
            return chunks.Payload.of(source, chunk_bytes)
        return written

    def manifest(self) -> Manifest:
        """How the bytes that travel are cut and checked."""
        return self.chunked().facts

    @property
    def most_chunks(self) -> int:
        """The most chunks that a version can have; compressed ones have fewer."""
        size = tensors.payload_limit(self.layout, 1 + len(self.method.sends))
        return chunks.count(size, self.config.transfer.chunk_bytes)

    @property
    def update_limit(self) -> int:
        """The most bytes that an honest update can have."""
        return tensors.payload_limit(self.layout)


def _start(
    config: CoordinatorConfig, store: Store, founded: Founded, begun: bool
) -> StartWeights | None:
    """The weights that a new run begins with; None for those of its seed.

    Raises:
        ConfigError: if they do not fit, or if this run has begun with others.
    """
    path = config.model.weights
    if not path or (begun and not Path(path).exists()):  # they were read when it began
        return None
    start = read_weights(Path(path), founded.layout, founded.spec)
    if not begun:
        if start.doubt:
            log.warning("%s", start.doubt, extra={"event": "weights-doubtful"})
        return start
    if store.history()[0].sha256 != founded.layout.sha256(start.model):
        raise ConfigError(
            f"model.weights is {path}, but the run in {store.folder} has begun without these "
            "weights: leave them out to go on with it, or choose another state folder to begin a "
            "new run"
        )
    return None


def run_identity(
    config: CoordinatorConfig,
    run: str,
    spec: ModelSpec,
    layout: Layout,
) -> dict[str, str]:
    """The facts that stay the same as long as a run lasts."""
    return {
        "run": run,
        "federation": config.federation,
        "seed": str(config.seed),
        "model": f"{spec.name}, head {spec.head}",
        "labels": ", ".join(spec.labels),
        "layout": layout.hash,
    }
