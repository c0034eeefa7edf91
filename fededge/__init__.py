"""FedEdge: one model trained across edge devices whose data never leaves them."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
