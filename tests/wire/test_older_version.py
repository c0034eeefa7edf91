"""Messages of version 0.1.0 are understood, and it understands ours."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import msgspec
import pytest

from fededge.errors import WireError
from fededge.wire import reports
from fededge.wire.messages import (
    Claim,
    Message,
    Presence,
    Reply,
    Report,
    State,
    Status,
    TaskMessage,
    decode,
    encode,
)
from fededge.wire.topics import Topics

FOLDER = Path(__file__).parents[1] / "data" / "version-0.1.0"
KINDS: dict[str, type[Message]] = {
    "state": State,
    "coordinator status": Presence,
    "coordinator claim": Claim,
    "status": Status,
    "claim": Claim,
    "task": TaskMessage,
    "reply": Reply,
    "report": Report,
}


def recorded() -> list[tuple[type[Message], bytes]]:
    found = []
    for topic, text in json.loads((FOLDER / "messages.json").read_text()):
        kind, payload = KINDS[Topics("old").parse(topic).kind], base64.b64decode(text)
        found.append((kind, encode(reports.split(payload)[0]) if kind is Report else payload))
    return found


def test_every_kind_of_message_was_recorded() -> None:
    assert {kind for kind, _ in recorded()} == {*KINDS.values()}


@pytest.mark.parametrize("kind", dict.fromkeys(KINDS.values()))
def test_a_message_of_0_1_0_is_understood_and_it_understands_ours(kind: type[Message]) -> None:
    """0.1.0 refuses a field that it does not know: our default messages must not have one."""
    for found, payload in recorded():
        if found is kind:
            ours = json.loads(encode(decode(payload, kind)))
            assert ours == json.loads(payload)


def test_a_field_of_a_newer_version_is_refused_with_a_sentence() -> None:
    payload = msgspec.json.encode({"nonce": "0a" * 16, "colour": "blue"})
    said = "unknown field `colour`; its sender may run a newer version of FedEdge: upgrade"
    with pytest.raises(WireError, match=said):
        decode(payload, Claim)
