"""Sensors on made trees: a Jetson, a PC, a laptop on battery, and a box that shows nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fededge.hardware.sensors import CpuTimes, Sensors
from tests.hardware.boxes import AGENT, NvidiaCard, jetson, laptop, pc, process, processors, write


def sensors(root: Path) -> Sensors:
    return Sensors(root, AGENT, NvidiaCard())


def test_a_jetson(tmp_path: Path) -> None:
    box = sensors(jetson(tmp_path))
    assert (box.celsius(), box.gpu_load(), box.power_mode()) == (51.25, 0.25, 2)
    assert box.on_mains() is None


@pytest.mark.parametrize(
    "place",
    [
        "sys/devices/gpu.0/load",
        "sys/devices/17000000.gv11b/load",
        "sys/devices/platform/gpu.0/load",
        "sys/devices/platform/17000000.gp10b/load",
        "sys/devices/platform/bus@0/17000000.ga10b/load",
        "sys/class/devfreq/57000000.gpu/device/load",
    ],
)
def test_the_load_of_each_jetsons_gpu(tmp_path: Path, place: str) -> None:
    assert sensors(write(tmp_path, {place: 842})).gpu_load() == 0.842


def test_a_pc(tmp_path: Path) -> None:
    box = sensors(pc(tmp_path))
    assert (box.celsius(), box.gpu_load(), box.on_mains()) == (61.0, 0.07, True)
    assert box.power_mode() is None


def test_a_laptop_on_battery(tmp_path: Path) -> None:
    box = sensors(laptop(tmp_path))
    assert (box.celsius(), box.on_mains(), box.gpu_load()) == (70.0, False, None)
    write(tmp_path, {"sys/class/power_supply/ADP1/online": 1})
    assert box.on_mains() is True


def test_a_laptop_that_charges_over_usb(tmp_path: Path) -> None:
    box = sensors(laptop(tmp_path))
    port = "sys/class/power_supply/ucsi-source-psy"
    write(tmp_path, {f"{port}/type": "USB", f"{port}/online": 1})
    assert box.on_mains() is True


@pytest.mark.parametrize(("status", "mains"), [("Discharging", False), ("Full", True)])
def test_a_battery_alone_tells_by_its_status(tmp_path: Path, status: str, mains: bool) -> None:
    power = "sys/class/power_supply/BAT0"
    box = sensors(write(tmp_path, {f"{power}/type": "Battery", f"{power}/status": status}))
    assert box.on_mains() is mains


def test_a_box_without_a_battery_is_on_mains_whatever_its_free_port_says(tmp_path: Path) -> None:
    port = "sys/class/power_supply/ucsi-source-psy-USBC000:001"
    box = sensors(write(tmp_path, {f"{port}/type": "USB", f"{port}/online": 0}))
    assert box.on_mains() is True


def test_a_plug_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    box = sensors(write(tmp_path, {"sys/class/power_supply/AC/type": "Mains"}))
    assert box.on_mains() is None


def test_a_free_port_beside_a_battery_that_is_full(tmp_path: Path) -> None:
    box = sensors(laptop(tmp_path))
    write(tmp_path, {"sys/class/power_supply/BAT0/status": "Full"})
    assert box.on_mains() is True


def test_a_box_with_nothing(tmp_path: Path) -> None:
    box = sensors(tmp_path)
    found = (box.celsius(), box.on_mains(), box.gpu_load(), box.power_mode(), box.cpu_times())
    assert found == (None,) * 5


def test_a_sensor_that_refuses_or_shows_nonsense_is_left_out(tmp_path: Path) -> None:
    jetson(tmp_path)
    thermal = tmp_path / "sys/class/thermal"
    (thermal / "thermal_zone2" / "temp").unlink()
    (thermal / "thermal_zone2" / "temp").mkdir()  # as a GPU that sleeps, reading it is an error
    write(tmp_path, {"sys/class/thermal/thermal_zone1/temp": "-273200"})
    assert sensors(tmp_path).celsius() == 48.5
    write(tmp_path, {"sys/class/thermal/thermal_zone0/temp": "hot"})
    assert sensors(tmp_path).celsius() is None


def test_a_box_in_the_cold_shows_its_temperature(tmp_path: Path) -> None:
    jetson(tmp_path)
    for zone, value in enumerate((-9_500, -12_000, 0)):
        write(tmp_path, {f"sys/class/thermal/thermal_zone{zone}/temp": value})
    assert sensors(tmp_path).celsius() == -9.5


def test_an_nvidia_card_counts_alone_and_beside_an_amd_gpu(tmp_path: Path) -> None:
    assert Sensors(tmp_path, AGENT, NvidiaCard(load=0.4)).gpu_load() == 0.4
    pc(tmp_path)
    assert Sensors(tmp_path, AGENT, NvidiaCard(load=0.4)).gpu_load() == 0.4
    assert Sensors(tmp_path, AGENT, NvidiaCard(load=0.01)).gpu_load() == 0.07


def test_an_nvidia_card_is_hot_though_the_kernel_does_not_show_it(tmp_path: Path) -> None:
    assert Sensors(tmp_path, AGENT, NvidiaCard(celsius=83.0)).celsius() == 83.0
    pc(tmp_path)
    assert Sensors(tmp_path, AGENT, NvidiaCard(celsius=83.0)).celsius() == 83.0
    assert Sensors(tmp_path, AGENT, NvidiaCard(celsius=40.0)).celsius() == 61.0


def test_the_load_of_others_is_all_but_that_of_our_own_processes(tmp_path: Path) -> None:
    """600 of 1000 ticks were busy; our trainer and its child took 350, so others took a quarter."""
    box = sensors(tmp_path)
    processors(tmp_path, busy=1000, idle=9000)
    process(tmp_path, 1, 0, ticks=500)
    process(tmp_path, AGENT, 1, ticks=100)
    process(tmp_path, AGENT + 1, AGENT, ticks=40)
    process(tmp_path, AGENT + 2, AGENT + 1, ticks=0)
    process(tmp_path, 7000, 1, ticks=300)
    before = box.cpu_times()
    assert before == CpuTimes(10_000, 1000, 140)
    processors(tmp_path, busy=1600, idle=9400)
    process(tmp_path, AGENT + 1, AGENT, ticks=340)
    process(tmp_path, AGENT + 2, AGENT + 1, ticks=50)
    process(tmp_path, 7000, 1, ticks=550)
    after = box.cpu_times()
    assert after is not None
    assert after.others_since(before) == 0.25


def test_a_trainer_that_ended_between_two_looks_is_still_ours(tmp_path: Path) -> None:
    box = sensors(tmp_path)
    processors(tmp_path, busy=1000, idle=9000)
    process(tmp_path, AGENT, 1, ticks=100)
    process(tmp_path, AGENT + 1, AGENT, ticks=400)
    before = box.cpu_times()
    (tmp_path / f"proc/{AGENT + 1}/stat").unlink()
    process(tmp_path, AGENT, 1, ticks=100, of_children=450)
    processors(tmp_path, busy=1050, idle=9050)
    after = box.cpu_times()
    assert before is not None
    assert after is not None
    assert after.others_since(before) == 0.0


def test_no_share_without_time_and_none_beyond_all() -> None:
    one = CpuTimes(100, 50, 10)
    assert one.others_since(one) is None
    assert CpuTimes(110, 70, 10).others_since(one) == 1.0
    assert CpuTimes(110, 55, 30).others_since(one) == 0.0


def test_this_very_machine() -> None:
    """Each machine gives an answer, and the test's own process has taken some time."""
    box = Sensors(nvidia=NvidiaCard())
    times = box.cpu_times()
    assert times is not None
    assert 0 < times.own < times.busy <= times.total
    assert box.pid == os.getpid()
    box.celsius(), box.on_mains(), box.gpu_load(), box.power_mode()
