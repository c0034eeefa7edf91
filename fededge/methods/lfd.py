"""LfD: Kim and Shin 2023, "Learning from drift: federated learning on non-IID data"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fededge import models
from fededge._internal.lazy_torch import Tensor, nn, torch
from fededge.errors import MethodError
from fededge.method.base import Batch, Finish, Follows, Method, Objective, Output, TurnView

__all__ = ["LfD", "drift_target"]


@dataclass(frozen=True)
class LfD(Method):
    """Counteract the drift of the device's last training, on cosines with a margin.

    L = CE(z, y) + λ CE(z, ŷ), where z_j = (cos_j - m 1[j = y])/τ and ŷ = σ(-f_D): classes that
    the last local model made more likely than the global one does become less likely. τ belongs
    to the network's head. The margin applies in training only.

    Attributes:
        margin: m.
        reg: include the second term; false needs no private state.
        lam: λ; 1 in the paper.
        first: in a device's first turn, "skip" the second term, or use the global model as the
            last one, which makes ŷ "uniform".
        tau_drift: a temperature of f_D; the paper has none.
    """

    name: ClassVar[str] = "lfd"
    keeps: ClassVar[Mapping[str, Follows]] = {"last": "training"}
    margin: float = 0.15
    reg: bool = True
    lam: float = 1.0
    first: Literal["skip", "uniform"] = "skip"
    tau_drift: float = 1.0

    def __post_init__(self) -> None:
        self.require(0 <= self.margin < 2, "margin must lie from 0 to below 2, a cosine's range")
        self.require(self.lam > 0, "lam must be above 0; reg=false leaves the regulariser out")
        self.require(self.tau_drift > 0, "tau_drift must be above 0")

    def needs(self, net: nn.Module) -> None:
        _cosine_head(net)

    def objective(self, r: TurnView, out: Output, batch: Batch) -> Objective:
        if "margin" not in r.memo:
            eye = torch.eye(out.logits.shape[1], dtype=out.logits.dtype, device=out.logits.device)
            r.memo["margin"] = -self.margin / _cosine_head(r.net.module).tau * eye
        shift = r.memo["margin"]
        yhat = self._drift(r, out, batch) if self.reg else None
        if yhat is None:
            return Objective(shift=shift)
        return Objective(shift=shift, target=self.lam * yhat)  # eq. 10: one z for both

    def finish(self, r: TurnView) -> Finish:
        return Finish(private={"last": r.model} if self.reg else {})

    def _drift(self, r: TurnView, out: Output, batch: Batch) -> Tensor | None:
        """Return ŷ of a batch; f_G and f_P are fixed, so each runs once over the data in a turn."""
        if "last" not in r.private:
            uniform = torch.full_like(out.logits, 1 / out.logits.shape[1])
            return uniform if self.first == "uniform" else None
        if "teachers" not in r.memo:
            r.memo["teachers"] = r.teacher(r.received), r.teacher(r.private.tensor("last"))
        f_G, f_P = (teacher(batch).logits for teacher in r.memo["teachers"])
        return drift_target(f_G, f_P, self.tau_drift)


def _cosine_head(net: nn.Module) -> models.CosineHead:
    head = getattr(net, "head", None)
    if not isinstance(head, models.CosineHead):
        raise MethodError(
            "lfd needs a network with a cosine head: "
            'set head = "cosine" (or "cosine:TAU", as in "cosine:0.05") for the model'
        )
    return head


def drift_target(f_G: Tensor, f_P: Tensor, tau_drift: float = 1.0) -> Tensor:
    """Return ŷ = σ(-f_D); in f_D = log σ(f_P) - log σ(f_G) the partition sums cancel (eq. 8)."""
    return torch.softmax((f_G - f_P) / tau_drift, dim=1)
