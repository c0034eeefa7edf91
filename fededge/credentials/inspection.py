"""Reads a certificate file: its subject, and the end of its validity."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from fededge.errors import ConfigError
from fededge.storage.files import read_file

__all__ = ["CertificateFacts", "common_name", "read_certificate"]


@dataclass(frozen=True)
class CertificateFacts:
    """The common name in a certificate, and its last second as Unix time."""

    name: str
    until: float


def read_certificate(path: Path) -> CertificateFacts:
    try:
        found = x509.load_pem_x509_certificate(read_file("broker.certificate", path))
    except ValueError as error:
        raise ConfigError(f"broker.certificate: '{path}' cannot be read ({error})") from None
    return CertificateFacts(common_name(found), found.not_valid_after_utc.timestamp())


def common_name(certificate: x509.Certificate) -> str:
    """The name in a certificate; empty without one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""
