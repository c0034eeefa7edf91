"""The coordinator as a process: set-up, the loop, and the end."""

from __future__ import annotations

import logging
import math
import queue
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from fededge._internal.malloc import return_free_memory
from fededge.config import BrokerConfig, CoordinatorConfig
from fededge.credentials.signing_keys import read_signing_key
from fededge.service.commands import unwatched
from fededge.service.inbox import InboxLoop
from fededge.service.log_lines import LogLines
from fededge.service.presence import claim_name, new_claim
from fededge.transport.session import Session, Will
from fededge.wire.messages import Presence
from fededge_server.api.server import ApiServer
from fededge_server.identity import Identity
from fededge_server.machine import events
from fededge_server.machine.health import Health
from fededge_server.machine.rounds.rounds import Rounds
from fededge_server.model.kept_network import keep_network, kept_network
from fededge_server.model.network import Founded, Network
from fededge_server.model.publisher import Publisher
from fededge_server.model.rollback import RollbackRequest
from fededge_server.model.versions import Versions
from fededge_server.new_settings import merging_of, run_facts, staging_of
from fededge_server.parts import CoordinatorParts
from fededge_server.running import RunningCoordinator
from fededge_server.state_message import StateMessage
from fededge_server.store import Progress, Store
from fededge_server.sweeper import Sweeper
from fededge_server.version_judge import VersionJudge

__all__ = ["Coordinator", "claim"]

log = logging.getLogger("coordinator")

SESSION_KEPT = 24 * 3600
LOGGED_DEVICES = 1000
"""Devices that may cause log lines of their own; further ones share a counter."""


class Connect(Protocol):
    """Makes the session with the broker, which is not started yet."""

    def __call__(
        self,
        broker: BrokerConfig,
        client_id: str,
        inbox: queue.SimpleQueue[Any],
        will: Will,
        keep_seconds: int,
    ) -> Session: ...


def claim(config: CoordinatorConfig, identity: Identity) -> None:
    """Return if no coordinator of the federation runs; raise RefusedError if one does."""
    what = f"a coordinator of federation '{config.federation}'"
    base, instance = identity.topics.coordinator, identity.instance
    vouched = identity.vouches_for
    claim_name(config.broker, base, new_claim(), instance, what, Presence, vouched)


class Coordinator:
    """One federation's coordinator. The constructor only stores; `start` and `run` do.

    Everything outside the process comes in here, so that tests can replace it.

    Args:
        config: the federation's.
        clock: monotonic seconds.
        wall: the time of day.
        store: the state folder; by default the configured one.
        network: builds and evaluates the model; by default the configured one.
        connect: makes the session with the broker.
        claim: makes sure that the federation's name is free.
        serve: makes the API, which `run` starts.
        progress: called when the loop or an evaluation has made progress; feeds the watchdog.
        watch: sees each event before it is handled, and each command before it is carried out.
        stays: `run` does not return when all rounds are done.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        *,
        store: Store | None = None,
        network: Network | None = None,
        connect: Connect = Session,
        claim: Callable[[CoordinatorConfig, Identity], None] = claim,
        serve: Callable[[Store, queue.SimpleQueue[Any]], ApiServer] = ApiServer,
        progress: Callable[[], None] = lambda: None,
        watch: Callable[[object], None] = unwatched,
        stays: bool = False,
    ) -> None:
        self.config = config
        self.clock = clock
        self.wall = wall
        self.store = store or Store(Path(config.state))
        self.network = network or Network(
            config.model, config.data, config.method, config.seed, config.hardware, progress
        )
        self.connect = connect
        self.claim = claim
        self.serve = serve
        self.watch = watch
        self.stays = stays
        self.loop = InboxLoop(clock, progress)

    def stop(self) -> None:
        """Ask `run` to return; safe from a signal handler."""
        self.loop.stop()

    def run(self) -> Progress:
        """Run until stopped, or until all rounds are done; return where the run stands then."""
        return_free_memory()
        try:
            running = self.start()
            api = self.serve(self.store, self.loop.inbox)
            api.start()
            try:
                self.loop.run(running)
            finally:
                api.stop()
                running.stop()
            return running.progress
        finally:
            self.close()

    def close(self) -> None:
        """Give the state folder and the network's process up; also after a start that failed."""
        self.store.close()
        self.network.stop()

    # Set-up

    def start(self) -> RunningCoordinator:
        """Go on where the journal stands, or begin a run, and connect to the broker."""
        config = self.config
        key = read_signing_key(Path(config.signing_key)) if config.signing_key else None
        identity = Identity(config.federation, uuid.uuid4().hex, key)
        known = kept_network(self.store.folder, self.network.wanted)
        founded = known or self.network.start()
        self.store.open()
        self.claim(config, identity)
        versions = self._versions(founded, known is not None)
        running = RunningCoordinator(self._parts(identity, versions), self.stays)
        running.session.start()
        for before in self.store.history()[-2:-1]:  # we may have been killed before this was done
            running.parts.publisher.outdate(before.version)
        return running

    def _versions(self, founded: Founded, known: bool) -> Versions:
        """Go on with the run, or begin one; `known`: an earlier process had built the network."""
        begun = self.store.progress() is not None
        if begun:
            founded = Founded.without_values(founded.spec, founded.layout)
        elif known:
            founded = self.network.start()
        versions = Versions.resume(self.config, self.store, self.network, founded, self.wall)
        if begun and known:
            self.network.resume(founded)
        else:
            keep_network(self.store.folder, self.network.wanted, founded)
        return versions

    def _parts(self, identity: Identity, versions: Versions) -> CoordinatorParts:
        rounds, staging = self._rounds(versions), staging_of(versions)
        message = StateMessage(versions.config, rounds, versions, staging, self.clock)
        session = self._session(identity)
        lines = LogLines(log, self.clock, LOGGED_DEVICES)
        publisher = self._publisher(identity, session, versions, message, lines.warn)
        return CoordinatorParts(
            config=versions.config,
            identity=identity,
            session=session,
            store=self.store,
            versions=versions,
            rounds=rounds,
            staging=staging,
            merging=merging_of(versions),
            judge=self._judge(versions, message, publisher),
            publisher=publisher,
            message=message,
            clock=self.clock,
            wall=self.wall,
            lines=lines,
            watch=self.watch,
        )

    def _rounds(self, versions: Versions) -> Rounds:
        """The rounds as an earlier process left them; what no round needs leaves the spool."""
        store, progress = self.store, versions.progress
        done, version = progress.rounds_done, progress.version
        now = self.clock()
        age = math.inf if progress.date is None else self.wall() - progress.date
        recalled = replace(store.recall(self.wall()), age=age)
        rounds = Rounds(run_facts(versions), versions.config.rounds, done, version, recalled, now)
        store.clear_spool(keep=rounds.state.spooled)
        return rounds

    def _judge(
        self, versions: Versions, message: StateMessage, publisher: Publisher
    ) -> VersionJudge:
        return VersionJudge(
            versions=versions,
            health=self._health(versions.config.robust.max_drop),
            request=RollbackRequest(Path(self.config.state)),
            message=message,
            publish=publisher.put_state,
            roll_back=versions.config.robust.roll_back,
        )

    def _health(self, max_drop: float) -> Health:
        """The versions' health, as it was heard of so far."""
        health = Health(max_drop)
        for version, accuracy, accuracies in self.store.scores():
            health.evaluate(version, accuracy)
            health.hear(events.Judge(version, 0, 0, accuracies))
        return health

    def _session(self, identity: Identity) -> Session:
        config, topics = self.config, identity.topics
        # A secret of the state folder: whoever took our client id would throw us off the broker.
        name = f"fededge-{config.federation}-coordinator-{self.store.fact('session')}"
        will = identity.presence(online=False)
        session = self.connect(config.broker, name, self.loop.inbox, will, SESSION_KEPT)
        session.subscribe(f"{topics.coordinator}/status", topics.state)
        session.subscribe(topics.device("+", "status"))
        # Last: what is retained elsewhere must not wait behind litter.
        Sweeper(session, topics).subscribe()
        return session

    def _publisher(
        self,
        identity: Identity,
        session: Session,
        versions: Versions,
        message: StateMessage,
        warn: Callable[[str], None],
    ) -> Publisher:
        return Publisher(
            session=session,
            topics=identity.topics,
            store=self.store,
            describe=message.describe,
            payload=versions.chunked,
            most_chunks=versions.most_chunks,
            manifest=versions.manifest(),
            key=identity.key,
            wall=self.wall,
            warn=warn,
            issued=int(self.store.fact("issued") or 0),
        )
