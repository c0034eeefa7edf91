"""Reports that no honest device makes, alone and with a whole update; updates nobody asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from fededge.flat import Vector
from fededge.wire import chunks, tensors
from fededge.wire.messages import Report, encode, round_of
from tests.security.fleet import HONEST, Fleet
from tests.security.hostile_device import HostileDevice, Update

pytestmark = pytest.mark.slow

CHUNK_BYTES = 65536

Odd = Callable[[Report], Report]


def said(**fields: Any) -> Odd:
    return lambda report: msgspec.structs.replace(report, **fields)


def counted(**scalars: float) -> Odd:
    return lambda r: msgspec.structs.replace(r, scalars={**r.scalars, **scalars})


def sized(**fields: Any) -> Odd:
    return lambda r: msgspec.structs.replace(
        r, manifest=msgspec.structs.replace(r.manifest, **fields)
    )


def without(name: str) -> Odd:
    return lambda r: msgspec.structs.replace(
        r, scalars={key: value for key, value in r.scalars.items() if key != name}
    )


def same_round(report: Report) -> Report:
    """A version that never was, under the number of the round that is open."""
    return msgspec.structs.replace(report, version=f"{report.version[:6]}-{'0' * 16}")


REFUSED_AT_ONCE: dict[str, Odd] = {
    "the report names device 'gate-1', its topic 'rogue'": said(device="gate-1"),
    "the update is of another run": said(run="another"),
    "the update's layout is": said(layout="0" * 64),
    "trained from version 000999-": said(version=f"000999-{'0' * 16}"),
    f"-{'0' * 16}, wanted is": same_round,
    "chunks of 1024 bytes, the federation's are": sized(chunk_bytes=1024),
    "the manifest announces": sized(bytes=2**53, chunks=1_000_000),
    "1000000 chunks of": sized(chunks=1_000_000),
    "the scalars are not those of the method: extra": counted(extra=1.0),
    "the scalars are not those of the method: a0": counted(**{f"a{i}": 1.0 for i in range(60)}),
    "the scalars are not those of the method: no examples": without("examples"),
    "it claims 1e+15 examples, the device announced 100": counted(examples=1e15),
    "it claims -1 examples": counted(examples=-1.0),
}
"""By what the refusal says."""

NO_REPORTS: list[Callable[[bytes], bytes]] = [
    lambda _: b"",
    lambda _: b"[]",
    lambda _: b'{"a":' * 100_000,
    lambda _: b"\xff\xfe",
    lambda r: r.replace(b'"loss":1.0', b'"loss":null'),
    lambda r: r.replace(b'"loss":1.0', b'"loss":NaN'),
    lambda r: r.replace(b'"loss":1.0', b'"loss":1e999'),
    lambda r: r.replace(b'"loss"', b'"Loss!"'),
    lambda r: r.replace(b'"device"', b'"round":7,"device"'),
    lambda r: r.replace(b'"chunks":', b'"chunks":-'),
    lambda r: r + b" " * 5_000_000,
    lambda r: r + b"\nFE1\n",  # an update in several chunks travels without its report
    lambda r: r + b"\nFE1\n" + b"\0" * 5_000_000,
    lambda r: b" " * 5_000_000 + r + b"\nFE1\n",
]

Whole = Callable[[HostileDevice, Vector], Update]


def numbers(value: float, scalars: dict[str, float] | None = None) -> Whole:
    return lambda device, model: device.update(np.full_like(model, value), scalars)


def like(odd: Odd) -> Whole:
    """A harmless model under an odd report."""

    def make(device: HostileDevice, model: Vector) -> Update:
        update = device.update(model)
        return Update(odd(update.report), update.payload)

    return make


def payload(change: Callable[[bytes], bytes]) -> Whole:
    def make(device: HostileDevice, model: Vector) -> Update:
        update = device.update(model)
        data = change(update.payload)
        manifest = chunks.manifest(data, CHUNK_BYTES)
        return Update(msgspec.structs.replace(update.report, manifest=manifest), data)

    return make


def other_names(device: HostileDevice, model: Vector) -> Update:
    update = device.update(model)
    data = tensors.encode(device.layout, {"other": model})
    manifest = chunks.manifest(data, CHUNK_BYTES)
    return Update(msgspec.structs.replace(update.report, manifest=manifest), data)


REFUSED_WHOLE: dict[str, Whole] = {
    "numbers that are not finite": numbers(float("nan")),
    "it has the number 3.4e+38": numbers(-3.4e38),
    "the tensors are not those of the layout": other_names,
    "not safetensors bytes: the tensors overlap or leave": payload(lambda data: data + b"more"),
    "not safetensors bytes: no header": payload(lambda data: b"\xff" * 100_000),
    "its SHA-256 does not match": like(sized(sha256="0" * 64)),
    "the report's steps must be a whole number between 0 and 4, got 5": like(counted(steps=5.0)),
    "the report's examples must be a whole number": like(counted(examples=0.5)),
    "the report's loss must be": like(counted(loss=1e300)),
    "the report's personal_accuracy must be": like(counted(personal_accuracy=2.0)),
    "the report lacks loss": like(without("loss")),
}
"""By what the refusal says: one a round."""

HALF = len(REFUSED_WHOLE) // 2


class Reporter:
    """Every round: all reports that are refused at once, and one update that is refused whole.

    The update of one round stops after its first chunk.
    """

    def __init__(self) -> None:
        self.left: Iterator[Whole] = iter(REFUSED_WHOLE.values())
        self.turns = 0

    def __call__(self, device: HostileDevice, model: Vector) -> Update | None:
        self.turns += 1
        good = device.update(model)
        for odd in REFUSED_AT_ONCE.values():
            update = Update(odd(good.report), good.payload)
            device.reports(update)
            device.sends(good, 0)  # which nobody asked for
        for spoilt in NO_REPORTS:
            device.says("report", spoilt(encode(good.report)))
        if self.turns == HALF:
            device.reports(good)
            device.sends(good, 0)
            return None
        return next(self.left)(device, model)


def test_no_report_ends_a_coordinator_or_keeps_it_from_starting_again(fleet: Fleet) -> None:
    """Each is refused with its reason; the honest devices' run is the one that they have alone."""
    count = len(REFUSED_WHOLE)
    rounds = {"count": count, "quarantine_after": 0}
    with fleet.run(rounds, transfer={"chunk_bytes": CHUNK_BYTES}) as run, run.hostile() as rogue:
        rogue.turn = Reporter()
        rogue.announces()
        half = f"{HALF - 1:06d}-*/rogue.safetensors"
        run.wait(lambda: [*run.store.spool.glob(half)], "the first chunk of an update")
        run.kill()
        run.again()
        run.ends()
        told = {reply.reason for reply in rogue.replies if reply.kind == "refused"}
    assert [reason for reason in REFUSED_AT_ONCE if not any(reason in t for t in told)] == []
    reasons = [reason for device, reason in run.refused() if device == "rogue"]
    for expected, reason in zip(REFUSED_WHOLE, reasons, strict=True):
        assert expected in reason
    assert [sorted(round_) for round_ in run.merged()] == [list(HONEST)] * count
    assert run.hashes == fleet.simulated(count)
    assert "Traceback" not in run.log


@pytest.mark.parametrize("late", ["refuse", "fold"])
def test_an_update_that_was_not_asked_for_or_is_late_is_never_merged(
    fleet: Fleet, late: str
) -> None:
    rounds = {"count": 500, "min_devices": 2, "late": late}
    with fleet.run(rounds) as run, run.hostile() as rogue:
        first = rogue.now.version
        replies = [tried(rogue, first)]
        run.wait(lambda: rogue.now.version > first, "the next round")
        replies += [tried(rogue, rogue.now.version) for _ in range(3)]
        assert {reply.kind for reply in replies} <= {"refused", "late"}

        rogue.announces()
        task = rogue.asked()
        rogue.announces(activity="unable", problem="busy")  # so that no round waits for it
        number = round_of(task.version)
        run.wait(lambda: run.rounds_done > number + 1, "the next rounds")
        if late == "refuse":
            assert tried(rogue, task.version).kind == "late"
        unasked = tried(rogue, first)
        assert unasked.kind == ("late" if late == "refuse" else "refused")
        replies.append(unasked)
        current = f"{rogue.now.version[:6]}-{first[7:]}"  # an old model under a new number
        assert tried(rogue, current, first).kind in ("refused", "late")
        run.kill()
        done = run.rounds_done
    reasons = {reply.reason for reply in replies if reply.kind == "refused"}
    assert all("the device was not asked for version" in reason for reason in reasons)
    assert {device for round_ in run.merged() for device in round_} == set(HONEST)
    assert run.hashes == fleet.simulated(done)


def tried(rogue: HostileDevice, version: str, model: str = "") -> Any:
    vector = rogue.model(model or version)
    return rogue.tries(rogue.update(vector + np.float32(0.01), version=version))
