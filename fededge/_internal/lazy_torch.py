"""torch, loaded when it is first used: for modules that a coordinator imports too.

Importing torch takes seconds, and half a gigabyte where it is a build for CUDA. A coordinator sums
models and hands them on, for which numpy is enough; but a method's file has both of its halves, and
what trains on a device is beside it. A module that takes `Tensor`, `nn` and `torch` from here can
be imported without torch, and uses it as any other does.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["Tensor", "late_names", "nn", "torch", "torch_is_loaded"]

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:

    class Late(ModuleType):
        """A module that is imported when something of it is wanted."""

        def __getattr__(self, name: str) -> object:
            found = getattr(importlib.import_module(self.__name__), name)
            setattr(self, name, found)  # the next time this is not asked
            return found

    class OfTorch(type):
        def __instancecheck__(cls, thing: object) -> bool:
            return torch_is_loaded() and isinstance(thing, torch.Tensor)

    class Tensor(metaclass=OfTorch):
        """`torch.Tensor` in annotations and for `isinstance`."""

    torch, nn = Late("torch"), Late("torch.nn")


def torch_is_loaded() -> bool:
    """Whether it is there already, so that using it costs nothing more."""
    return "torch" in sys.modules


def late_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """A package's `__getattr__` by which its names are imported when they are first used.

    Args:
        package: its `__name__`.
        homes: for each of its modules the names that are to be had from it.
    """
    home = {name: module for module, names in homes.items() for name in names.split()}

    def look_up(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module '{package}' has no attribute {name!r}")
        found: object = getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return look_up
