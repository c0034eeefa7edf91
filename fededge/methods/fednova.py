"""FedNova: Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous
federated optimization".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fededge.flat import Layout, Vector
from fededge.method.base import Affine, Finish, Hyper, Merged, Method, Range, Round, State

__all__ = ["FedNova", "length"]


ROUNDED = 1 + 1e-6
"""The share by which the rounded sum of many steps may exceed its bound."""


@dataclass(frozen=True)
class FedNova(Method):
    """Average the devices' directions, not their models: many steps do not make more of a say.

    w ← w - τ_eff Σ p_k (w - w_k)/a_k, where p_k = n_k/n and a_k = ‖a_k‖₁ counts the gradients
    that the local solver has added up: its steps, and more with momentum, fewer with μ.

    Attributes:
        mu: of a proximal term in the local solver, the same as with a layer `fedprox(mu=…)`: a_k
            follows from what all layers pull together.
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

    def pull(self, r: Round) -> Affine | None:
        return Affine(kappa=self.mu, anchor=r.received) if self.mu else None

    def finish(self, r: Round) -> Finish:
        rho, eta = r.hyper.momentum, r.hyper.lr
        a_k = sum(  # momentum begins anew in each phase
            length(steps, rho, eta * r.kappas[phase]) for phase, steps in r.phase_steps.items()
        )
        return Finish(scalars={"a_k": a_k})

    def ranges(self, hyper: Hyper, examples: int, steps: int) -> Mapping[str, Range]:
        # Unless the pull diverges, ημ > 2 (1 + ρ), a gradient counts at most 1 + ρ + ρ² + … .
        most = min((steps + 1) / 2, ROUNDED / (1 - hyper.momentum))
        return {"a_k": Range(min(1, steps), most * steps)}

    def weight(self, scalars: Mapping[str, float]) -> float:  # p_k, of which no other layer decides
        return scalars["examples"]

    def sums(self, scalars: Mapping[str, float]) -> Mapping[str, float]:
        n_k, steps, a_k = scalars["examples"], scalars["steps"], scalars["a_k"]
        return {"d": n_k / a_k if n_k and steps else 0.0}  # without steps it did not move

    def initial(self, layout: Layout) -> State:
        return {"v": np.zeros(layout.size, np.float32)} if self.gmf else {}

    def step(self, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
        reports = merged.reports.values()
        n = sum(report["examples"] for report in reports)
        counted = "a_k" if self.tau_eff == "a" else "steps"
        tau_eff = sum(report["examples"] * report[counted] for report in reports) / n
        d = -tau_eff / n * merged.sums["d"]  # τ_eff Σ p_k (w - w_k)/a_k
        if not self.gmf:
            return w - d, {}
        v = self.gmf * state["v"] + d
        return w - v, {"v": v}


def length(steps: int, rho: float, eta_mu: float) -> float:
    """‖a_k‖₁: how many gradients are in the sum that so many steps of SGD make.

    τ for plain steps, (τ - ρ(1 - ρ^τ)/(1 - ρ))/(1 - ρ) with momentum ρ, Σ (1 - ημ)^i with μ; with
    both, the pull is part of the gradient that the momentum gathers, as in the local solver.
    """
    total, a, v = 0.0, 0.0, 1.0  # a: what a gradient counts for, that many steps later
    for _ in range(steps):
        a += v
        total += abs(a)
        v = rho * v - eta_mu * a
    return total
