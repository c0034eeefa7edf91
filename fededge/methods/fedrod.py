"""FedROD, linear version: Chen and Chao 2022, "On bridging generic and personalized federated
learning for image classification".
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fededge import models, ops
from fededge._internal.lazy_torch import Tensor, nn, torch
from fededge.errors import MethodError
from fededge.flat import FlatModel
from fededge.method.base import Batch, Finish, Follows, Objective, Output, TurnView
from fededge.methods.balanced import Balanced

__all__ = ["FedROD"]


@dataclass(frozen=True)
class FedROD(Balanced):
    """Two heads on one body: a generic head G for balanced classes, a personal head P beside it.

    The body and G train by balanced softmax and are uploaded. P is private, starts at zero and
    trains by CE(G(x) + P(h)), without gradients through G(x) and the features h. The personal
    model is G + P: two linear heads add up to one, so it has the federation's own network.
    """

    name: ClassVar[str] = "fedrod"
    keeps: ClassVar[Mapping[str, Follows]] = {"head": "training"}

    def needs(self, net: nn.Module) -> None:
        _linear_head(net)

    def companions(self, r: TurnView) -> Sequence[FlatModel]:
        return (_head(r),)

    def objective(self, r: TurnView, out: Output, batch: Batch) -> Objective:
        def personal(out: Output, y: Tensor) -> Tensor:
            P = _head(r)(out.features.detach())
            return ops.label_loss(P, (y,), added=out.logits.detach())

        return super().objective(r, out, batch) + Objective(terms=(personal,))

    def finish(self, r: TurnView) -> Finish:
        return Finish(private={"head": _head(r).vector})

    def personal(self, r: TurnView) -> Tensor:
        w = r.model.clone()
        tensors = r.layout.views(w)
        for name, p in _head(r).layout.views(r.private.tensor("head")).items():
            tensors[f"head.{name}"] += p.to(w.device)
        return w


def _head(r: TurnView) -> FlatModel:
    """Return P: in training, or from private state, or zero."""
    if "head" not in r.memo:
        head = FlatModel(copy.deepcopy(_linear_head(r.net.module)))
        kept = r.private.tensor("head") if "head" in r.private else torch.zeros_like(head.vector)
        head.load(kept)
        r.memo["head"] = head
    found: FlatModel = r.memo["head"]
    return found


def _linear_head(net: nn.Module) -> nn.Linear:
    if not (isinstance(net, models.Classifier) and isinstance(net.head, nn.Linear)):
        raise MethodError("fedrod needs a linear head: set head to linear or bias-free")
    return net.head
