"""FedAvg: McMahan et al. 2017, "Communication-efficient learning from decentralized data"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fededge.method.base import Method

__all__ = ["FedAvg"]


@dataclass(frozen=True)
class FedAvg(Method):
    """Train from the global model; average by number of examples: the defaults of `Method`."""

    name: ClassVar[str] = "fedavg"
