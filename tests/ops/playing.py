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

__all__ = ["Job", "Played", "Shape", "compile_played", "pointers"]

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((Path(__file__).parent / "emulated").glob("*.cpp"))

Argument = Tensor | ctypes.Structure | int | float | None


class Job(ctypes.Structure):
    """RowJob of csrc/kernels/grid.h."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int),
        ("results", ctypes.c_void_p),
        ("outside", ctypes.c_void_p),
    )


class Shape(ctypes.Structure):
    """Threads that have a row together, how many of them are a warp, and how many groups there are.

    The seed draws in what order the threads take their turns.
    """

    _fields_ = (
        ("threads", ctypes.c_int),
        ("warp", ctypes.c_int),
        ("groups", ctypes.c_int64),
        ("seed", ctypes.c_int64),
    )


# Python's numbers do not say how wide C's are: the function's C++ signature does, by its letters.
SIGNATURES = {
    "ema": "ppdll",
    "ala_step": "pppppdll",
    "sgd_step": "ppppppffffll",
    "label_loss_float": "ppplss",
    "label_loss_double": "ppplss",
    "distillation_double": "plpppdss",
    "probability_sums_float": "plppppddss",
    "mean_float": "pss",
    "row_plan": "lilp",
    "stay_away": "ii",
}
TYPES: dict[str, Any] = {
    "p": ctypes.c_void_p,
    "s": ctypes.c_void_p,  # a struct
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
            return int(function(*map(plain, arguments)))

        return call


def plain(argument: Argument) -> Any:
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    return ctypes.addressof(argument) if isinstance(argument, ctypes.Structure) else argument


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
    """The addresses of these arrays, for a function that takes many; null for None."""
    return torch.tensor([0 if t is None else t.data_ptr() for t in tensors], dtype=torch.int64)
