"""Compiles the accelerator once, loads it into this process, and names it to child processes."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import torch

from tests.accelerator.device import LIBRARY as NAME
from tests.accelerator.device import register

__all__ = ["environment", "load"]

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
BUILD = ROOT / "build" / "accelerator"
SOURCES = sorted((FOLDER / "csrc").glob("*.cpp"))
HEADERS = [
    *sorted((FOLDER / "csrc").glob("*.h")),
    *sorted((ROOT / "csrc" / "kernels").rglob("*.h")),
    *sorted((ROOT / "csrc" / "ops").glob("*.h")),
    ROOT / "tests" / "ops" / "emulated" / "team.h",
]
INCLUDED = [ROOT / "csrc", ROOT / "tests" / "ops" / "emulated"]
FLAGS = ["-O2", "-g0", "-ffp-contract=off", "-DAT_PER_OPERATOR_HEADERS"]


def load() -> ModuleType | str:
    """The extension, with torch knowing the device; or the reason why it cannot be built here."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    reason = obstacle()
    if reason is not None:
        return reason
    module = import_library(compiled())
    register()
    return module


def obstacle() -> str | None:
    compiler = (os.environ.get("CXX") or "c++").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler '{compiler}'"
    if shutil.which("ninja") is None:
        return "there is no ninja"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "there is no Python.h"
    return None


def compiled() -> Path:
    """The library, compiled by the first process that asks; the others wait for it."""
    library = BUILD / f"{NAME}-{fingerprint()}.so"
    if library.exists():
        return library
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / "one.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            compile_to(library)
    return library


def compile_to(library: Path) -> None:
    from torch.utils import cpp_extension

    (BUILD / "lock").unlink(missing_ok=True)  # torch's own, left behind by a process that died
    cpp_extension.load(
        NAME,
        [str(path) for path in units()],
        extra_cflags=[*FLAGS, f"-DEMULATED_NAME={NAME}"],
        extra_include_paths=[str(path) for path in INCLUDED],
        build_directory=str(BUILD),
        with_cuda=False,
        is_python_module=False,
    )
    # A link, not a copy: this process has loaded the file, and must not load it twice.
    partial = library.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    os.link(BUILD / f"{NAME}.so", partial)
    os.replace(partial, library)


def units() -> list[Path]:
    """The sources in three translation units: torch's headers take longer than the code."""
    apart = [path for path in SOURCES if path.stem in ("fused_ops", "module")]
    rest = [f'#include "{path}"\n' for path in SOURCES if path not in apart]
    device = BUILD / "device.cpp"
    if not device.exists() or device.read_text() != "".join(rest):
        device.write_text("".join(rest))
    return [device, *apart]


def fingerprint() -> str:
    """A hash of all that the library is made of."""
    text = hashlib.sha256(f"{torch.__version__} {sys.version} {FLAGS}".encode())
    for path in [*SOURCES, *HEADERS]:
        text.update(path.read_bytes())
    return text.hexdigest()[:16]


def import_library(library: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
    return module


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a child process in which `import torch` loads the accelerator."""
    path = [str(FOLDER / "autoload"), *filter(None, [given.get("PYTHONPATH")])]
    return {**given, "PYTHONPATH": os.pathsep.join(path)}
