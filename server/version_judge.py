"""Judges versions, and takes the run back to a good one: by itself or at the operator's request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from fededge.errors import DiskFullError, StoreError
from fededge_server.machine import events
from fededge_server.machine.health import Health
from fededge_server.machine.rounds import rollout
from fededge_server.model.rollback import RollbackRequest
from fededge_server.model.versions import Versions
from fededge_server.state_message import StateMessage

__all__ = ["VersionJudge"]

log = logging.getLogger("coordinator")

Found = list[events.Event | rollout.Event]


@dataclass
class VersionJudge:
    """`publish` tells the devices; `roll_back`: a version that is found bad is given up at once."""

    versions: Versions
    health: Health
    request: RollbackRequest
    message: StateMessage
    publish: Callable[[], None]
    roll_back: bool

    def hear(self, judge: events.Judge) -> Found:
        """Judge a version by what the devices say of it."""
        return self._conclude(judge.version, self.health.hear(judge))

    def evaluate(self, version: str) -> Found:
        """Judge the current version by our own evaluation."""
        accuracy = self.versions.progress.accuracy
        return self._conclude(version, self.health.evaluate(version, accuracy))

    def _conclude(self, version: str, why: str) -> Found:
        """Say that a version is bad, and go back to the last good one where that is configured."""
        if not why:
            return []
        good = self.health.last_good
        self.message.problem = f"version {version} is bad: {why}"
        log.error(
            "%s; the last good one is %s",
            self.message.problem,
            good or "unknown",
            extra={"event": "version-bad"},
        )
        if self.roll_back and good and version == self.versions.progress.version:
            try:
                return self._go_back(good, why)
            except DiskFullError:
                raise
            except StoreError as error:
                log.error("the run cannot go back: %s", error)
        self.publish()
        return []

    def requested(self) -> Found:
        """Do what an operator asked for with `fededge rollback`."""
        if not self.request.open:
            return []
        try:
            wanted = self.request.read() or self.health.last_good
            if not wanted:
                raise StoreError("no version is known to be good; name one with --to")
            found = self._go_back(wanted, "the operator asked for it")
        except DiskFullError:
            raise
        except StoreError as error:
            log.error("the run cannot go back: %s", error)
            self.request.refuse(str(error))
            return []
        self.request.fulfil()
        return found

    def _go_back(self, version: str, why: str) -> Found:
        """Make a new version with an earlier one's model; the open round is given up."""
        self.versions.go_back(version)
        log.warning("back to version %s: %s", version, why)
        progress = self.versions.progress
        done = rollout.RoundsDone(progress.rounds_done)
        return [events.RolledBack(progress.version, why), done]
