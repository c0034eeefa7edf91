"""docs/protocol.md names every topic and field, and no others."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import msgspec
import pytest

from fededge.errors import WireError
from fededge.model_spec import ModelSpec
from fededge.wire import chunks, messages
from fededge.wire.messages import Message
from fededge.wire.topics import DEVICE_KINDS, Topics
from fededge_agent import agent, egress
from fededge_agent.machine import turn
from fededge_server import shell as server
from fededge_server.model import publisher

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
EXAMPLES = {"<federation>": "gates", "<id>": "gate-7", "<version>": "000003-9f86d081884c7d65"}
KINDS = {"state", "model", "coordinator status", "coordinator claim", "update", *DEVICE_KINDS}


def all_messages() -> dict[str, type[Message]]:
    found: dict[str, type[Message]] = {}
    waiting = [Message]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        found[kind.__name__] = kind
    del found["Message"]
    return found


MESSAGES = all_messages()


def section(title: str, level: int = 2) -> str:
    """The text below a heading, up to the next one of its level or above."""
    mark = "#" * level
    match = re.search(
        rf"^{mark} {re.escape(title)}$(.*?)(?=^#{{1,{level}}} |\Z)", PAGE, re.M | re.S
    )
    assert match is not None, f"docs/protocol.md has no section '{title}'"
    return match[1]


def rows(text: str) -> list[list[str]]:
    """The cells of the tables in a text, without their headings."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    start = [index for index, row in enumerate(cells) if set(row[0]) == {"-"}]
    return [row for index, row in enumerate(cells) if index not in start and index + 1 not in start]


def test_the_topics_are_those_that_exist() -> None:
    topics = Topics("gates")
    kinds: dict[str, str] = {}
    for topic, _, _, content in rows(section("Topics")):
        text = topic.strip("`").replace("<chunk>", "0")
        for placeholder, example in EXAMPLES.items():
            text = text.replace(placeholder, example)
        kinds[topics.parse(text).kind] = content
    assert kinds.keys() == KINDS
    assert {content for content in kinds.values() if content != "chunk"} <= MESSAGES.keys()


def test_the_kinds_are_all_that_the_parser_knows() -> None:
    """`KINDS` above is complete: no other word in a topic's place is understood."""
    topics = Topics("gates")
    words = set(re.findall(r"[a-z]+", (Path(messages.__file__).parent / "topics.py").read_text()))
    found: set[str] = set()
    for word in words:
        for tail in ("", "/000003-9f86d081884c7d65/0"):
            for head in ("", "coordinator/", "device/gate-7/"):
                try:
                    found.add(topics.parse(f"{topics.root}/{head}{word}{tail}").kind)
                except WireError:
                    continue
    assert found == KINDS


def test_the_messages_are_those_that_exist() -> None:
    assert set(re.findall(r"^### (\w+)$", section("Messages"), re.M)) == MESSAGES.keys()


@pytest.mark.parametrize("name", MESSAGES)
def test_the_fields_of_a_message_are_those_that_exist(name: str) -> None:
    documented = [row[0].strip("`") for row in rows(section(name, 3))]
    assert documented == [field.name for field in msgspec.structs.fields(MESSAGES[name])]


@pytest.mark.parametrize("name", MESSAGES)
def test_the_example_of_a_message_is_one_and_has_every_field(name: str) -> None:
    (example,) = re.findall(r"^```json\n(.*?)^```$", section(name, 3), re.M | re.S)
    message = messages.decode(example.encode(), MESSAGES[name])
    fields = [field.name for field in msgspec.structs.fields(MESSAGES[name])]
    assert list(json.loads(example)) == fields
    later = messages.LATER.get(MESSAGES[name], {})
    shown = {key: value for key, value in json.loads(example).items() if key not in later}
    assert json.loads(messages.encode(message)) == shown


def test_the_parts_of_a_model_are_those_that_exist() -> None:
    (meaning,) = [row[1] for row in rows(section("State", 3)) if row[0] == "`model`"]
    fields = [field.name for field in msgspec.structs.fields(ModelSpec)]
    assert re.findall(r"`(\w+)`", meaning) == fields


def test_the_words_that_a_field_may_take_are_named() -> None:
    for name, field in (("State", "phase"), ("Status", "activity"), ("Reply", "kind")):
        hints = msgspec.inspect.type_info(MESSAGES[name])
        assert isinstance(hints, msgspec.inspect.StructType)
        (info,) = [f.type for f in hints.fields if f.name == field]
        assert isinstance(info, msgspec.inspect.LiteralType)
        (meaning,) = [row[1] for row in rows(section(name, 3)) if row[0] == f"`{field}`"]
        assert set(re.findall(r"`(\w+)`", meaning)) == set(info.values)


def test_a_chunk_is_laid_out_as_the_table_says() -> None:
    payload = hashlib.shake_128(b"payload").digest(3000)
    facts = chunks.manifest(payload, 1024)
    message = chunks.pack(payload, facts, 2)
    place = 0
    parts: list[bytes] = []
    for offset, size, _ in rows(section("Chunks")):
        assert int(offset) == place
        place += int(size or len(message) - place)
        parts.append(message[int(offset) : place])
    mark, _, index, count, length, tag, data = parts
    assert mark == bytes.fromhex("4645310a")
    numbers = [int.from_bytes(part, "little") for part in (index, count, length)]
    assert numbers == [2, 3, len(data)]
    assert tag == hashlib.sha256(payload).digest()[:8]
    assert data == payload[2048:]


def test_the_limits_are_those_that_hold() -> None:
    limits = {row[0]: row[1] for row in rows(section("Limits"))}
    schema = msgspec.json.schema(messages.Manifest)["$defs"]["Manifest"]["properties"]
    assert str(messages.MAX_STATE_BYTES) in limits["JSON message"]
    assert str(messages.MAX_OTHER_BYTES) in limits["JSON message"]
    assert str(schema["chunks"]["maximum"]) in limits["chunks of a payload"]
    low, high = schema["chunk_bytes"]["minimum"], schema["chunk_bytes"]["maximum"]
    assert limits["data of a chunk"].startswith(f"{low} to {high} bytes")
    assert str(chunks.CHUNK_BYTES) in limits["data of a chunk"]
    assert str(messages.MAX_RESEND) in limits["chunks named in one `resend`"]
    assert str(schema["bytes"]["maximum"]) in limits["counts"]


def test_the_times_are_those_that_hold() -> None:
    round_ = " ".join(section("A round").split())
    lost = f"After {chunks.STALLED:.0f} seconds without one"
    assert lost in round_
    assert f"up to {chunks.MAX_STALLED:.0f}" in round_
    assert f"After {turn.UNANSWERED:.0f} seconds (then" in round_
    assert f"up to {turn.LONGEST_WAIT:.0f}" in round_
    kept = " ".join(section("What is retained, and until when").split())
    assert f"expires after {publisher.CHUNK_EXPIRY // 86_400} days" in kept
    assert f"Chunks of an update expire after {egress.CHUNK_EXPIRY // 3600} hours" in kept
    assert server.SESSION_KEPT == agent.SESSION_KEPT
    assert f"at most {agent.SESSION_KEPT // 3600} hours" in kept
