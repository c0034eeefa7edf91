"""Ops over flat vectors: the optimiser's step, moving averages, ALA's weights.

All change their first argument in place; none can be differentiated, so that vectors which
require a gradient are refused.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fededge.errors import MethodError
from fededge.ops._backend import kernels
from fededge.ops._check import check_numbers, check_vectors

__all__ = ["ala_step_", "ema_", "sgd_step_"]

SINGLE = torch.float32


def ala_step_(
    W: Tensor, mixed: Tensor, grad: Tensor, local: Tensor, received: Tensor, *, eta: float
) -> None:
    """One step of FedALA's element-wise weights and the model that they give, in one pass.

    W = clip(W - eta * grad * (received - local), 0, 1); mixed = local + (received - local) * W.

    Args:
        W: changed in place.
        mixed: overwritten; it shares no memory with the others.
        grad: of the loss at the mixed model.
        local: the device's own model.
        received: the global model.
        eta: a finite number.
    """
    check_vectors("ala_step_", SINGLE, W=W)
    vectors = {"mixed": mixed, "grad": grad, "local": local, "received": received}
    check_vectors("ala_step_", SINGLE, like=W, **vectors)
    check_numbers("ala_step_", eta=eta)
    kernels(W).ala_step_(W, mixed, grad, local, received, eta)


def ema_(target: Tensor, source: Tensor, mu: float) -> None:
    """target = mu * target + (1 - mu) * source, all float32."""
    check_vectors("ema_", SINGLE, target=target)
    check_vectors("ema_", SINGLE, like=target, source=source)
    if not 0 <= mu <= 1:
        raise MethodError(f"ema_: mu is {mu}, it must lie between 0 and 1")
    kernels(target).ema_(target, source, mu)


def sgd_step_(
    w: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor | None = None,
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    kappa: float = 0.0,
    anchor: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> None:
    """One SGD step, with an affine pull on the gradient, in one pass over float32 vectors.

    g = grad + weight_decay * w + kappa * (w - anchor) + bias; buffer = momentum * buffer + g;
    w -= lr * buffer. From a buffer of zeros this is `torch.optim.SGD` without Nesterov and
    dampening.

    Args:
        momentum_buffer: changed in place; needed when `momentum` is not 0.
        kappa: strength of the pull towards `anchor` (FedProx, Ditto); needs an `anchor`.
        bias: added to the gradient (SCAFFOLD, FedDyn).
        mask: where it is 0, `w` and the buffer stay as they are: a layout's running statistics.
    """
    check_vectors("sgd_step_", SINGLE, w=w)
    check_vectors(
        "sgd_step_",
        SINGLE,
        like=w,
        grad=grad,
        momentum_buffer=momentum_buffer,
        anchor=anchor,
        bias=bias,
        mask=mask,
    )
    check_numbers("sgd_step_", lr=lr, momentum=momentum, weight_decay=weight_decay, kappa=kappa)
    if momentum and momentum_buffer is None:
        raise MethodError(f"sgd_step_: momentum is {momentum} but there is no momentum_buffer")
    if kappa and anchor is None:
        raise MethodError(f"sgd_step_: kappa is {kappa} but there is no anchor to pull towards")
    kernels(w).sgd_step_(
        w, grad, momentum_buffer, lr, momentum, weight_decay, kappa, anchor, bias, mask
    )
