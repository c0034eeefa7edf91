"""The order of the checks: from the box outwards, and each only if it can be made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from fededge.doctor.catalogue import Diagnosis
from fededge.doctor.on_box import clock, data_folder, disk, installation, state_folder
from fededge.doctor.on_broker import (
    access,
    broker_limits,
    certificate_dates,
    fake_round,
    federation,
    reach,
)
from fededge.doctor.subject import Subject

__all__ = ["examine"]

Check = Callable[[Subject], Iterator[Diagnosis]]

ON_THE_BOX: tuple[Check, ...] = (
    installation.packages,
    state_folder.usable,
    state_folder.readable_by_others,
    state_folder.intact,
    disk.speed,
    certificate_dates.own,
)

ON_THE_BROKER: tuple[Check, ...] = (
    certificate_dates.brokers,
    broker_limits.features,
    federation.retained,
    broker_limits.packet_size,
    access.identity,
    access.reading,
    access.writing,
    access.forbidden,
    access.strangers,
    fake_round.chunks,
)
"""They share the connection that `reach` opens."""

AT_LAST: tuple[Check, ...] = (clock.behind, disk.space, data_folder.examples)
"""They know more if the federation's state has come."""


def examine(subject: Subject) -> Iterator[Diagnosis]:
    """Run every check that can be made; nothing on the box or the broker changes."""
    for check in ON_THE_BOX:
        yield from check(subject)
    with contextlib.ExitStack() as stack:
        yield from reach.broker(subject, stack)
        for check in ON_THE_BROKER if subject.line is not None else ():
            yield from check(subject)
            if subject.line is None or not subject.line.connected:
                break
    for check in AT_LAST:
        yield from check(subject)
