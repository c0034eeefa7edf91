"""The hold on a name: what others say under it is contradicted, at a bounded rate.

Claims are tested with a real broker, in tests/transport/test_session.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fededge.errors import WireError
from fededge.service.presence import Holder
from fededge.wire.messages import Presence, decode
from tests.transport.test_session import ME, OTHER, said_by


def heard(holder: Holder, payload: bytes, now: float) -> None:
    """A message on our topic, as the shell passes it on."""
    try:
        found = decode(payload, Presence)
    except WireError:
        found = None
    holder.hears(payload, found, now)


def holding(now: float = 100.0) -> Holder:
    """A holder whose presence has come back to it."""
    holder = Holder(ME)
    holder.says(said_by(ME), now)
    heard(holder, said_by(ME), now)
    return holder


def test_a_holder_is_not_alarmed_by_itself_by_the_gone_or_by_leftovers() -> None:
    """A presence before the echo of our own was said before it, by a process of ours that
    was killed: the broker had kept it for our session.
    """
    holder = Holder(ME)
    holder.says(said_by(ME), 100.0)
    heard(holder, said_by(OTHER), 100.0)
    assert not holder.due(200.0), "nor does it speak before it has heard itself"
    heard(holder, said_by(ME), 100.0)
    heard(holder, said_by(OTHER, online=False), 100.0)
    heard(holder, said_by(ME), 101.0)
    assert (holder.rival, holder.due(200.0)) == ("", False)


@pytest.mark.parametrize(
    "word",
    [
        pytest.param(lambda: said_by(OTHER), id="a rival's"),
        pytest.param(lambda: said_by(OTHER, online=False), id="a rival's last"),
        pytest.param(lambda: said_by(ME, online=False), id="our own will, repeated"),
        pytest.param(lambda: b"", id="nothing: what was retained is gone"),
        pytest.param(lambda: b"garbage", id="garbage"),
    ],
)
def test_a_foreign_presence_is_contradicted_at_a_bounded_rate(
    word: Callable[[], bytes],
) -> None:
    holder = holding(now=100.0)
    heard(holder, word(), 101.0)
    assert not holder.due(104.9)
    assert holder.due(105.0)
    said = 0
    for tenth in range(1050, 2050):  # a hundred seconds of it
        now = tenth / 10
        heard(holder, word(), now)
        if holder.due(now):
            holder.says(said_by(ME), now)
            said += 1
    assert said == 20
    heard(holder, said_by(ME), 206.0)
    assert not holder.contested, "ours is the last word"


def test_a_rival_is_named_until_it_falls_silent() -> None:
    holder = holding(now=100.0)
    heard(holder, said_by(OTHER), 101.0)
    assert holder.rival == OTHER
    heard(holder, said_by(ME), 102.0)
    assert not holder.due(160.9)
    assert holder.due(161.0), "to be said, for the problem is gone"
    assert (holder.rival, holder.due(161.0)) == ("", False)


def test_a_presence_is_not_repeated_without_a_connection() -> None:
    holder = holding()
    heard(holder, said_by(OTHER), 101.0)
    holder.lost()
    assert not holder.due(110.0)
