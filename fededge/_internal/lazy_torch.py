"""Lazy import of torch, for modules that the coordinator imports too.

Importing torch takes seconds, and half a gigabyte of memory for a CUDA build. The coordinator needs
only numpy, but a method's file holds its device half as well, which trains with torch. A module
that takes `Tensor`, `nn` and `torch` from here is imported without torch and uses it as usual.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["Tensor", "lazy_names", "nn", "torch", "torch_is_loaded"]

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:

    class LazyModule(ModuleType):
        """A module that is imported when one of its attributes is first used."""

        def __getattr__(self, name: str) -> object:
            found = getattr(importlib.import_module(self.__name__), name)
            setattr(self, name, found)  # cached: the next access does not come here
            return found

    class TensorCheck(type):
        def __instancecheck__(cls, thing: object) -> bool:
            return torch_is_loaded() and isinstance(thing, torch.Tensor)

    class Tensor(metaclass=TensorCheck):
        """`torch.Tensor` in annotations and for `isinstance`."""

    torch, nn = LazyModule("torch"), LazyModule("torch.nn")


def torch_is_loaded() -> bool:
    """Return True if torch is already imported, so that using it costs nothing more."""
    return "torch" in sys.modules


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Make a package's `__getattr__` that imports each public name when it is first used.

    Args:
        package: the package's `__name__`.
        homes: the public names of each module, separated by spaces, by module name.
    """
    home = {name: module for module, names in homes.items() for name in names.split()}

    def look_up(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module '{package}' has no attribute {name!r}")
        found: object = getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return look_up
