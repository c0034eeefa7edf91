"""A report alone and a report with its update: one message either way, bounded and unambiguous."""

from __future__ import annotations

import msgspec
import pytest

from fededge.errors import WireError
from fededge.wire import chunks, reports
from fededge.wire.messages import MAX_OTHER_BYTES, Report, decode, encode

PAYLOAD = bytes(range(256)) * 8 + b"\nFE1\n{}"
FACTS = chunks.manifest(PAYLOAD, 4096)
REPORT = Report("box", "run", "000003-9f86d081884c7d65", "60" * 32, FACTS, {"examples": 9.0})


def test_a_report_alone_is_read_as_before() -> None:
    assert reports.split(encode(REPORT)) == (REPORT, memoryview(b""))


def test_the_update_comes_back_whole_and_as_a_view() -> None:
    message = reports.join(REPORT, chunks.pack(PAYLOAD, FACTS, 0))
    report, chunk = reports.split(message)
    assert report == REPORT
    assert chunks.whole(chunk, report.manifest) == PAYLOAD
    assert chunk.obj is message, "it was copied"


def test_a_coordinator_that_knows_only_the_old_form_drops_it_with_a_sentence() -> None:
    with pytest.raises(WireError, match="not a Report"):
        decode(reports.join(REPORT, chunks.pack(PAYLOAD, FACTS, 0)), Report)


def test_a_report_may_have_line_feeds_between_its_fields() -> None:
    """Other clients may write JSON over several lines."""
    assert reports.split(msgspec.json.format(encode(REPORT))) == (REPORT, memoryview(b""))


def test_an_update_in_several_chunks_may_not_come_along() -> None:
    facts = chunks.manifest(PAYLOAD, 1024)
    report = msgspec.structs.replace(REPORT, manifest=facts)
    with pytest.raises(WireError, match="update in 3 chunks"):
        reports.split(reports.join(report, chunks.pack(PAYLOAD, facts, 0)))


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda chunk: chunk[:-1],
        lambda chunk: chunk + b"\0",
        lambda chunk: chunk[:40] + b"?" + chunk[41:],
        lambda _: chunks.pack(PAYLOAD, chunks.manifest(PAYLOAD, 2048), 0),
        lambda _: chunks.pack(PAYLOAD[1:], chunks.manifest(PAYLOAD[1:], 4096), 0),
        lambda _: b"FE1\n",
    ],
    ids=["cut off", "longer", "damaged", "of several", "of another payload", "only its mark"],
)
def test_the_chunk_is_checked_like_any_other(spoilt: object) -> None:
    assert callable(spoilt)
    message = reports.join(REPORT, spoilt(chunks.pack(PAYLOAD, FACTS, 0)))
    report, chunk = reports.split(message)
    assert len(chunk) > 0
    with pytest.raises(WireError):
        chunks.whole(chunk, report.manifest)


def test_the_report_itself_stays_within_its_limit() -> None:
    """A chunk that begins later than a report can end is none: the message is refused by size."""
    chunk = chunks.pack(PAYLOAD, FACTS, 0)
    text = encode(REPORT)
    at_the_limit = text + b" " * (MAX_OTHER_BYTES - len(text))
    assert reports.split(at_the_limit + b"\n" + chunk)[0] == REPORT
    with pytest.raises(WireError, match="over the limit"):
        reports.split(at_the_limit + b" \n" + chunk)
