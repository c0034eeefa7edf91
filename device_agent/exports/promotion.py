"""Promotion of a device's models: decides which one `current` points to.

The loop's and the worker's threads call it, and the trainer process has one for its own exports:
every change is made under the lock of the folder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fededge.errors import StoreError
from fededge.export import ModelManifest, ModelRegistry
from fededge.federated.rollout import may_use
from fededge.wire.messages import Rollout, State
from fededge_agent.exports.significance import LEVEL, Right, accuracy, chance_of_loss

if TYPE_CHECKING:  # needs torch
    from fededge.export import Candidate

__all__ = ["Promotion"]

log = logging.getLogger("agent")

Score = Callable[[int | bytes], Right | None]
"""Measures a model, by its number or by its file's bytes, on the data that is held out now.

None without such data, and for a model that cannot be measured.
"""

STATES = {"added": "held", "unpinned": "promoted", "rolled back": "rolled-back"}


class Promotion:
    """Decides by the device's own data, by its apps, and by the coordinator's rollout."""

    def __init__(self, models: ModelRegistry, device: str, margin: float, score: Score) -> None:
        self.models = models
        self.device = device
        self.margin = margin
        self.score = score
        self.run = ""
        self.rollout: Rollout | None = None
        self.problem = ""

    # The device's own data decides

    def worse(self, model: int | bytes, labels: Sequence[str]) -> str:
        """The reason why a model with these labels must not become current; empty if it may.

        It may, unless it is worse than the current one by more than chance and the margin. Both
        are measured now: the current one may have been promoted on other data. One with other
        labels answers another question, and gives way.
        """
        number = self.models.number() or 0
        manifest = self.models.manifests().get(number)
        if manifest is None or self.models.is_bad(manifest.weights):
            return ""
        if tuple(manifest.labels) != tuple(labels):
            return ""
        new, current = self.score(model), self.score(number)
        if not new or not current or len(new) != len(current):
            return ""
        drop, chance = accuracy(current) - accuracy(new), chance_of_loss(new, current)
        if drop <= self.margin / 100 + 1e-9 or chance >= LEVEL:
            return ""
        return (
            f"{accuracy(new):.1%} on {len(new)} held-out examples, the current one has "
            f"{accuracy(current):.1%}: more than chance (p = {chance:.2g})"
        )

    def offer(self, candidate: Candidate, complete: Callable[[Candidate], Candidate]) -> str:
        """Add a new model, promote it if it may be, and return the outcome in words.

        `complete` adds what only a model that is kept needs.
        """
        manifest = candidate.manifest
        if self.models.is_bad(manifest.weights):
            return self._rejected(manifest, "these weights were reported bad")
        held = not self._allowed(manifest)
        reason = "" if held else self.worse(candidate.model, manifest.labels)
        if reason:
            return self._rejected(manifest, reason)
        number = self.models.add(complete(candidate), self._spared())
        if held:
            self.models.note("held", number, "the rollout has not reached it")
            return "held: the rollout has not reached it"
        return self._promote(number)

    def _promote(self, number: int) -> str:
        promoted = self.models.promote(number)
        self._answer(self.models.manifest(number), "promoted" if promoted else "held")
        return "promoted" if promoted else "held: another one is pinned"

    def _rejected(self, manifest: ModelManifest, reason: str) -> str:
        self.models.note("rejected", 0, reason)
        self._answer(manifest, "rejected")
        return f"rejected: {reason}"

    # The apps decide

    def look(self) -> bool:
        """Roll back from models that an app has reported bad; True if there were any."""
        return self._carefully(self._look)

    def _look(self) -> bool:
        found = self.models.reported()
        for number, reason in found:
            manifest, was = self.models.manifest(number), self.models.number()
            now = self.models.mark_bad(number, reason)
            self._answer(manifest, "bad")
            log.warning("model %d was reported bad (%s): current is %s", number, reason, now)
            if was == now == number:
                log.error("there is no other model: %d stays current until there is one", number)
        return bool(found)

    # The coordinator decides

    def follow(self, state: State) -> bool:
        """Apply the rollout of this state; True if models were withdrawn."""
        self.run, self.rollout = state.run, state.rollout
        return self.check_rollout()

    def check_rollout(self) -> bool:
        """Withdraw models whose rollout was aborted; True if there were any."""
        return self._carefully(self._withdraw)

    def _withdraw(self) -> bool:
        self.models.finish_rollback()
        kept = self.models.manifests()
        withdrawn = [number for number, manifest in kept.items() if self._aborted(manifest)]
        for number in withdrawn:
            manifest, was = kept[number], self.models.number()
            now = self.models.mark_bad(number, "its rollout was aborted", self._allowed)
            if was == number:
                log.warning(
                    "model %d is withdrawn: its rollout was aborted; current is %s", was, now
                )
                self._answer(manifest, "rolled-back")
        return bool(withdrawn)

    def _aborted(self, manifest: ModelManifest) -> bool:
        """True if an aborted rollout covers this model, and it is not yet marked bad."""
        rollout = self.rollout
        return (
            rollout is not None
            and manifest.run == self.run
            and rollout.released <= manifest.round < rollout.after
            and not self.models.is_bad(manifest.weights)
        )

    def release(self) -> bool:
        """Promote the newest model that the rollout has reached; True if the answer changed."""
        return self._carefully(self._release)

    def _release(self) -> bool:
        rollout = self.rollout
        if rollout is None or self._answered() not in ("", "idle"):
            return False
        candidates = self._candidates(self._allowed)
        number = next((n for n in candidates if self.models.is_intact(n)), None)
        if number is None:
            before = self._answered()
            self.models.answer(self.run, rollout.number, "idle")
            return before != "idle"
        manifest = self.models.manifest(number)
        reason = self.worse(number, manifest.labels)
        outcome = self._rejected(manifest, reason) if reason else self._promote(number)
        log.info("rollout %d, model %d: %s", rollout.number, number, outcome)
        return True

    def _candidates(self, fits: Callable[[ModelManifest], bool]) -> Iterator[int]:
        """Models of this run that are newer than the current one, fit and not bad; newest first."""
        current = self.models.number() or 0
        for number, manifest in reversed(self.models.manifests().items()):
            ours = manifest.run == self.run and not self.models.is_bad(manifest.weights)
            if number > current and ours and fits(manifest):
                yield number

    def _spared(self) -> list[int]:
        """Models to keep for the rollout: its candidate, and the one to roll back to."""
        rollout = self.rollout
        if rollout is None:
            return []
        ahead = next(self._candidates(lambda m: m.round < rollout.until), None)
        kept = self.models.manifests()
        trail = self.models.index().trail
        back = [number for number in trail if number in kept and self._free(kept[number])]
        return [*back[-1:], *([ahead] if ahead else [])]

    def _free(self, manifest: ModelManifest) -> bool:
        rollout = self.rollout
        return rollout is None or manifest.run != self.run or manifest.round < rollout.released

    def _allowed(self, manifest: ModelManifest) -> bool:
        """True if the rollout allows this model; it does not concern models of other runs."""
        return manifest.run != self.run or may_use(
            self.rollout, self.run, self.device, manifest.round
        )

    def _carefully(self, work: Callable[[], bool]) -> bool:
        """Log a damaged or full models folder once, instead of ending the agent."""
        try:
            done = work()
        except StoreError as error:
            if str(error) != self.problem:
                log.error("%s", error, extra={"event": "promotion-failed"})
            self.problem = str(error)
            return False
        self.problem = ""
        return done

    # Answers and the status

    def _answered(self) -> str:
        """Our answer to the current rollout; empty if there is none."""
        answered, rollout = self.models.index().answered, self.rollout
        if rollout is None or answered is None:
            return ""
        fits = (answered.run, answered.rollout) == (self.run, rollout.number)
        return answered.state if fits else ""

    def _answer(self, manifest: ModelManifest, state: str) -> None:
        """Answer the rollout, if it concerns this model."""
        rollout = self.rollout
        if rollout is None or manifest.run != self.run:
            return
        if state == "rolled-back" or rollout.after <= manifest.round < rollout.until:
            self.models.answer(self.run, rollout.number, state)

    def describe(self) -> dict[str, Any]:
        """The fields of the status about models; nothing else about them leaves the device."""
        try:
            record, current = self.models.index(), self.models.current()
        except StoreError as error:
            log.error("%s", error, extra={"event": "promotion-failed"})
            return {}
        last = record.history[-1].event if record.history else "none"
        state = "pinned" if record.pinned is not None else STATES.get(last, last)
        answered = self._answered()
        rollout = self.rollout.number if self.rollout is not None and answered else 0
        return {
            "model_round": -1 if current is None else current.round,
            "model_state": answered if rollout else state,
            "rollout": rollout,
        }
