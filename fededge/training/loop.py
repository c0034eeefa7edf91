"""The local loop: the phases of one turn, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fededge._internal.lazy_torch import Tensor, torch
from fededge.errors import MethodError
from fededge.method.base import Phase
from fededge.method.stack import Stack
from fededge.method.turn import Turn
from fededge.training.placement import epoch_of
from fededge.training.step import Batches, LocalStep, own_randomness, training_mode, training_only

__all__ = ["Loop", "StepCallback", "batch_sizes", "diverged", "steps_of"]

StepCallback = Callable[[int, int], None]
"""Called after every step with the steps done and the total steps."""


class Loop:
    """Runs the phases of one turn."""

    def __init__(self, method: Stack, turn: Turn, progress: StepCallback | None) -> None:
        self.method = method
        self.turn = turn
        self.progress = progress
        self.sizes = batch_sizes(len(turn.data.y), turn.hyper.batch_size)
        self.done = self.total = 0

    def run(self, phases: Sequence[Phase]) -> float:
        """Train; return the mean loss of the steps that led to the uploaded model."""
        turn = self.turn
        plan = steps_of(phases, turn.hyper.epochs, len(self.sizes))
        self.total = sum(plan)
        batches = self._batches("batches")
        sum_of_losses = 0.0
        with own_randomness(turn.generator("network"), turn.net.vector.device):
            for index, (phase, steps) in enumerate(zip(phases, plan, strict=True)):
                turn.phase = phase
                if phase.aside:
                    self._aside(steps)
                    continue
                sum_of_losses += self._phase(steps, batches)
                turn.phase_steps[phase.name] = steps
                goes_on = any(not later.aside for later in phases[index + 1 :])
                turn.ends[phase.name] = turn.net.vector.clone() if goes_on else turn.net.vector
        return sum_of_losses / max(turn.steps, 1)

    def _aside(self, steps: int) -> None:
        """Run a phase on its own vector and random streams, without effect on the others."""
        turn, net = self.turn, self.turn.net
        name, start = turn.phase.name, turn.phase.start
        before, done = net.swap((net.vector if start is None else start).clone()), turn.steps
        try:
            with own_randomness(turn.generator(f"network/{name}"), net.vector.device):
                self._phase(steps, self._batches(f"batches/{name}"))
        finally:
            turn.ends[name] = net.swap(before)
            turn.steps = done

    def _phase(self, steps: int, batches: Batches) -> float:
        """Take the steps of one phase; return the sum of their losses.

        Losses are read once an epoch: reading one waits for the device.
        """
        turn = self.turn
        sum_of_losses = 0.0
        losses: list[Tensor | float] = []
        with training_only(turn.net, turn.phase.part):
            step = LocalStep(self.method, turn, batches)
            for model in step.models:
                training_mode(model.module, self.sizes)
            for _ in range(steps):
                losses.append(self.method.advance(turn, step))
                turn.steps += 1
                if step.ends_pass:
                    sum_of_losses += self._read(losses)
                    self.method.epoch_end(turn)
                self._report_step()
            sum_of_losses += self._read(losses)
            if steps:
                step.check_taken()
        return sum_of_losses

    def _read(self, losses: list[Tensor | float]) -> float:
        """Read and forget the losses of the last steps; return their sum.

        Raises:
            MethodError: one of them is not finite; names its step.
        """
        on_device = [loss for loss in losses if isinstance(loss, Tensor)]
        read = iter(torch.stack(on_device).tolist() if on_device else ())
        numbers = [next(read) if isinstance(loss, Tensor) else loss for loss in losses]
        losses.clear()
        for before, loss in zip(range(-len(numbers), 0), numbers, strict=True):
            if not math.isfinite(loss):
                raise diverged(self.turn, self.turn.steps + before + 1, f"the loss is {loss}")
        return sum(numbers)

    def _batches(self, purpose: str) -> Batches:
        """Yield shuffled batches endlessly; the flag marks the last one of an epoch."""
        draw, last = self.turn.generator(purpose), len(self.sizes) - 1
        while self.sizes:
            order = torch.randperm(sum(self.sizes), generator=draw)
            for number, fetched in enumerate(epoch_of(self.turn, order, self.sizes)):
                self.turn.ahead = self.sizes[number:]
                yield fetched, number == last

    def _report_step(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)


def batch_sizes(examples: int, batch_size: int) -> list[int]:
    """Return the batch sizes of an epoch; a last batch of one example joins the one before it.

    Batch norm needs more than one example.
    """
    full, rest = divmod(examples, batch_size)
    if rest == 1 and full:
        return [batch_size] * (full - 1) + [batch_size + 1]
    return [batch_size] * full + [rest] * (rest > 0)


def steps_of(phases: Sequence[Phase], epochs: int, batches: int) -> list[int]:
    """Return the steps of each phase: its own epochs, or its share of the coordinator's epochs.

    Shares are rounded down; the last one gets the rest.
    """
    sharing = [phase for phase in phases if phase.epochs is None]
    left = epochs * batches
    counts: list[int] = []
    for phase in phases:
        if phase.epochs is not None:
            counts.append(phase.epochs * batches)
            continue
        count = left if phase is sharing[-1] else int(phase.share * epochs * batches)
        left -= count
        counts.append(count)
    return counts


def diverged(turn: Turn, step: int, what: str) -> MethodError:
    """Return the error for a training that diverged at this step, counted from 1."""
    return MethodError(
        f"device {turn.device}, round {turn.number + 1}, step {step}: {what}; "
        f"the training diverged: lower the learning rate ({turn.hyper.lr})"
    )
