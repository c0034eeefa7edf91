"""The sensors of a box, read from /sys and /proc: temperature, power, load. Nothing is changed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fededge.hardware.nvml import Nvml

__all__ = ["CpuTimes", "Sensors"]

CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "amdgpu", "radeon", "nouveau", "xe")
"""hwmon chips of processors and GPUs. Disks run hot by nature, unused inputs show nonsense."""

DUMMIES = ("PMIC-Die", "iwlwifi", "BAT", "battery")
"""Thermal zones that say nothing about the processor. A Jetson's PMIC-Die always shows 100 °C."""

PLAUSIBLE = (-60.0, 150.0)
"""Degrees that a sensor can show: a box may stand outdoors. Others, and exactly 0, are those of a
sensor that is not connected."""

JETSON_GPUS = (
    "sys/devices/gpu.0/load",
    "sys/devices/*.g*/load",
    "sys/devices/platform/gpu.0/load",
    "sys/devices/platform/*.g*/load",
    "sys/devices/platform/bus@0/*.g*/load",
    "sys/class/devfreq/*.g*/device/load",
)
"""Load of a Jetson's GPU in tenths of a percent. The place depends on the board and JetPack."""

AMD_GPUS = "sys/class/drm/card*/device/gpu_busy_percent"

POWER_MODE = "var/lib/nvpmodel/status"


@dataclass(frozen=True)
class CpuTimes:
    """Times of all processors since the start of the box, in clock ticks: all, busy, our own."""

    total: int
    busy: int
    own: int

    def others_since(self, before: CpuTimes) -> float | None:
        """The share that other processes took since then; None if no time has passed."""
        total = self.total - before.total
        others = (self.busy - before.busy) - (self.own - before.own)
        return min(1.0, max(0.0, others / total)) if total > 0 else None


class Sensors:
    """Reads the files below `root`. A sensor that the box does not have gives None."""

    def __init__(
        self, root: Path = Path("/"), pid: int | None = None, nvidia: Nvml | None = None
    ) -> None:
        self.root = root
        self.pid = os.getpid() if pid is None else pid
        self.nvidia = nvidia or Nvml()

    def celsius(self) -> float | None:
        """The hottest sensor of processor and GPU. NVIDIA's driver shows its cards in NVML only."""
        found = [value / 1000 for path in self._thermometers() if (value := _number(path))]
        card = self.nvidia.celsius()
        found += [] if card is None else [card]
        low, high = PLAUSIBLE
        return max((value for value in found if low < value < high), default=None)

    def _thermometers(self) -> Iterator[Path]:
        for zone in self.root.glob("sys/class/thermal/thermal_zone*"):
            if not _text(zone / "type").startswith(DUMMIES):
                yield zone / "temp"
        for chip in self.root.glob("sys/class/hwmon/hwmon*"):
            if _text(chip / "name") in CHIPS:
                yield from chip.glob("temp*_input")

    def on_mains(self) -> bool | None:
        """True if a charger is plugged in, or no battery is being discharged.

        An unused USB-C port is a plug that is not online, also on a box without a battery.
        """
        supplies = list(self.root.glob("sys/class/power_supply/*"))
        supplies = [supply for supply in supplies if _text(supply / "scope") != "Device"]
        plugs = [_number(s / "online") for s in supplies if _text(s / "type") in ("Mains", "USB")]
        batteries = [_text(s / "status") for s in supplies if _text(s / "type") == "Battery"]
        if not batteries and all(online is None for online in plugs):
            return None
        return any(plugs) or "Discharging" not in batteries

    def gpu_load(self) -> float | None:
        """The share of time in which the busiest GPU computed, for whomever."""
        tegra = [_number(path) for pattern in JETSON_GPUS for path in self.root.glob(pattern)]
        amd = [_number(path) for path in self.root.glob(AMD_GPUS)]
        loads = [value / 1000 for value in tegra if value is not None]
        loads += [value / 100 for value in amd if value is not None]
        card = self.nvidia.load()
        loads += [] if card is None else [card]
        return max(loads, default=None)

    def power_mode(self) -> int | None:
        """The mode of a Jetson's nvpmodel."""
        found = re.search(r"pmode:(\d+)", _text(self.root / POWER_MODE))
        return None if found is None else int(found[1])

    def cpu_times(self) -> CpuTimes | None:
        fields = _text(self.root / "proc/stat").split("\n")[0].split()[1:9]
        if len(fields) < 5:
            return None
        times = [int(field) for field in fields]
        idle = times[3] + times[4]  # idle, and waiting for a disk
        return CpuTimes(sum(times), sum(times) - idle, self._own_times())

    def _own_times(self) -> int:
        """Times of this process and all below it, with those of children that have ended."""
        parents: dict[int, int] = {}
        times: dict[int, int] = {}
        for path in self.root.glob("proc/[0-9]*/stat"):
            # The name comes second, in parentheses, and may hold anything.
            fields = _text(path).rpartition(")")[2].split()
            if len(fields) > 14:
                pid = int(path.parent.name)
                parents[pid], times[pid] = int(fields[1]), sum(map(int, fields[11:15]))
        return sum(times[pid] for pid in times if self._is_own(pid, parents))

    def _is_own(self, pid: int, parents: dict[int, int]) -> bool:
        seen = 0
        while pid not in (self.pid, 0, 1) and seen <= len(parents):
            pid, seen = parents.get(pid, 0), seen + 1
        return pid == self.pid


def _text(path: Path) -> str:
    """The content of a file; empty without one. A GPU that sleeps may refuse to answer."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> float | None:
    try:
        return float(_text(path))
    except ValueError:
        return None
