"""The heads: a network's last layer, from features to logits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fededge._internal.suggestions import unknown
from fededge.errors import ConfigError
from fededge.model_spec import TAU

__all__ = ["CosineHead", "Head", "head_of", "heads"]

Head = Callable[[int, int], nn.Module]
"""Makes a head from the width of the features and the number of classes."""

# Shorter vectors count as zero: dividing by their length would make gradients of 1e9.
SHORTEST = 1e-9


class CosineHead(nn.Module):
    """`cos(features, weight row)/tau` (LfD, FedNH), without a bias: lengths have no effect.

    The rows are stored as trained, and normalised in the forward pass only. The cosines of a zero
    vector are zero, without a gradient.
    """

    def __init__(self, width: int, classes: int, tau: float = 0.1) -> None:
        super().__init__()
        self.tau = tau
        self.weight = nn.Parameter(torch.empty(classes, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # as nn.Linear

    def cosines(self, features: Tensor) -> Tensor:
        """Return the cosines, from -1 to 1, [N, classes]."""
        return F.linear(_unit(features), _unit(self.weight))

    def forward(self, features: Tensor) -> Tensor:
        return self.cosines(features) / self.tau

    def extra_repr(self) -> str:
        classes, width = self.weight.shape
        return f"{width}, {classes}, tau={self.tau}"


def _unit(vectors: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / length.masked_fill(length < SHORTEST, math.inf)


HEADS: dict[str, Head] = {
    "linear": nn.Linear,
    "bias-free": partial(nn.Linear, bias=False),
    "cosine": CosineHead,
}


def heads() -> tuple[str, ...]:
    """Return the heads that `build` knows; `cosine` also takes a tau, as in `cosine:0.05`."""
    return tuple(HEADS)


def head_of(text: str) -> Head:
    """Return the head of this description: `linear`, `bias-free`, `cosine` or `cosine:TAU`."""
    name, colon, value = text.partition(":")
    if name not in HEADS:
        raise ConfigError(unknown("head", name, HEADS))
    if not colon:
        return HEADS[name]
    if name != "cosine":
        raise ConfigError(f"head {text!r}: only 'cosine' takes a number, its tau; write {name!r}")
    return partial(CosineHead, tau=_tau(text, value))


def _tau(text: str, value: str) -> float:
    try:
        tau = float(value) if re.fullmatch(TAU, value) else math.nan
    except ValueError:
        tau = math.nan
    if not 1e-4 <= tau <= 1e4:
        raise ConfigError(
            f"head {text!r}: tau must be a number from 0.0001 to 10000, as in 'cosine:0.05'"
        )
    return tau
