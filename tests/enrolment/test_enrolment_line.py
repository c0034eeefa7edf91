"""A box that asks over the broker takes the answer for its own key alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fededge.cli import main
from fededge.cli.enrolment import enrolment_line
from fededge.config import BrokerConfig
from fededge.enrolment.answer import EnrolmentAnswer, accept
from fededge.enrolment.request import make_request, read_request
from fededge.errors import RefusedError


class Line:
    """A connection with a broker that has kept these answers."""

    answers: tuple[bytes, ...] = ()
    connected = True

    def __init__(self, broker: BrokerConfig, seconds: float) -> None:
        self.heard: list[Any] = []
        self.published: list[bytes] = []

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def subscribe(self, topics: list[str]) -> None:
        self.heard = [SimpleNamespace(payload=answer) for answer in self.answers]

    def publish(self, topic: str, payload: bytes, retain: bool) -> int:
        return 0

    def listen(self, seconds: float, done: Any) -> None:
        done()


def answer_for(pki: Path, pem: bytes) -> bytes:
    certificate = accept(pki, read_request(pem), 10, replace=True)
    ca = (pki / "ca.crt").read_text()
    return msgspec.json.encode(EnrolmentAnswer("gate-7", "f", "h", 1, certificate, ca))


def test_the_answer_to_an_earlier_box_of_this_name_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is retained, and the new box could not take it away."""
    pki = tmp_path / "pki"
    assert main(["init", "certificates", "--out", str(pki), "--broker", "10.0.0.2"]) == 0
    old, new = (make_request(tmp_path / f"{box}.key", "gate-7") for box in ("old", "new"))
    stale = answer_for(pki, old)
    monkeypatch.setattr(enrolment_line, "Probing", Line)
    Line.answers = (b"", b"[" * 100_000, stale)
    with pytest.raises(RefusedError, match="gate-7 is pending"):
        enrolment_line.ask(BrokerConfig(), "f", read_request(new), new, 0.01)
    Line.answers = (stale, fresh := answer_for(pki, new))
    assert enrolment_line.ask(BrokerConfig(), "f", read_request(new), new, 5.0) == fresh
