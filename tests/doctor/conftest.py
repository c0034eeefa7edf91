"""One fleet for all tests of the doctor, and a healthy patient for each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doctor.site import Patient, Site, fleet


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    with fleet() as made:
        yield made


@pytest.fixture
def patient(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patient]:
    with contextlib.ExitStack() as stack:
        yield Patient(site, tmp_path, monkeypatch, stack)
