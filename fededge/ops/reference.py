"""Every op in plain torch: the meaning of the compiled ones, and what runs without them.

Inputs are taken as checked: call these through `fededge.ops`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "ala_step_",
    "backward",
    "distillation",
    "ema_",
    "gradient",
    "label_loss",
    "pooled_convolution",
    "probability_sums_",
    "sgd_step_",
]


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


def label_loss(
    z: Tensor,
    labels: Sequence[Tensor],
    shares: Sequence[float],
    weight: float,
    flat: float,
    soft: float,
    scale: Tensor | None,
    shift: Tensor | None,
    factor: Tensor | None,
    added: Tensor | None,
    added_scale: Tensor | None,
    target: Tensor | None,
) -> Tensor:
    dtype, z = z.dtype, _wide(z)
    u = _scaled(z, scale)
    u = u if added is None else u + _scaled(added, added_scale)
    parts = []
    for y, share in zip(labels, shares, strict=True):
        y = y.long()
        moved = _moved(u, shift, y)
        if weight:
            parts.append(_times(weight * share, F.cross_entropy(moved, y)))
        if target is not None:
            parts.append(_times(soft * share, _soft_cross_entropy(moved, target)))
        if flat:
            parts.append(_times(flat * share, _flattening(z, y)))
    if not labels and target is not None:
        parts.append(_times(soft, _soft_cross_entropy(_moved(u, shift), target)))
    return (sum(parts[1:], parts[0]) if parts else 0.0 * z.sum()).to(dtype)


def distillation(z: Tensor, teacher: Tensor, temperature: float, without: Tensor | None) -> Tensor:
    student, taught = _wide(z) / temperature, _wide(teacher) / temperature
    if without is not None:
        own = without.long()[:, None]
        student, taught = student.scatter(1, own, -math.inf), taught.scatter(1, own, -math.inf)
    log_p, log_q = taught.log_softmax(1), student.log_softmax(1)
    p = log_p.exp()
    divergence = (_expectation(p, log_p) - _expectation(p, log_q)).mean()
    return (temperature**2 * divergence).to(z.dtype)


def probability_sums_(
    num: Tensor, den: Tensor, z: Tensor, labels: Sequence[Tensor], shares: Sequence[float]
) -> None:
    p = _wide(z).softmax(1).double()
    for y, share in zip(labels, shares, strict=True):
        num.index_add_(0, y, p, alpha=share)
        den.index_add_(0, y, den.new_full((len(y),), share))


def pooled_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    return F.max_pool2d(F.conv2d(x, weight, bias, padding=padding), 2).relu_()


def backward(loss: Tensor) -> None:
    loss.backward()


def gradient(loss: Tensor, by: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(loss, by, materialize_grads=True)
    return found


def _wide(z: Tensor) -> Tensor:
    """16-bit logits as float32, which the ops compute in."""
    return z if z.dtype in (torch.float32, torch.float64) else z.float()


def _flattening(z: Tensor, y: Tensor) -> Tensor:
    """Σ p_k log((C-1) r_k), where r is p without its y and normalised, and log r_y stands for 0.

    Its gradient is that of Σ p_k l_k with l held fixed: autograd goes back through one softmax.
    """
    own = y[:, None]
    with torch.no_grad():
        log_r = z.scatter(1, own, -math.inf).log_softmax(1)  # exact where 1 - p_y would be 0
        log_ratio = (log_r + math.log(z.shape[1] - 1)).scatter_(1, own, 0.0)
    return (z.softmax(1) * log_ratio).sum(1).mean()


def _scaled(z: Tensor, scale: Tensor | None) -> Tensor:
    return z if scale is None else scale * z


def _moved(u: Tensor, shift: Tensor | None, y: Tensor | None = None) -> Tensor:
    if shift is None:
        return u
    return u + (shift if y is None or shift.dim() == 1 else shift[y])


def _soft_cross_entropy(u: Tensor, target: Tensor) -> Tensor:
    return -_expectation(target, u.log_softmax(1)).mean()


def _times(factor: float, loss: Tensor) -> Tensor:
    return loss if factor == 1.0 else factor * loss


def _expectation(p: Tensor, values: Tensor) -> Tensor:
    """Σ p · values by row, where 0 · -inf is 0."""
    return (p * values.masked_fill(p == 0, 0.0)).sum(1)
