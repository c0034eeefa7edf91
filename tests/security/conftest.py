"""A fleet's certificates and closed brokers, made by `fededge init` as an operator makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fededge.cli import main

DEVICES = ("gate-6", "gate-7")


def make_certificates(folder: Path, host: str = "127.0.0.1") -> Path:
    arguments = ["init", "certificates", "--out", str(folder), "--broker", host]
    assert main([*arguments, "--devices", *DEVICES]) == 0
    return folder


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates with the same names, of another CA."""
    return make_certificates(tmp_path_factory.mktemp("strangers"))
