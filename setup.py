"""The mapping of folders to packages, and the compiled module; the rest is in pyproject.toml.

FEDEDGE_NO_EXT=1 leaves the compiled module out. FEDEDGE_REQUIRE_EXT=1 makes it an error when it
cannot be built; otherwise the package then installs as pure Python and says so.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

PACKAGE_DIR = {"fededge": "fededge", "fededge_server": "server", "fededge_agent": "device_agent"}
REQUIRED = os.environ.get("FEDEDGE_REQUIRE_EXT") == "1"

# Contraction off: no level fuses a multiplication into an addition, so that SSE2, AVX2, AVX-512
# and NEON all give the same bits. The kernels wait for memory: it costs nothing.
CXX_FLAGS = ["-O3", "-g0", "-Wall", "-ffp-contract=off", "-fvisibility=hidden"]
OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]


def packages() -> list[str]:
    found: list[str] = []
    for name, folder in PACKAGE_DIR.items():
        found += [name, *(f"{name}.{sub}" for sub in find_packages(folder))]
    return found


def obstacle() -> str | None:
    """Why the compiled module cannot be built here, or None."""
    if os.environ.get("FEDEDGE_NO_EXT") == "1":
        return "FEDEDGE_NO_EXT=1"
    for module in ("torch", "pybind11"):
        try:
            __import__(module)
        except ImportError as error:
            return f"{error} (install {module} first, and use pip's --no-build-isolation)"
    compiler = (os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler '{compiler}' (Debian: apt install g++)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "there is no Python.h (Debian: apt install python3-dev)"
    return None


def pure_python(reason: str) -> None:
    text = f"fededge: the compiled kernels are left out, pure torch serves instead: {reason}"
    if REQUIRED:
        sys.exit(f"{text}; but FEDEDGE_REQUIRE_EXT=1 asks for them")
    print(text, file=sys.stderr)


def announce() -> None:
    """Say beforehand what an installer that hides its output would not."""
    reason = obstacle()
    if reason:
        pure_python(reason)


def extension() -> Extension:
    import pybind11
    from torch.utils.cpp_extension import CppExtension

    flags = CXX_FLAGS + OPENMP
    module: Extension = CppExtension(
        "fededge._C",
        sorted(str(path) for path in Path("csrc").rglob("*.cpp")),
        depends=sorted(str(path) for path in Path("csrc").rglob("*.h")),
        include_dirs=[str(Path("csrc").resolve()), pybind11.get_include()],
        define_macros=[("FEDEDGE_CXX_FLAGS", f'"{" ".join(flags)}"')],
        extra_compile_args=flags,
        extra_link_args=OPENMP,
        optional=not REQUIRED,
    )
    return module


def build_ext() -> type[Any]:
    from torch.utils.cpp_extension import BuildExtension

    class BuildExt(BuildExtension):
        """Turns ninja's RuntimeError into what setuptools forgives an optional extension."""

        def build_extension(self, ext: Extension) -> None:
            try:
                super().build_extension(ext)
            except (RuntimeError, CompileError) as error:
                pure_python(f"compiling them failed, see above ({error})")
                raise CompileError(str(error)) from error

    return BuildExt


class BuildPy(build_py):
    """Starts clean: neither modules deleted since the last build nor old kernels may come back."""

    def run(self) -> None:
        if self.editable_mode:
            for stale in Path("fededge").glob("_C.*.so"):
                stale.unlink()
        else:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


def main() -> None:
    commands: dict[str, type[Any]] = {"build_py": BuildPy}
    extensions: list[Extension] = []
    reason = obstacle()
    if reason:
        pure_python(reason)
    else:
        extensions, commands["build_ext"] = [extension()], build_ext()
    setup(
        packages=packages(),
        package_dir=PACKAGE_DIR,
        ext_modules=extensions,
        cmdclass=commands,
    )


if __name__ == "__main__":
    main()
