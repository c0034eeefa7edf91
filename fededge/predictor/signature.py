"""The signature of a manifest: the bytes that are signed, and the check with a trusted key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fededge.errors import ConfigError, StoreError
from fededge.storage.files import read_file

__all__ = ["check_signature", "signed_bytes"]

PURPOSE = b"fededge manifest v1\n"
"""Prefix of the signed bytes (domain separation)."""


def signed_bytes(manifest: Mapping[str, Any]) -> bytes:
    """The manifest without its signature, as JSON with sorted keys and no spaces."""
    bare = {key: value for key, value in manifest.items() if key != "signature"}
    text = json.dumps(bare, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return PURPOSE + text.encode()


def check_signature(path: Path, manifest: Mapping[str, Any], trusted: Path) -> None:
    """Refuse a manifest that was not signed by the key in the file `trusted`."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise ConfigError(
            f"checking a signature needs cryptography, which cannot be imported ({error}); "
            "pip install cryptography"
        ) from error
    try:
        key = load_pem_public_key(read_file("trusted_key", trusted))
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"trusted_key: '{trusted}' holds no public Ed25519 key")
    try:
        key.verify(bytes.fromhex(str(manifest.get("signature", ""))), signed_bytes(manifest))
    except (InvalidSignature, ValueError):
        raise StoreError(f"{path}: not signed by the key that this app trusts") from None
