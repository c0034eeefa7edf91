"""FedNova: Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous
federated optimization".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fededge.flat import Layout, Vector
from fededge.method.base import Affine, Finish, Hyper, Merged, Method, Range, State, TurnView

__all__ = ["FedNova", "a_norm"]


ROUNDED = 1 + 1e-6
"""Tolerance: rounding may lift the sum of many steps above its bound."""


@dataclass(frozen=True)
class FedNova(Method):
    """Average the devices' directions, normalised by their local steps, instead of their models.

    w ← w - τ_eff Σ p_k (w - w_k)/a_k, where p_k = n_k/n and a_k = ‖a_k‖₁ counts the gradients
    that the local solver has accumulated: its steps, and more with momentum, fewer with μ.

    Attributes:
        mu: a proximal term in the local solver, as of a layer `fedprox(mu=…)`; a_k depends on
            the pulls of all layers together.
        tau_eff: Σ p_k a_k ("a"), or Σ p_k τ_k over the steps ("steps": the authors' code with μ).
        gmf: momentum of the coordinator's step.
    """

    name: ClassVar[str] = "fednova"
    scalars: ClassVar[frozenset[str]] = frozenset({"a_k"})
    mu: float = 0.0
    tau_eff: Literal["a", "steps"] = "a"
    gmf: float = 0.0

    def __post_init__(self) -> None:
        self.require(self.mu >= 0, "mu must be at least 0")
        self.require(0 <= self.gmf < 1, "gmf must lie from 0 to below 1")

    def pull(self, r: TurnView) -> Affine | None:
        return Affine(kappa=self.mu, anchor=r.received) if self.mu else None

    def finish(self, r: TurnView) -> Finish:
        rho, eta = r.hyper.momentum, r.hyper.lr
        a_k = sum(  # momentum starts at zero in each phase
            a_norm(steps, rho, eta * r.kappas[phase]) for phase, steps in r.phase_steps.items()
        )
        return Finish(scalars={"a_k": a_k})

    def ranges(self, hyper: Hyper, examples: int, steps: int) -> Mapping[str, Range]:
        # Unless the pull diverges, ημ > 2 (1 + ρ), a gradient counts at most 1 + ρ + ρ² + … .
        most = min((steps + 1) / 2, ROUNDED / (1 - hyper.momentum))
        return {"a_k": Range(min(1, steps), most * steps)}

    def weight(self, scalars: Mapping[str, float]) -> float:  # n_k, so that no layer overrides p_k
        return scalars["examples"]

    def sums(self, scalars: Mapping[str, float]) -> Mapping[str, float]:
        n_k, steps, a_k = scalars["examples"], scalars["steps"], scalars["a_k"]
        return {"d": n_k / a_k if n_k and steps else 0.0}  # without steps it did not move

    def initial(self, layout: Layout) -> State:
        return {"v": np.zeros(layout.size, np.float32)} if self.gmf else {}

    def step(self, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
        scalars = merged.scalars.values()
        n = sum(s["examples"] for s in scalars)
        counted = "a_k" if self.tau_eff == "a" else "steps"
        tau_eff = sum(s["examples"] * s[counted] for s in scalars) / n
        d = -tau_eff / n * merged.sums["d"]  # τ_eff Σ p_k (w - w_k)/a_k
        if not self.gmf:
            return w - d, {}
        v = self.gmf * state["v"] + d
        return w - v, {"v": v}


def a_norm(steps: int, rho: float, eta_mu: float) -> float:
    """Return ‖a_k‖₁: the number of gradients that these steps of SGD accumulate.

    τ for plain steps, (τ - ρ(1 - ρ^τ)/(1 - ρ))/(1 - ρ) with momentum ρ, Σ (1 - ημ)^i with μ; with
    both, the momentum accumulates the pull too, as in the local solver.
    """
    total, a, v = 0.0, 0.0, 1.0  # a: the coefficient of a gradient after this many steps
    for _ in range(steps):
        a += v
        total += abs(a)
        v = rho * v - eta_mu * a
    return total
