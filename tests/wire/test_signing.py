"""Signatures of messages, and key files."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fededge.credentials.signing_keys import make_keys, read_signing_key, read_trusted_keys
from fededge.errors import ConfigError, WireError
from fededge.wire.messages import (
    Presence,
    Reply,
    Rollout,
    State,
    TaskMessage,
    Training,
    decode,
    encode,
)
from fededge.wire.signing import PURPOSES, sign, verify
from tests.fuzz import targets

KEY = Ed25519PrivateKey.generate()
TRUSTED = (KEY.public_key(),)
STATE = msgspec.structs.replace(targets.STATE, signature="", deadline=599.999)
OTHER: dict[str, Any] = {
    "federation": "doors",
    "run": "another",
    "seed": 1,
    "round": 4,
    "rounds": 11,
    "phase": "done",
    "version": "000004-9f86d081884c7d65",
    "sha256": "9e" * 32,
    "layout": "61" * 32,
    "method": "fedprox(mu=0.2)",
    "training": msgspec.structs.replace(STATE.training, lr=0.1),
    "model": msgspec.structs.replace(STATE.model, labels=("bicycle", "truck")),
    "manifest": msgspec.structs.replace(STATE.manifest, sha256="fe" * 32),
    "deadline": 600.0,
    "lease": 60.0,
    "asked": 1,
    "accuracy": None,
    "files": {"keepsake": "ac" * 32},
    "encoding": "float16",
    "turns": 5,
    "rollout": Rollout(1, 0, 0, 1, 1.0),
    "problem": "full",
    "quarantined": 1,
    "restored": "000001-9f86d081884c7d65",
    "resting": "the model is flat",
    "renewed": 3,
    "issued": 1767225600001,
}


VERSION = STATE.version
SIGNED: list[tuple[State | TaskMessage | Reply | Presence, dict[str, Any]]] = [
    (STATE, OTHER),
    (
        TaskMessage("gate-7", "run", VERSION),
        {"device": "gate-6", "run": "another", "version": OTHER["version"]},
    ),
    (
        Reply("refused", VERSION, "why", (1, 2), "gate-7", "run"),
        {
            "kind": "accepted",
            "version": OTHER["version"],
            "reason": "",
            "chunks": (1,),
            "device": "gate-6",
            "run": "another",
        },
    ),
    (
        Presence("5d" * 16, True, "gates", "9e" * 16),
        {"instance": "0d" * 16, "online": False, "federation": "doors", "answers": ""},
    ),
]
KINDS = [type(message).__name__ for message, _ in SIGNED]
FIELDS = [
    pytest.param(message, field, value, id=f"{kind} {field}")
    for (message, others), kind in zip(SIGNED, KINDS, strict=True)
    for field, value in others.items()
]


def test_every_field_of_every_signed_kind_is_tried() -> None:
    assert {type(message) for message, _ in SIGNED} == PURPOSES.keys()
    for message, others in SIGNED:
        assert [*others, "signature"] == [*message.__struct_fields__]


@pytest.mark.parametrize("message", [message for message, _ in SIGNED], ids=KINDS)
def test_a_signed_message_is_verified_on_the_other_side(message: Any) -> None:
    verify(decode(encode(sign(message, KEY)), type(message)), TRUSTED)


@pytest.mark.parametrize("kind", PURPOSES, ids=[kind.__name__ for kind in PURPOSES])
def test_a_signature_under_another_purpose_is_none(kind: Any) -> None:
    """A signature of one kind of message is not valid for another kind with the same bytes."""
    (message,) = (message for message, _ in SIGNED if type(message) is kind)
    for purpose in PURPOSES.values():
        signature = KEY.sign(purpose + encode(message)).hex()
        signed = msgspec.structs.replace(message, signature=signature)
        if purpose == PURPOSES[kind]:
            verify(signed, TRUSTED)
        else:
            with pytest.raises(WireError, match="not signed by a key that this device trusts"):
                verify(signed, TRUSTED)
    assert len({*PURPOSES.values()}) == len(PURPOSES)


def test_numbers_written_in_another_way_are_the_same_state() -> None:
    """A configuration may say `lr = 1` or `1.0`: after the wire both are 1.0."""
    whole = msgspec.structs.replace(STATE, training=Training(1, 1, 1, 0, 0, 0), deadline=600)
    verify(decode(encode(sign(whole, KEY)), State), TRUSTED)


@pytest.mark.parametrize(("message", "field", "value"), FIELDS)
def test_no_field_can_be_changed(message: Any, field: str, value: Any) -> None:
    changed = msgspec.structs.replace(sign(message, KEY), **{field: value})
    with pytest.raises(WireError, match="not signed by a key that this device trusts"):
        verify(decode(encode(changed), type(message)), TRUSTED)


@pytest.mark.parametrize("message", [message for message, _ in SIGNED], ids=KINDS)
def test_a_message_that_is_not_signed_or_by_another_key(message: Any) -> None:
    with pytest.raises(WireError, match="the message is not signed;"):
        verify(message, TRUSTED)
    with pytest.raises(WireError, match="not signed by a key that this device trusts"):
        verify(sign(message, Ed25519PrivateKey.generate()), TRUSTED)


@pytest.mark.parametrize(
    ("message", "purpose"),
    [*zip([m for m, _ in SIGNED], ["state", "task", "reply", "presence"], strict=True)],
    ids=KINDS,
)
def test_a_signature_can_be_checked_by_others_as_the_protocol_page_says(
    tmp_path: Path, message: Any, purpose: str
) -> None:
    """OpenSSL, an independent implementation, verifies bytes that are built by hand."""
    make_keys(tmp_path / "a.key", tmp_path / "a.pub")
    signed = sign(message, read_signing_key(tmp_path / "a.key"))
    bare = encode(signed).replace(signed.signature.encode(), b"")
    (tmp_path / "data").write_bytes(f"fededge {purpose} v1\n".encode() + bare)
    (tmp_path / "signature").write_bytes(bytes.fromhex(signed.signature))
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", f"{tmp_path}/a.pub", "-rawin"]
    command += ["-in", f"{tmp_path}/data", "-sigfile", f"{tmp_path}/signature"]
    assert "Verified Successfully" in subprocess.check_output(command, text=True)


def test_two_keys_are_trusted_while_one_replaces_the_other(tmp_path: Path) -> None:
    for name in ("old", "new"):
        make_keys(tmp_path / f"{name}.key", tmp_path / f"{name}.pub")
    both = tmp_path / "both.pub"
    both.write_bytes((tmp_path / "old.pub").read_bytes() + (tmp_path / "new.pub").read_bytes())
    for name in ("old", "new"):
        verify(sign(STATE, read_signing_key(tmp_path / f"{name}.key")), read_trusted_keys(both))


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    assert set(make_keys(tmp_path / "a.key", tmp_path / "a.pub").values()) == {True}
    before = (tmp_path / "a.key").read_bytes()
    assert set(make_keys(tmp_path / "a.key", tmp_path / "a.pub").values()) == {False}
    assert (tmp_path / "a.key").read_bytes() == before
    assert (tmp_path / "a.key").stat().st_mode & 0o777 == 0o600


def test_key_files_that_will_not_do(tmp_path: Path) -> None:
    make_keys(tmp_path / "a.key", tmp_path / "a.pub")
    text = tmp_path / "text"
    text.write_text("hello")
    text.chmod(0o600)
    for read, path, said in (
        (read_signing_key, tmp_path / "none", "signing_key: there is no file"),
        (read_signing_key, text, "holds no private Ed25519 key; make one: fededge init key"),
        (read_signing_key, tmp_path / "a.pub", "every user can read"),
        (read_trusted_keys, tmp_path / "none", "trusted_key: there is no file"),
        (read_trusted_keys, text, "holds no public Ed25519 key"),
        (read_trusted_keys, tmp_path / "a.key", "holds no public Ed25519 key"),
    ):
        with pytest.raises(ConfigError, match=said):
            read(path)
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "RSA", "-out", str(tmp_path / "rsa")],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    (tmp_path / "rsa").chmod(0o600)
    with pytest.raises(ConfigError, match="holds no private Ed25519 key"):
        read_signing_key(tmp_path / "rsa")
