"""What a signature binds, and which key files are taken."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fededge.errors import ConfigError, WireError
from fededge.wire.messages import Rollout, State, Training, decode, encode
from fededge.wire.signing import make_keys, read_signing_key, read_trusted_keys, sign, verify
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
    "devices": ("gate-6",),
    "accuracy": None,
    "files": {"keepsake": "ac" * 32},
    "encoding": "float16",
    "turns": 5,
    "rollout": Rollout(1, 0, 0, 1, 1.0),
    "problem": "full",
    "quarantined": ("gate-6",),
    "issued": 1767225600001,
}


def test_what_was_signed_is_believed_on_the_other_side() -> None:
    verify(decode(encode(sign(STATE, KEY)), State), TRUSTED)


def test_numbers_written_in_another_way_are_the_same_state() -> None:
    """A configuration may say `lr = 1` or `1.0`: after the wire both are 1.0."""
    whole = msgspec.structs.replace(STATE, training=Training(1, 1, 1, 0, 0, 0), deadline=600)
    verify(decode(encode(sign(whole, KEY)), State), TRUSTED)


@pytest.mark.parametrize("field", [f for f in State.__struct_fields__ if f != "signature"])
def test_no_field_can_be_changed(field: str) -> None:
    changed = msgspec.structs.replace(sign(STATE, KEY), **{field: OTHER[field]})
    with pytest.raises(WireError, match="not of a key that this device trusts"):
        verify(decode(encode(changed), State), TRUSTED)


def test_a_state_that_is_not_signed_or_by_another_key() -> None:
    with pytest.raises(WireError, match="it is not signed"):
        verify(STATE, TRUSTED)
    with pytest.raises(WireError, match="not of a key that this device trusts"):
        verify(sign(STATE, Ed25519PrivateKey.generate()), TRUSTED)


def test_a_signature_can_be_checked_by_others_as_the_protocol_page_says(tmp_path: Path) -> None:
    """OpenSSL, an implementation of its own, on bytes that are put together by hand."""
    make_keys(tmp_path / "a.key", tmp_path / "a.pub")
    signed = sign(STATE, read_signing_key(tmp_path / "a.key"))
    bare = encode(signed).replace(signed.signature.encode(), b"")
    (tmp_path / "data").write_bytes(b"fededge state v1\n" + bare)
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
    make_keys(tmp_path / "a.key", tmp_path / "a.pub")
    before = (tmp_path / "a.key").read_bytes()
    with pytest.raises(ConfigError, match="is there already"):
        make_keys(tmp_path / "a.key", tmp_path / "a.pub")
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
        (read_signing_key, tmp_path / "a.pub", "everybody can read"),
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
