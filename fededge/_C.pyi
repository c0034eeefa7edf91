from collections.abc import Sequence
from typing import Any

from torch import Tensor

def facts() -> dict[str, Any]: ...
def limit_simd(level: str) -> None: ...
def ala_step_(
    W: Tensor, mixed: Tensor, grad: Tensor, local: Tensor, received: Tensor, eta: float, /
) -> None: ...
def backward(loss: Tensor, /) -> None: ...
def distillation(
    z: Tensor, teacher: Tensor, temperature: float, without: Tensor | None, /
) -> Tensor: ...
def ema_(target: Tensor, source: Tensor, mu: float, /) -> None: ...
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
    target: Tensor | None,
    /,
) -> Tensor: ...
def probability_sums_(
    num: Tensor, den: Tensor, z: Tensor, labels: Sequence[Tensor], shares: Sequence[float], /
) -> None: ...
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
    /,
) -> None: ...
