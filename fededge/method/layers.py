"""Layers of a composition: the owner of each hook, the phases of each layer, and conflicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations

from fededge.errors import MethodError
from fededge.method.base import Method, TurnView
from fededge.method.turn import Turn

__all__ = ["PERSONAL", "SCALARS", "Layers"]

SCALARS = frozenset({"examples", "steps", "loss", "personal_accuracy"})
"""The scalars that every device reports, whatever the method."""

PERSONAL = ("personal", "refreshed", "network")

ONE_OWNER = {
    ("phases",): "the phases of the local training",
    ("advance",): "how a local step is made",
    PERSONAL: "the personal model",
    ("weight",): "the weight of an update",
    ("step", "sums"): "the step to the next global model",
}


IN_PHASES = ("pull", "companions", "batch", "objective", "observe", "epoch_end")
"""Hooks that run during a phase; a limit restricts them to the phases that it names."""


@dataclass(frozen=True)
class Layers:
    """Methods in order.

    Phases, local step, personal model, weight and global step each have one owner. A layer acts
    in the phases that its limit names. Without a limit it acts in the phases that lead to the
    uploaded model; the owner of the phases acts in all of them.
    """

    layers: tuple[Method, ...]
    limits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [layer.name for layer in self.layers]
        if len(set(names)) < len(names):
            raise MethodError(f"method '{self}' names a layer twice")
        self._check_limits()
        self._check_contents()
        reported = Counter(SCALARS) + Counter(s for layer in self.layers for s in layer.scalars)
        for name, count in reported.items():
            if count > 1:
                raise MethodError(f"method '{self}': two layers report a scalar '{name}'")

    def __str__(self) -> str:
        limits = {name: "".join(f"@{phase}" for phase in at) for name, at in self.limits.items()}
        return "+".join(f"{layer}{limits.get(layer.name, '')}" for layer in self.layers)

    @cached_property
    def overriding(self) -> dict[str, tuple[Method, ...]]:
        """The layers that override each hook."""
        return {
            hook: tuple(layer for layer in self.layers if getattr(type(layer), hook) is not default)
            for hook, default in vars(Method).items()
            if callable(default)
        }

    @cached_property
    def _owners(self) -> dict[tuple[str, ...], Method]:
        """The owner of each hook in `ONE_OWNER`: the layer that overrides it, or the first."""
        return {hooks: self._find_owner(hooks) for hooks in ONE_OWNER}

    def _find_owner(self, hooks: tuple[str, ...]) -> Method:
        owners = {layer.name: layer for hook in hooks for layer in self.overriding[hook]}
        if len(owners) > 1:
            names = " and ".join(layer.name for layer in self.layers if layer.name in owners)
            raise MethodError(f"{names} cannot be combined: each decides {ONE_OWNER[hooks]}")
        return next(iter(owners.values()), self.layers[0])

    def owner(self, *hooks: str) -> Method:
        return self._owners[hooks]

    def acting(self, hook: str, turn: Turn) -> Iterator[tuple[Method, TurnView]]:
        """Yield the layers that override this hook and act in the current phase."""
        phase = turn.phase
        for layer in self.overriding[hook]:
            limit = self.limits.get(layer.name)
            if limit is None:
                acts = not phase.aside or layer is self.owner("phases")
            else:
                acts = phase.name in limit
            if acts:
                yield layer, TurnView(turn, layer.name)

    def _check_limits(self) -> None:
        owner = self.owner("phases")
        for layer in self.layers:
            limit = self.limits.get(layer.name, ())
            problem = self._limit_problem(layer, limit, owner) if limit else ""
            if problem:
                raise MethodError(f"method '{self}': {problem}")

    def _limit_problem(self, layer: Method, limit: tuple[str, ...], owner: Method) -> str:
        """Return the reason why this limit has no effect; empty if it has one."""
        written = "".join(f"@{phase}" for phase in limit)
        for phase in limit:
            if phase not in owner.phase_names:
                known = ", ".join(owner.phase_names)
                begin = f"{layer.name} is limited to phase '{phase}'"
                return f"{begin}, but {owner.name} has the phases {known}"
        if not any(layer in self.overriding[hook] for hook in IN_PHASES):
            begin = f"{layer.name} does nothing during a phase"
            return f"{begin} and cannot be limited to one: leave {written} out"
        if layer is owner and owner.aside_names:
            begin = f"{owner.name} defines the phases"
            return f"{begin}, and only the other layers can be limited: leave {written} out"
        if layer.sends and set(limit) <= set(owner.aside_names):
            begin = f"{layer.name} corrects the uploaded model"
            return f"{begin}, but {owner.name}'s phase '{limit[0]}' does not affect it"
        return ""

    def _check_contents(self) -> None:
        for one, other in permutations(self.layers, 2):
            if isinstance(one, type(other)):
                pair = f"{other.name} and {one.name} cannot be combined"
                raise MethodError(f"{pair}: {one.name} already includes {other.name}")
