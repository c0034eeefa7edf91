"""The mapping of folders to packages, and the compiled modules; the rest is in pyproject.toml.

FEDEDGE_NO_EXT=1 leaves the compiled modules out. FEDEDGE_REQUIRE_EXT=1 makes it an error when the
one for the CPU cannot be built; otherwise the package then installs as pure Python and says so.
The one for CUDA is built where a GPU, nvcc and a torch for CUDA are; FEDEDGE_CUDA=1 builds it
without a GPU too and makes it an error when that fails, FEDEDGE_CUDA=0 leaves it out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
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

CUDA = os.environ.get("FEDEDGE_CUDA")
# Xavier is 72 (nvcc up to 12), Orin 87, Thor 110; the others are cards for servers and PCs.
ARCHITECTURES = (72, 75, 80, 86, 87, 89, 90, 100, 110, 120)
# No fused multiplication and addition here either: a device gives the bits that a CPU gives.
NVCC_FLAGS = ["-O3", "--fmad=false", "--threads=2"]
NVCC_FLAGS += ["-diag-suppress=1675"]  # pragmas that are meant for GCC


def packages() -> list[str]:
    found: list[str] = []
    for name, folder in PACKAGE_DIR.items():
        found += [name, *(f"{name}.{sub}" for sub in find_packages(folder))]
    return found


def obstacle() -> str | None:
    """The reason why the compiled module cannot be built here, or None."""
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


def no_cuda(reason: str) -> None:
    text = f"fededge: the CUDA kernels are left out: {reason}"
    if CUDA == "1":
        sys.exit(f"{text}; but FEDEDGE_CUDA=1 asks for them")
    print(text, file=sys.stderr)


def announce() -> None:
    """Say beforehand what an installer that hides its output would not."""
    reason = obstacle()
    if reason:
        pure_python(reason)


def find_nvcc() -> str | None:
    """The compiler for CUDA; a Jetson has it outside of the path."""
    home = os.environ.get("CUDA_HOME")
    places = [f"{home}/bin"] if home else []
    places += [os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"]
    return shutil.which("nvcc", path=os.pathsep.join(places))


def ask_nvcc(nvcc: str, *options: str) -> str:
    command = [nvcc, *options]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    ).stdout


def cuda_home(nvcc: str) -> str:
    """The toolkit's folder, as nvcc knows it: what is on the path may be a script or a link."""
    words = ask_nvcc(nvcc, "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull)
    found = re.search(r"^#\$ TOP=(.+)$", words, re.MULTILINE)
    return str(Path(found[1] if found else nvcc + "/../..").resolve())


def known_architectures(nvcc: str) -> list[int]:
    """The GPU architectures that this nvcc can compile for."""
    return [
        int(number) for number in re.findall(r"compute_(\d+)\b", ask_nvcc(nvcc, "--list-gpu-arch"))
    ]


def architecture_flags(known: Iterable[int]) -> list[str]:
    """Machine code for all that we serve and nvcc knows, and PTX for what comes after them."""
    chosen = [number for number in ARCHITECTURES if number in set(known)]
    flags = [f"-gencode=arch=compute_{n},code=sm_{n}" for n in chosen]
    return [*flags, f"-gencode=arch=compute_{chosen[-1]},code=compute_{chosen[-1]}"]


def cuda_obstacle() -> str | None:
    """The reason why the CUDA kernels cannot or shall not be built here, or None."""
    if CUDA not in (None, "0", "1"):
        sys.exit(f"FEDEDGE_CUDA is '{CUDA}', it must be 0 or 1")
    if CUDA == "0":
        return "FEDEDGE_CUDA=0"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA"
    if CUDA is None and not torch.cuda.is_available():
        return "torch sees no GPU (FEDEDGE_CUDA=1 builds them all the same)"
    nvcc = find_nvcc()
    if nvcc is None:
        return "there is no nvcc (install the CUDA toolkit, or set CUDA_HOME to where it is)"
    release = re.search(r"release (\d+)\.\d+", ask_nvcc(nvcc, "--version"))
    # Within a major version NVIDIA keeps the runtime library compatible, and no more is shared.
    if release and release[1] != torch.version.cuda.partition(".")[0]:
        return f"nvcc is of CUDA {release[1]}, but torch was built with CUDA {torch.version.cuda}"
    if not {*ARCHITECTURES} & {*known_architectures(nvcc)}:
        return f"{nvcc} knows none of the architectures {', '.join(map(str, ARCHITECTURES))}"
    return None


def common() -> dict[str, Any]:
    import pybind11

    return {
        # All of it, built here or not: what is listed here is what a source archive holds.
        "depends": sorted(str(path) for path in Path("csrc").rglob("*") if path.is_file()),
        "include_dirs": [str(Path("csrc").resolve()), pybind11.get_include()],
    }


def extension() -> Extension:
    from torch.utils.cpp_extension import CppExtension

    flags = CXX_FLAGS + OPENMP
    sources = {*Path("csrc/torch").glob("*.cpp"), *Path("csrc/cpu").rglob("*.cpp")}
    module: Extension = CppExtension(
        "fededge._C",
        sorted(map(str, sources)),
        define_macros=[("FEDEDGE_CXX_FLAGS", f'"{" ".join(flags)}"')],
        extra_compile_args=flags,
        extra_link_args=OPENMP,
        optional=not REQUIRED,
        **common(),
    )
    return module


def sums_extension() -> Extension:
    """Without torch, for the coordinator: a plain extension that links nothing of it."""
    return Extension(
        "fededge._sums",
        ["csrc/sums/buffers.cpp", "csrc/cpu/simd.cpp"],
        extra_compile_args=["-std=c++17", *CXX_FLAGS],
        language="c++",
        optional=not REQUIRED,
        **common(),
    )


def cuda_extension() -> Extension:
    nvcc = find_nvcc()
    assert nvcc is not None, "cuda_obstacle() has looked"
    os.environ["CUDA_HOME"] = cuda_home(nvcc)  # before torch looks for it on import
    from torch.utils.cpp_extension import CUDAExtension

    wished = os.environ.get("TORCH_CUDA_ARCH_LIST")  # which torch turns into flags
    chosen = [] if wished else architecture_flags(known_architectures(nvcc))
    named = wished or " ".join(flag.rpartition("=")[2] for flag in chosen)
    module: Extension = CUDAExtension(
        "fededge._cuda",
        sorted(str(path) for path in Path("csrc/cuda").iterdir() if path.suffix in (".cpp", ".cu")),
        define_macros=[("FEDEDGE_CUDA_ARCHITECTURES", f'"{named}"')],
        extra_compile_args={"cxx": CXX_FLAGS, "nvcc": [*NVCC_FLAGS, *chosen]},
        optional=CUDA != "1",
        **common(),
    )
    return module


def extensions() -> list[Extension]:
    reason = cuda_obstacle()
    if reason is None:
        return [cuda_extension(), extension(), sums_extension()]
    no_cuda(reason)
    return [extension(), sums_extension()]


def build_ext() -> type[Any]:
    from torch.utils.cpp_extension import BuildExtension

    class BuildExt(BuildExtension):
        """Turns ninja's RuntimeError into what setuptools forgives an optional extension."""

        def build_extension(self, ext: Extension) -> None:
            try:
                super().build_extension(ext)
            except (RuntimeError, CompileError) as error:
                leave_out = no_cuda if ext.name == "fededge._cuda" else pure_python
                leave_out(f"compiling them failed, see above ({error})")
                raise CompileError(str(error)) from error

    return BuildExt


class BuildPy(build_py):
    """Starts clean: neither modules deleted since the last build nor old kernels may come back."""

    def run(self) -> None:
        if self.editable_mode:
            for stale in Path("fededge").glob("_*.so"):
                stale.unlink()
        else:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


def main() -> None:
    commands: dict[str, type[Any]] = {"build_py": BuildPy}
    modules: list[Extension] = []
    reason = obstacle()
    if reason:
        pure_python(reason)
        no_cuda(reason)
    else:
        modules, commands["build_ext"] = extensions(), build_ext()
    setup(
        packages=packages(),
        package_dir=PACKAGE_DIR,
        ext_modules=modules,
        cmdclass=commands,
    )


if __name__ == "__main__":
    main()
