"""NVML through a made library: two GPUs, none, and none that tells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fededge.hardware.nvml import Nvml

SOURCE = """
#include <stdint.h>
struct rates { unsigned gpu, memory; };
int nvmlInit_v2(void) { return INIT; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = GPUS; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {
  *h = (void *)(uintptr_t)(i + 1);
  return 0;
}
int nvmlDeviceGetUtilizationRates(void *h, struct rates *r) {
  r->gpu = 30 * (unsigned)(uintptr_t)h;
  return TELLS ? 0 : 3;
}
#ifndef OLD
int nvmlDeviceGetTemperature(void *h, unsigned sensor, unsigned *t) {
  *t = 40 + 20 * (unsigned)(uintptr_t)h + sensor;
  return TELLS ? 0 : 3;
}
#endif
"""


def library(folder: Path, init: int = 0, gpus: int = 2, tells: int = 1, *flags: str) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the fake NVML library needs a C compiler")
    (folder / "nvml.c").write_text(SOURCE)
    made = folder / "libmade.so"
    defined = [f"-DINIT={init}", f"-DGPUS={gpus}", f"-DTELLS={tells}", *flags]
    command = [compiler, "-shared", "-fPIC", *defined, "-o", str(made), str(folder / "nvml.c")]
    subprocess.run(command, check=True)
    return str(made)


def test_the_busiest_gpu_counts(tmp_path: Path) -> None:
    nvml = Nvml(library(tmp_path))
    assert nvml.load() == 0.6
    assert nvml.load() == 0.6


def test_the_hottest_gpu_counts(tmp_path: Path) -> None:
    assert Nvml(library(tmp_path)).celsius() == 80.0


def test_a_library_without_the_function_shows_no_temperature(tmp_path: Path) -> None:
    nvml = Nvml(library(tmp_path, 0, 2, 1, "-DOLD"))
    assert (nvml.celsius(), nvml.load()) == (None, 0.6)


def test_no_library_shows_nothing() -> None:
    nvml = Nvml("libnvidia-ml-of-nobody.so.1")
    assert (nvml.load(), nvml.celsius()) == (None, None)


@pytest.mark.parametrize(("init", "gpus", "tells"), [(9, 1, 1), (0, 0, 1), (0, 2, 0)])
def test_a_driver_that_refuses_shows_nothing(
    tmp_path: Path, init: int, gpus: int, tells: int
) -> None:
    nvml = Nvml(library(tmp_path, init, gpus, tells))
    assert (nvml.load(), nvml.celsius()) == (None, None)
