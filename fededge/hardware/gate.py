"""The gate: whether this box may train now, by its own conditions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from fededge.errors import ConfigError
from fededge.hardware.hours import parse_hours
from fededge.hardware.sensors import CpuTimes, Sensors

__all__ = ["Conditions", "Gate", "Verdict"]

LOOK = 5.0
"""Seconds between two looks at the sensors; the load of others is that in between."""

SHORTEST_REST = 60.0
"""Seconds that a measured rule stays closed at least, so that the gate does not flap."""

COOLER = 3.0
"""Degrees below the limit at which the training goes on."""

CALMER = 0.8
"""Share of a load's limit below which the training goes on."""

SPIKE = 2
"""Looks in a row at which a load must be too high: a job of a moment does not end a turn."""


def local_time() -> datetime:
    """The wall clock's time; a time zone that was changed since the agent's start counts."""
    time.tzset()
    return datetime.now()


@dataclass(frozen=True)
class Conditions:
    """The conditions under which a box trains; one that is empty, False or 0 is not asked for.

    Attributes:
        hours: windows of the week, in local time.
        on_mains: only while a charger is plugged in.
        power_modes: modes of a Jetson's nvpmodel.
        below_celsius: only while processor and GPU are cooler.
        others_cpu_below: only while other processes take a smaller share of the processors.
        others_gpu_below: only while others use the GPU for a smaller share of the time.
    """

    hours: tuple[str, ...] = ()
    on_mains: bool = False
    power_modes: tuple[int, ...] = ()
    below_celsius: float = 0.0
    others_cpu_below: float = 0.0
    others_gpu_below: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """`allowed`: this box may train now. `reason` says why not."""

    allowed: bool
    reason: str = ""


@dataclass
class _Rule:
    """A measured condition: it closes at `limit`, and opens below `resume` after a while.

    Attributes:
        key: its name in the configuration.
        measure: the value now; None closes the rule.
        tell: the reason, from the value.
        looks: how many in a row at which the limit must be reached.
        closed: it forbids a turn. A load starts so: nothing was measured yet.
        until: it does not open before.
    """

    key: str
    measure: Callable[[], float | None]
    tell: Callable[[float | None], str]
    limit: float
    resume: float
    looks: int = 1
    closed: bool = False
    until: float = -math.inf
    value: float | None = None
    exceeded: int = 0

    def look(self, now: float) -> None:
        self.value = value = self.measure()
        self.exceeded = self.exceeded + 1 if value is None or value >= self.limit else 0
        if not self.closed and self.exceeded >= self.looks:
            self.closed, self.until = True, now + SHORTEST_REST
        elif value is not None and value < self.resume and now >= self.until:
            self.closed = False

    @property
    def reason(self) -> str:
        return self.tell(self.value)


class Gate:
    """Judges the conditions by the sensors. The constructor reads none of them."""

    def __init__(
        self,
        conditions: Conditions,
        sensors: Sensors | None = None,
        clock: Callable[[], float] = time.monotonic,
        local: Callable[[], datetime] = local_time,
    ) -> None:
        self.conditions = conditions
        self.sensors = sensors or Sensors()
        self.clock = clock
        self.local = local
        self._hours = parse_hours(conditions.hours)
        self._times: CpuTimes | None = None
        self._rules = self._made()
        self._looked = -math.inf
        self._closed: object = None
        self._verdict = Verdict(True)

    def check(self) -> None:
        """Refuse a condition that this box has no sensor for; ConfigError names its key."""
        asked, found = self.conditions, self.sensors
        lacking = {
            "on_mains": (asked.on_mains, found.on_mains, "power supply"),
            "power_modes": (asked.power_modes, found.power_mode, "power mode of nvpmodel"),
            "below_celsius": (asked.below_celsius, found.celsius, "temperature"),
            "others_cpu_below": (asked.others_cpu_below, found.cpu_times, "processor times"),
            "others_gpu_below": (asked.others_gpu_below, found.gpu_load, "load of a GPU"),
        }
        for key, (wanted, read, what) in lacking.items():
            if wanted and read() is None:
                raise ConfigError(
                    f"hardware.when.{key} is set, but this box shows no {what}: remove the key, or "
                    "correct the permissions if the agent may not read it"
                )

    def verdict(self, training: bool = False) -> Verdict:
        """May this box train now? The reason stays the same while the same conditions forbid it.

        `training`: we train right now. The GPU's load is then our own, and says nothing of others.
        """
        now = self.clock()
        if now - self._looked >= LOOK:
            self._looked = now
            for rule in self._rules:
                if not (training and rule.key == "others_gpu_below"):
                    rule.look(now)
            self._judge()
        return self._verdict

    def _judge(self) -> None:
        hours, moment = self._hours, self.local()
        outside = bool(hours) and not any(window.include(moment) for window in hours)
        closed = [rule for rule in self._rules if rule.closed]
        found = (outside, *((rule.key, rule.value is None) for rule in closed))
        if found != self._closed:
            late = (
                [f"it is outside the hours {', '.join(self.conditions.hours)}"] if outside else []
            )
            reasons = [*late, *(rule.reason for rule in closed)]
            self._closed, self._verdict = found, Verdict(not reasons, "; ".join(reasons))

    # The rules

    def _made(self) -> list[_Rule]:
        asked, rules = self.conditions, list[_Rule]()
        if asked.on_mains:
            rules.append(_Rule("on_mains", self._on_battery, _battery, 1.0, 1.0))
        if asked.power_modes:
            rules.append(_Rule("power_modes", self._other_mode, self._tell_mode, 1.0, 1.0))
        if asked.below_celsius:
            limit = asked.below_celsius
            tell, read = _warm(limit), self.sensors.celsius
            rules.append(_Rule("below_celsius", read, tell, limit, limit - COOLER))
        if asked.others_cpu_below:
            tell = _loaded("other programs take", "of the processors", asked.others_cpu_below)
            rules.append(_load("others_cpu_below", self._cpu, tell, asked.others_cpu_below))
        if asked.others_gpu_below:
            tell = _loaded("other programs use the GPU for", "of the time", asked.others_gpu_below)
            read = self.sensors.gpu_load
            rules.append(_load("others_gpu_below", read, tell, asked.others_gpu_below))
        return rules

    def _on_battery(self) -> float | None:
        mains = self.sensors.on_mains()
        return None if mains is None else float(not mains)

    def _other_mode(self) -> float | None:
        mode = self.sensors.power_mode()
        return None if mode is None else float(mode not in self.conditions.power_modes)

    def _tell_mode(self, value: float | None) -> str:
        if value is None:
            return "the power mode cannot be read"
        allowed = ", ".join(map(str, self.conditions.power_modes))
        return f"the power mode is {self.sensors.power_mode()}, allowed are {allowed}"

    def _cpu(self) -> float | None:
        before, self._times = self._times, self.sensors.cpu_times()
        if before is None or self._times is None:
            return None
        return self._times.others_since(before)


def _load(
    key: str,
    measure: Callable[[], float | None],
    tell: Callable[[float | None], str],
    limit: float,
) -> _Rule:
    return _Rule(key, measure, tell, limit, CALMER * limit, looks=SPIKE, closed=True)


def _battery(value: float | None) -> str:
    return "the power supply cannot be read" if value is None else "the box runs on battery"


def _warm(limit: float) -> Callable[[float | None], str]:
    def tell(value: float | None) -> str:
        if value is None:
            return "the temperature cannot be read"
        return (
            f"the temperature is {value:.0f} °C (limit {limit:g} °C, on below {limit - COOLER:g})"
        )

    return tell


def _loaded(what: str, of: str, limit: float) -> Callable[[float | None], str]:
    def tell(value: float | None) -> str:
        if value is None:
            return "the load of other programs is not known yet"
        return f"{what} {value:.0%} {of} (limit {limit:.0%}, on below {CALMER * limit:.0%})"

    return tell
