"""A test run with the compiled ops and with the pure-torch ones; device code played on the CPU."""

from __future__ import annotations

import pytest

from fededge._internal import compiled
from fededge.ops import _backend
from tests.ops.playing import Played, compile_played


@pytest.fixture(params=compiled.NAMES)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "cpu" and _backend.CHOICE.build is None:
        pytest.skip(f"no compiled module: {_backend.CHOICE.reason}")
    choice = _backend.Choice(name, "a test", _backend.CHOICE.build)
    monkeypatch.setattr(_backend, "CHOICE", choice)
    return name


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    library = compile_played(tmp_path_factory.mktemp("played"))
    if isinstance(library, str):
        pytest.skip(library)
    return library
