"""The kernels' Python face: compiled where they were built, pure torch everywhere else.

Every op exists twice with the same meaning: in C++ (`csrc/`) and in `fededge.ops.reference`.
`facts()` says which one runs, and why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fededge._internal.lazy_torch import lazy_names

__all__ = [
    "ala_step_",
    "backward",
    "distillation",
    "ema_",
    "facts",
    "gradient",
    "label_loss",
    "pooled_convolution",
    "probability_sums_",
    "sgd_step_",
    "soft_cross_entropy",
]

if TYPE_CHECKING:
    from fededge.ops._backend import facts
    from fededge.ops.layers import pooled_convolution
    from fededge.ops.losses import (
        backward,
        distillation,
        gradient,
        label_loss,
        probability_sums_,
        soft_cross_entropy,
    )
    from fededge.ops.vectors import ala_step_, ema_, sgd_step_
else:
    # What lies behind these names needs torch.
    __getattr__ = lazy_names(
        __name__,
        {
            "_backend": "facts",
            "layers": "pooled_convolution",
            "losses": (
                "backward distillation gradient label_loss probability_sums_ soft_cross_entropy"
            ),
            "vectors": "ala_step_ ema_ sgd_step_",
        },
    )
