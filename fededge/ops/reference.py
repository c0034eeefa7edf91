"""Every op in plain torch: the meaning of the compiled ones, and what runs without them.

Inputs are taken as checked: call these through `fededge.ops`.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["accumulate_", "accumulate_int8_", "ala_step_", "ema_", "sgd_step_"]


def accumulate_(acc: Tensor, x: Tensor, weight: float) -> None:
    acc.add_(x, alpha=weight)


def accumulate_int8_(acc: Tensor, q: Tensor, ends: Tensor, scales: Tensor, weight: float) -> None:
    sizes = ends.diff(prepend=ends.new_zeros(1)).to(acc.device)
    factors = scales.to(acc.dtype).mul_(weight).repeat_interleave(sizes, output_size=len(q))
    acc.addcmul_(factors, q.to(acc.dtype))


def ala_step_(
    W: Tensor, mixed: Tensor, grad: Tensor, local: Tensor, received: Tensor, eta: float
) -> None:
    change = received - local
    W.sub_(grad * change, alpha=eta).clamp_(0, 1)
    torch.addcmul(local, change, W, out=mixed)


def ema_(target: Tensor, source: Tensor, mu: float) -> None:
    target.mul_(mu).add_(source, alpha=1 - mu)


def sgd_step_(
    w: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor | None,
    lr: float,
    momentum: float,
    weight_decay: float,
    kappa: float,
    anchor: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
) -> None:
    step = grad.add(w, alpha=weight_decay)
    if anchor is not None:
        step.add_(w - anchor, alpha=kappa)
    if bias is not None:
        step.add_(bias)
    if momentum_buffer is not None:
        step.add_(momentum_buffer, alpha=momentum)
        _assign(momentum_buffer, step, mask)
    _assign(w, w.sub(step, alpha=lr), mask)


def _assign(target: Tensor, value: Tensor, mask: Tensor | None) -> None:
    target.copy_(value if mask is None else torch.where(mask != 0, value, target))
