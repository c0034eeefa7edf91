"""Messages: round trips, and refusal of everything outside the schema."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fededge.errors import WireError
from fededge.model_spec import ModelSpec
from fededge.wire.messages import (
    MAX_OTHER_BYTES,
    MAX_RESEND,
    Claim,
    Manifest,
    Message,
    Presence,
    Reply,
    Report,
    Rollout,
    State,
    Status,
    TaskMessage,
    Training,
    decode,
    encode,
)

VERSION = "000001-0123456789abcdef"
HASH = "0123456789abcdef" * 4
ME, YOU = "5d" * 16, "9e" * 16
MANIFEST = Manifest(3, 1024, 2500, HASH)
MESSAGES: list[Message] = [
    MANIFEST,
    Rollout(2, 2, 2, 3, 0.25),
    Training(1, 32, 0.01, 0.9, 1e-5),
    State(
        federation="fleet",
        run="0123",
        seed=2**53,
        round=1,
        rounds=10,
        phase="open",
        version=VERSION,
        sha256=HASH,
        layout=HASH,
        method="fedprox(mu=0.1)",
        training=Training(1, 32, 0.01, 0.9, 1e-5),
        model=ModelSpec("lenet", ("Füße", "b"), (1, 28, 28), (0.5,), (0.25,)),
        manifest=MANIFEST,
        deadline=600.0,
        asked=2,
        accuracy=0.5,
        turns=4,
        rollout=Rollout(1, 0, 0, 1, 1.0),
    ),
    Presence(ME, online=True, federation="fleet", answers=YOU),
    Status(ME, True, device="a", activity="ready", layout=HASH, examples=3, software="0.1.0"),
    Status(ME, False, device="a"),
    Claim(ME),
    TaskMessage("a", "0123", VERSION),
    TaskMessage("a", "0123", VERSION, "0a" * 64),
    Report("a", "0123", VERSION, HASH, MANIFEST, {"examples": 3.0, "loss": 1e-5}),
    Reply("accepted", VERSION),
    Reply("resend", VERSION, chunks=(0, 7)),
    Reply("refused", VERSION, "because", device="a", run="0123", signature="0a" * 64),
]
NAMES = [type(message).__name__ for message in MESSAGES]


@pytest.mark.parametrize("message", MESSAGES, ids=NAMES)
def test_every_message_comes_back_as_it_went(message: Message) -> None:
    assert decode(encode(message), type(message)) == message


def test_every_kind_of_message_is_among_the_examples() -> None:
    def below(kind: type[Message]) -> set[type[Message]]:
        return {kind}.union(*(below(sub) for sub in kind.__subclasses__()))

    assert below(Message) - {Message} == {type(message) for message in MESSAGES}


def refused(data: bytes, kind: type[Message]) -> str:
    with pytest.raises(WireError) as caught:
        decode(data, kind)
    text = str(caught.value)
    assert len(text) < 400
    assert "\n" not in text
    return text


@pytest.mark.parametrize("message", MESSAGES, ids=NAMES)
def test_a_field_that_the_schema_does_not_name_is_refused(message: Message) -> None:
    fields = json.loads(encode(message))
    assert "labels" in refused(json.dumps(fields | {"labels": [1, 2]}).encode(), type(message))


@pytest.mark.parametrize("message", MESSAGES, ids=NAMES)
def test_a_field_of_the_wrong_type_is_refused(message: Message) -> None:
    for name in json.loads(encode(message)):
        odds: list[Any] = [{"a": {}}, [[1]], 1.5, "\n"]
        for odd in odds:
            fields = json.loads(encode(message)) | {name: odd}
            try:
                decode(json.dumps(fields).encode(), type(message))
            except WireError:
                continue
            # A float where a float belongs, a text where any short text belongs.
            assert isinstance(getattr(message, name), float if odd == 1.5 else str), (name, odd)


def altered(message: Message, **fields: Any) -> bytes:
    return json.dumps(json.loads(encode(message)) | fields).encode()


TASK = TaskMessage("a", "0123", VERSION)
PRESENCE = Presence(ME, True, "fleet")
ODD = ["", "i", ME.upper(), f"{ME}\n", ME[1:], f"{ME}0"]
REPORT = Report("a", "0123", VERSION, HASH, MANIFEST, {"examples": 3.0})


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (TASK, {"device": "a\n"}),
        (TASK, {"device": "../a"}),
        (TASK, {"device": ""}),
        (TASK, {"version": f"{VERSION}\n"}),
        (TASK, {"version": "../../etc/passwd"}),
        (TASK, {"version": "٣" * 6 + VERSION[6:]}),
        (TASK, {"round": 0}),  # which round a version belongs to, no message decides
        (REPORT, {"round": 0}),
        (REPORT, {"layout": HASH.upper()}),
        (REPORT, {"layout": f"{HASH}\n"}),
        (REPORT, {"scalars": {"Loss": 1.0}}),
        (REPORT, {"scalars": {"loss\n": 1.0}}),
        (REPORT, {"scalars": {"loss": None}}),
        (REPORT, {"scalars": {"loss": "1"}}),
        (REPORT, {"scalars": {"loss": [1.0]}}),
        (REPORT, {"scalars": {f"s{index}": 1.0 for index in range(65)}}),
        (REPORT, {"manifest": None}),
        (MANIFEST, {"chunks": 0}),
        (MANIFEST, {"chunks": 1_000_001}),
        (MANIFEST, {"chunk_bytes": 1023}),
        (MANIFEST, {"chunk_bytes": 16 * 1024 * 1024 + 1}),
        (MANIFEST, {"bytes": -1}),
        (MANIFEST, {"bytes": 2**53 + 1}),
        (MANIFEST, {"bytes": 10**400}),
        (MANIFEST, {"bytes": True}),
        (Reply("resend", VERSION), {"chunks": list(range(MAX_RESEND + 1))}),
        (Reply("resend", VERSION), {"chunks": [-1]}),
        (Reply("resend", VERSION), {"kind": "maybe"}),
        (Reply("refused", VERSION), {"reason": "x" * 2001}),
        (Reply("refused", VERSION), {"version": ""}),
        (Reply("refused", VERSION), {"device": "../a"}),
        (Reply("refused", VERSION), {"fatal": True}),  # no message ends a process
        (TASK, {"signature": "0a"}),
        (TASK, {"run": None}),
        *((PRESENCE, {"instance": odd}) for odd in ODD),
        *((PRESENCE, {"answers": odd}) for odd in ODD[1:]),
        *((Status(ME, True), {"instance": odd}) for odd in ODD),
        *((Claim(ME), {"nonce": odd}) for odd in ODD),
        (PRESENCE, {"federation": ""}),
    ],
)
def test_a_value_out_of_its_range_is_refused(message: Message, fields: dict[str, Any]) -> None:
    refused(altered(message, **fields), type(message))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400])
def test_a_number_that_is_none_is_refused(number: str) -> None:
    data = encode(REPORT).replace(b'"examples":3.0', f'"examples":{number}'.encode())
    assert number.encode() in data
    refused(data, Report)


@pytest.mark.parametrize(
    "data",
    [b"", b" ", b"\0", b"null", b"[]", b"1", b"{", b'{"nonce":"i"} {}', b'{"nonce":"\xff"}'],
)
def test_bytes_that_are_not_a_message_are_refused(data: bytes) -> None:
    refused(data, Claim)


def test_a_message_over_the_limit_is_refused_unread() -> None:
    data = encode(Claim(ME))[:-1] + b" " * MAX_OTHER_BYTES + b"}"
    assert "over the limit" in refused(data, Claim)
    assert decode(data.replace(b" " * 100, b""), Claim) == Claim(ME)


def test_the_longest_honest_messages_pass() -> None:
    long = "\U0001f600" * 2000
    scalars = {f"{'a' * 37}{i:03d}": -1.7976931348623157e308 for i in range(64)}
    for message in (
        Reply("resend", VERSION, long, tuple(range(999_000, 1_000_000)), "b" * 64, "r" * 64),
        Report("b" * 64, "r" * 64, VERSION, HASH, MANIFEST, scalars),
        Status(ME, True, device="b" * 64, problem=long),
    ):
        assert decode(encode(message), type(message)) == message


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    deep = opening * 10_000
    for data in (deep, b'{"nonce":' + deep, b'{"other":' + deep):
        refused(data, Claim)


def test_the_last_of_a_repeated_key_counts() -> None:
    assert decode(f'{{"nonce":"{ME}","nonce":"{YOU}"}}'.encode(), Claim) == Claim(YOU)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_wire_error(data: bytes) -> None:
    for message in MESSAGES:
        try:
            decode(data, type(message))
        except WireError:
            continue
        raise AssertionError(f"{data!r} is a {type(message).__name__}")


def test_mutations_of_valid_messages_are_a_message_or_a_wire_error() -> None:
    rng = random.Random(0)
    through = 0
    for _ in range(5000):
        message = rng.choice(MESSAGES)
        data = bytearray(encode(message))
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(data))
            if rng.random() < 0.5:
                data[place] = rng.randrange(256)
            else:
                del data[place : place + rng.randrange(1, 6)]
            if not data:
                break
        try:
            decode(bytes(data), type(message))
            through += 1
        except WireError:
            pass
    assert through, "not one mutation was harmless: the test would not notice a crash behind decode"


def test_messages_do_not_change_once_made() -> None:
    with pytest.raises(AttributeError):
        TASK.version = VERSION  # type: ignore[misc]


def test_floats_keep_every_bit() -> None:
    rng = random.Random(0)
    for _ in range(1000):
        value = rng.uniform(-1, 1) * 10.0 ** rng.randint(-300, 300)
        report = msgspec.structs.replace(REPORT, scalars={"examples": 1.0, "loss": value})
        assert decode(encode(report), Report).scalars["loss"] == value


@pytest.mark.parametrize(
    "files",
    [
        {"/etc/keepsake.py": HASH},
        {"../keepsake": HASH},
        {"keepsake\n": HASH},
        {"": HASH},
        {"keepsake": "/etc/keepsake.py"},
        {"keepsake": HASH[1:]},
        {f"m{i}": HASH for i in range(65)},
    ],
)
def test_a_file_is_announced_by_a_name_and_a_hash_only(files: dict[str, str]) -> None:
    state = next(message for message in MESSAGES if isinstance(message, State))
    good = msgspec.structs.replace(state, files={"keepsake": HASH})
    assert decode(encode(good), State) == good
    with pytest.raises(WireError, match="not a State"):
        decode(encode(msgspec.structs.replace(state, files=files)), State)


@pytest.mark.parametrize(
    "problem", ["a\nb", "\x1b[2J", "tab\t", "\x9b1m", "txt.\u202egpj", "a\u2028b", "x" * 2001]
)
def test_a_problem_is_one_plain_line(problem: str) -> None:
    """The coordinator writes it into its log."""
    good = Status(ME, True, device="a", activity="unable", problem="the file 'é' is missing")
    assert decode(encode(good), Status) == good
    with pytest.raises(WireError, match="not a Status"):
        decode(encode(msgspec.structs.replace(good, problem=problem)), Status)


HIDDEN = ("\n", "\x1b", "\x7f", "\x9b", "\u061c", "\u200b", "\u2028", "\u202e", "\u2066", "\ufeff")
CLOSED = ("[red]", "<b>", "a b", "…", "x" * 65)


def texts(kind: Any) -> dict[str, msgspec.inspect.StrType]:
    """Every text field of a type, by its path."""
    info, found = msgspec.inspect.type_info(kind), {}
    waiting: list[tuple[str, Any]] = [(kind.__name__, info)]
    while waiting:
        where, node = waiting.pop()
        if isinstance(node, msgspec.inspect.StrType):
            found[where] = node
        elif isinstance(node, msgspec.inspect.StructType):
            waiting += [(f"{node.cls.__name__}.{field.name}", field.type) for field in node.fields]
        elif isinstance(node, msgspec.inspect.DictType):
            waiting += [(f"{where} key", node.key_type), (f"{where} value", node.value_type)]
        elif isinstance(node, msgspec.inspect.UnionType):
            waiting += [(where, part) for part in node.types]
        elif isinstance(node, msgspec.inspect.VarTupleType):
            waiting.append((where, node.item_type))
        else:
            kinds = ("IntType", "FloatType", "BoolType", "NoneType", "LiteralType")
            assert type(node).__name__ in kinds, f"{where}: {node} is not looked into"
    return found


TEXTS = {where: node for message in MESSAGES for where, node in texts(type(message)).items()}


@pytest.mark.parametrize("where", TEXTS)
def test_no_text_of_a_message_can_hide_move_or_begin_a_line(where: str) -> None:
    """A text field without a pattern would let a device write to a terminal."""
    pattern = TEXTS[where].pattern
    assert pattern is not None
    for character in HIDDEN:
        for text in (character, f"a{character}", f"{character}a", f"a{character}a"):
            assert not re.search(pattern, text), (where, text)
    bound = TEXTS[where].max_length or 200
    assert bound <= 2000
    assert TEXTS[where].max_length or not re.search(pattern, "a" * 200)


def test_the_texts_are_all_there() -> None:
    assert {"Status.software", "Status.problem", "Reply.reason", "State.method"} <= TEXTS.keys()
    assert {"ModelSpec.labels", "Report.scalars key", "Claim.nonce", "State.run"} <= TEXTS.keys()


@pytest.mark.parametrize("field", ["software", "instance", "answers"])
@pytest.mark.parametrize("text", CLOSED)
def test_a_name_has_letters_digits_and_few_signs(field: str, text: str) -> None:
    good = Status(ME, True, answers=YOU, device="a", software="1.2.0rc1+cu128")
    assert decode(encode(good), Status) == good
    assert f"$.{field}" in refused(altered(good, **{field: text}), Status)
