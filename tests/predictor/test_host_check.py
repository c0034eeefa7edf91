"""Hosts in requests: those of this machine are accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fededge.predictor.http.host_check import host_of, is_known


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("localhost", "localhost"),
        ("Camera.LAN.:8117", "camera.lan"),
        ("[::1]:8117", "::1"),
        ("http://10.0.0.7:8117", "10.0.0.7"),
        ("null", "null"),
        ("", ""),
        ("[", ""),
        ("evil.example@127.0.0.1", ""),
        ("127.0.0.1/evil.example", ""),
        ("http://localhost#evil.example", ""),
    ],
)
def test_the_host_of_a_header(text: str, host: str) -> None:
    assert host_of(text) == host


@pytest.mark.parametrize(
    ("host", "here", "known"),
    [
        ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.7", "::ffff:10.0.0.7", True),
        ("::1", "10.0.0.7", True),
        ("fe80::1", "fe80::1%eth0", True),
        ("10.0.0.8", "10.0.0.7", False),
        ("camera.lan", "10.0.0.7", True),
        ("other.lan", "10.0.0.7", False),
    ],
)
def test_an_address_is_known_if_the_request_came_to_it(host: str, here: str, known: bool) -> None:
    assert is_known(host, here, {"camera.lan"}) == known


@given(st.text())
def test_any_text_is_a_host_or_none(text: str) -> None:
    is_known(host_of(text), "127.0.0.1", ())
