"""The library of `emulated/`: device code compiled for the CPU, and how tests call it."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["Played", "compile_played", "pointers"]

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((Path(__file__).parent / "emulated").glob("*.cpp"))

Argument = Tensor | int | float | None

# Python's numbers do not say how wide C's are: the function's C++ signature does, by its letters.
SIGNATURES = {
    "accumulate_float": "ppidll",
    "accumulate_double": "ppidll",
    "accumulate_int8": "ppppldll",
    "ema": "ppdll",
    "ala_step": "pppppdll",
    "sgd_step": "ppppppffffll",
    "label_loss_float": "pppllippiill",
    "label_loss_double": "pppllippiill",
    "mean_float": "pipiil",
    "row_plan": "lilp",
    "stay_away": "ii",
}
TYPES: dict[str, Any] = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int,
    "l": ctypes.c_int64,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
}


class Played:
    """The library's functions; tensors are passed as pointers to their first number."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def __getattr__(self, name: str) -> Callable[..., int]:
        function = self.library[name]
        function.argtypes = [TYPES[letter] for letter in SIGNATURES[name]]

        def call(*arguments: Argument) -> int:
            plain = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
            return int(function(*plain))

        return call


def compile_played(folder: Path) -> Played | str:
    """The library, or why there is none; CXX and CXXFLAGS are honoured."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if shutil.which(compiler[0]) is None:
        return f"there is no C++ compiler '{compiler[0]}'"
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
    flags += [
        *shlex.split(os.environ.get("CXXFLAGS", "")),
        f"-I{ROOT / 'csrc'}",
        "-shared",
        "-fPIC",
    ]
    library = folder / "played.so"
    subprocess.run([*compiler, *flags, *map(str, SOURCES), "-o", str(library)], check=True)
    return Played(ctypes.CDLL(str(library)))


def pointers(tensors: list[Tensor | None]) -> Tensor:
    """Where these lie, for a function that takes many; null for None."""
    return torch.tensor([0 if t is None else t.data_ptr() for t in tensors], dtype=torch.int64)
