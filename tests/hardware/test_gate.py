"""The gate on made boxes: each condition, hysteresis, and conditions that a box cannot judge."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fededge.errors import ConfigError
from fededge.hardware.gate import LOOK, SHORTEST_REST, Conditions, Gate, local_time
from fededge.hardware.sensors import Sensors
from tests.hardware.boxes import AGENT, NvidiaCard, jetson, laptop, pc, process, processors, write

NOON = datetime(2026, 7, 13, 12, 0)
HOT = "sys/class/thermal/thermal_zone0/temp"
GPU = "sys/devices/platform/bus@0/17000000.gpu/load"


class Box:
    """A gate on a made tree, with the time in hand."""

    def __init__(self, root: Path, **conditions: Any) -> None:
        self.root, self.now, self.local = root, 0.0, NOON
        sensors = Sensors(root, AGENT, NvidiaCard())
        self.gate = Gate(Conditions(**conditions), sensors, lambda: self.now, lambda: self.local)

    def shows(self, **files: object) -> None:
        write(self.root, files)

    def after(self, seconds: float, training: bool = False) -> str:
        """The reason to rest after so many seconds; empty if it may train."""
        self.now += seconds
        verdict = self.gate.verdict(training)
        assert verdict.allowed is not bool(verdict.reason)
        return verdict.reason


def test_a_box_without_conditions_may_always_train(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.gate.check()
    assert box.after(0.0) == ""


def test_hours(tmp_path: Path) -> None:
    box = Box(tmp_path, hours=("22:00-06:00", "Sat 00:00-24:00"))
    box.gate.check()
    assert box.after(0.0) == "it is outside the hours 22:00-06:00, Sat 00:00-24:00"
    box.local = NOON.replace(hour=22)
    assert box.after(LOOK) == ""
    box.local = NOON.replace(hour=6, day=14)
    assert box.after(LOOK).startswith("it is outside the hours")


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set the time zone of this process."""

    def move(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)

    yield move
    monkeypatch.undo()
    time.tzset()


def test_hours_follow_a_time_zone_that_changes(in_zone: Callable[[str], None]) -> None:
    in_zone("UTC0")
    before = local_time()
    in_zone("XYZ-5")  # five hours ahead
    assert timedelta(hours=4, minutes=59) < local_time() - before < timedelta(hours=5, minutes=1)


BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"


@pytest.mark.parametrize(
    ("window", "utc", "inside"),
    [
        ("22:00-06:00", "2026-03-29T03:59", True),  # 05:59: the night is an hour shorter
        ("22:00-06:00", "2026-03-29T04:00", False),
        ("22:00-06:00", "2026-10-25T04:59", True),  # 05:59: it is an hour longer
        ("22:00-06:00", "2026-10-25T05:00", False),
        ("02:00-03:00", "2026-03-29T01:00", False),  # 03:00: the hour does not exist
        ("02:00-03:00", "2026-10-25T00:30", True),  # it comes twice
        ("02:00-03:00", "2026-10-25T01:30", True),
        ("02:00-03:00", "2026-10-25T02:00", False),
    ],
)
def test_hours_are_those_of_the_wall_clock_when_it_is_moved(
    tmp_path: Path, in_zone: Callable[[str], None], window: str, utc: str, inside: bool
) -> None:
    in_zone(BERLIN)
    time.tzset()
    box = Box(tmp_path, hours=(window,))
    box.local = datetime.fromtimestamp(datetime.fromisoformat(f"{utc}+00:00").timestamp())
    assert (box.after(0.0) == "") is inside


def test_mains(tmp_path: Path) -> None:
    box = Box(laptop(tmp_path), on_mains=True)
    box.gate.check()
    assert box.after(0.0) == "the box runs on battery"
    box.shows(**{"sys/class/power_supply/ADP1/online": 1})
    assert box.after(LOOK) == "the box runs on battery", "a plug that wobbles does not wake it"
    assert box.after(SHORTEST_REST) == ""
    box.shows(**{"sys/class/power_supply/ADP1/online": 0})
    assert box.after(LOOK) == "the box runs on battery"


def test_a_temperature_has_a_margin(tmp_path: Path) -> None:
    box = Box(jetson(tmp_path), below_celsius=75.0)
    box.gate.check()
    assert box.after(0.0) == ""
    box.shows(**{HOT: 74_900})
    assert box.after(LOOK) == ""
    box.shows(**{HOT: 75_000})
    reason = "the temperature is 75 °C (limit 75 °C, on below 72)"
    assert box.after(LOOK) == reason
    box.shows(**{HOT: 72_500})
    assert box.after(SHORTEST_REST) == reason, "the reason stays the same: it is published"
    box.shows(**{HOT: 71_900})
    assert box.after(LOOK) == ""


def test_a_temperature_that_swings_does_not_make_the_gate_flap(tmp_path: Path) -> None:
    box = Box(jetson(tmp_path), below_celsius=75.0)
    heard = []
    for step in range(200):
        box.shows(**{HOT: 80_000 if step % 2 else 60_000})
        heard.append(box.after(LOOK))
    changes = sum(bool(a) != bool(b) for a, b in itertools.pairwise(heard))
    assert changes <= 2 * 200 * LOOK / SHORTEST_REST


def test_a_sensor_that_vanishes_closes_the_gate(tmp_path: Path) -> None:
    box = Box(pc(tmp_path), below_celsius=75.0)
    assert box.after(0.0) == ""
    for path in tmp_path.glob("sys/class/hwmon/hwmon*/temp1_input"):
        path.unlink()
    assert box.after(LOOK) == "the temperature cannot be read"


def test_a_power_mode(tmp_path: Path) -> None:
    box = Box(jetson(tmp_path), power_modes=(0, 1))
    box.gate.check()
    assert box.after(0.0) == "the power mode is 2, allowed are 0, 1"
    box.shows(**{"var/lib/nvpmodel/status": "pmode:0001 fmode:quiet"})
    assert box.after(SHORTEST_REST) == ""


def load(box: Box, seconds: float, busy: int, own: int, training: bool = False) -> str:
    """Let 1000 ticks pass, with this many busy ones and this many of our own."""
    stat = (box.root / "proc/stat").read_text().split("\n")[0].split()[1:]
    times = [int(field) for field in stat]
    before = int((box.root / f"proc/{AGENT}/stat").read_text().rpartition(")")[2].split()[11])
    was_busy, was_idle = times[0] + times[2], times[3] + times[4]
    processors(box.root, was_busy + busy, was_idle + 1000 - busy)
    process(box.root, AGENT, 1, before + own)
    return box.after(seconds, training)


def with_load(root: Path) -> Box:
    process(jetson(root), AGENT, 1, ticks=10)
    box = Box(root, others_cpu_below=0.5)
    box.gate.check()
    return box


def test_nothing_begins_before_the_load_was_measured(tmp_path: Path) -> None:
    box = with_load(tmp_path)
    assert box.after(0.0) == "the load of other programs is not known yet"
    assert load(box, LOOK, busy=100, own=0) == ""


def test_our_own_load_is_not_that_of_others(tmp_path: Path) -> None:
    box = with_load(tmp_path)
    box.after(0.0)
    assert load(box, LOOK, busy=990, own=960) == ""
    assert load(box, LOOK, busy=990, own=960, training=True) == ""


def test_a_spike_does_not_end_a_turn_but_a_job_does(tmp_path: Path) -> None:
    box = with_load(tmp_path)
    box.after(0.0)
    assert load(box, LOOK, busy=100, own=0) == ""
    assert load(box, LOOK, busy=900, own=100) == ""
    assert load(box, LOOK, busy=100, own=100) == ""
    assert load(box, LOOK, busy=900, own=100) == ""
    reason = "other programs take 80% of the processors (limit 50%, on below 40%)"
    assert load(box, LOOK, busy=900, own=100) == reason
    assert load(box, SHORTEST_REST, busy=450, own=0) == reason
    assert load(box, LOOK, busy=390, own=0) == ""


def test_the_reason_is_told_anew_once_the_load_is_known(tmp_path: Path) -> None:
    box = with_load(tmp_path)
    box.after(0.0)
    assert load(box, LOOK, busy=900, own=0).startswith("other programs take 90%")


def test_the_gpus_load_is_judged_only_while_we_do_not_train(tmp_path: Path) -> None:
    box = Box(jetson(tmp_path), others_gpu_below=0.5)
    box.gate.check()
    assert box.after(0.0) == ""
    box.shows(**{GPU: 990})
    for _ in range(5):
        assert box.after(LOOK, training=True) == ""
    assert box.after(LOOK) == "", "a spike"
    reason = "other programs use the GPU for 99% of the time (limit 50%, on below 40%)"
    assert box.after(LOOK) == reason


def test_the_sensors_are_read_every_few_seconds_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Sensors] = []

    def celsius(sensors: Sensors) -> float:
        read.append(sensors)
        return 50.0

    monkeypatch.setattr(Sensors, "celsius", celsius)
    box = Box(tmp_path, below_celsius=75.0)
    for _ in range(20):
        box.after(0.5)
    assert len(read) == 2


def test_several_reasons_are_told_together(tmp_path: Path) -> None:
    box = Box(laptop(tmp_path), on_mains=True, below_celsius=60.0, hours=("22:00-06:00",))
    assert box.after(0.0) == (
        "it is outside the hours 22:00-06:00; the box runs on battery; "
        "the temperature is 70 °C (limit 60 °C, on below 57)"
    )


@pytest.mark.parametrize(
    ("box", "conditions", "what"),
    [
        (write, {"below_celsius": 75.0}, "below_celsius is set, but this box shows no temperature"),
        (write, {"others_cpu_below": 0.5}, "others_cpu_below is set, but this box shows no proc"),
        (jetson, {"on_mains": True}, "on_mains is set, but this box shows no power supply"),
        (pc, {"power_modes": (0,)}, "power_modes is set, but this box shows no power mode"),
        (laptop, {"others_gpu_below": 0.5}, "others_gpu_below is set, but this box shows no load"),
    ],
)
def test_a_condition_that_the_box_has_no_sensor_for_is_refused(
    tmp_path: Path, box: Callable[..., Path], conditions: dict[str, Any], what: str
) -> None:
    root = box(tmp_path, {}) if box is write else box(tmp_path)
    with pytest.raises(ConfigError, match=rf"hardware\.when\.{what}.*: remove the key"):
        Box(root, **conditions).gate.check()
