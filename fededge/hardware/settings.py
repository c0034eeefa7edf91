"""The settings of one training process: chosen once, before the network is built."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["CPU", "Hardware", "MemoryFormat", "Precision"]


class Precision(str, Enum):
    """The type that convolutions and matrix products compute in; all else is float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class MemoryFormat(str, Enum):
    """The order of an image batch in memory."""

    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels_last"


@dataclass(frozen=True)
class Hardware:
    """The device, threads and precision of a training, and the reason for the choice.

    Args:
        device: a device of torch, such as "cpu" or "cuda:0".
        threads: CPU threads of an op.
        precision: of convolutions and matrix products.
        memory_format: of image batches.
        reason: one sentence for the log.
    """

    device: str = "cpu"
    threads: int = 1
    precision: Precision = Precision.FLOAT32
    memory_format: MemoryFormat = MemoryFormat.CHANNELS_LAST
    reason: str = ""

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"


CPU = Hardware()
"""One thread of the CPU in float32: the default of the Python API, and of simulations."""
