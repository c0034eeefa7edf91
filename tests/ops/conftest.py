"""Runs a test once with the compiled ops and once with the pure-torch ones."""

from __future__ import annotations

import pytest

from fededge.ops import _backend


@pytest.fixture(params=_backend.NAMES)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "cpu" and _backend.CHOICE.build is None:
        pytest.skip(f"no compiled module: {_backend.CHOICE.reason}")
    choice = _backend.Choice(name, "a test", _backend.CHOICE.build)
    monkeypatch.setattr(_backend, "CHOICE", choice)
    return name
