"""Made trees of /sys, /proc and /var: boxes for the tests of sensors and gate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fededge.hardware.nvml import Nvml

__all__ = ["AGENT", "NvidiaCard", "jetson", "laptop", "pc", "process", "processors", "write"]

AGENT = 4000
"""The agent's own process id in these trees."""


class NvidiaCard(Nvml):
    """A card as NVML describes it; by default there is none."""

    def __init__(self, load: float | None = None, celsius: float | None = None) -> None:
        super().__init__()
        self.shown = (load, celsius)

    def load(self) -> float | None:
        return self.shown[0]

    def celsius(self) -> float | None:
        return self.shown[1]


def write(root: Path, files: Mapping[str, object]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def jetson(root: Path) -> Path:
    """A Jetson AGX Orin with JetPack 6; its dummy zone shows 100 °C."""
    zones = {
        "cpu-thermal": 48_500,
        "gpu-thermal": 46_000,
        "tj-thermal": 51_250,
        "PMIC-Die": 100_000,
    }
    thermal = "sys/class/thermal/thermal_zone"
    for index, (kind, value) in enumerate(zones.items()):
        write(root, {f"{thermal}{index}/type": kind, f"{thermal}{index}/temp": value})
    processors(root, busy=1000, idle=9000)
    return write(
        root,
        {
            "sys/devices/platform/bus@0/17000000.gpu/load": 250,
            "var/lib/nvpmodel/status": "pmode:0002 fmode:quiet",
        },
    )


def pc(root: Path) -> Path:
    """A PC with an AMD GPU, a hot disk, and a board whose free input shows 110 °C."""
    hwmon = "sys/class/hwmon/hwmon"
    chips = {"k10temp": 61_000, "amdgpu": 55_000, "nvme": 79_000, "nct6775": 110_000}
    for index, (name, value) in enumerate(chips.items()):
        write(root, {f"{hwmon}{index}/name": name, f"{hwmon}{index}/temp1_input": value})
    processors(root, busy=1000, idle=9000)
    supply = "sys/class/power_supply/AC"
    write(root, {f"{supply}/type": "Mains", f"{supply}/online": 1})
    return write(root, {"sys/class/drm/card0/device/gpu_busy_percent": 7})


def laptop(root: Path) -> Path:
    """A laptop that was unplugged; its wireless mouse has a battery too."""
    processors(root, busy=1000, idle=9000)
    power = "sys/class/power_supply"
    return write(
        root,
        {
            f"{power}/ADP1/type": "Mains",
            f"{power}/ADP1/online": 0,
            f"{power}/BAT0/type": "Battery",
            f"{power}/BAT0/status": "Discharging",
            f"{power}/mouse/type": "Battery",
            f"{power}/mouse/scope": "Device",
            f"{power}/mouse/status": "Discharging",
            "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp",
            "sys/class/thermal/thermal_zone0/temp": 70_000,
        },
    )


def processors(root: Path, busy: int, idle: int) -> None:
    """Ticks of all processors since the start: half of `busy` in user mode, a little waiting."""
    fields = (busy - busy // 2, 0, busy // 2, idle - 10, 10, 0, 0, 0, 0, 0)
    write(root, {"proc/stat": f"cpu  {' '.join(map(str, fields))}\ncpu0 1 2 3 4"})


def process(root: Path, pid: int, parent: int, ticks: int, of_children: int = 0) -> None:
    """A process with a name as evil as names may be."""
    rest = [parent, *range(9), ticks, 0, of_children, 0, 20, 0]
    line = f"{pid} (a) b (S 1) S {' '.join(map(str, rest))}"
    write(root, {f"proc/{pid}/stat": line})
