"""The accelerator, loaded before any test of this folder; skipped where nothing can compile it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests import accelerator


@pytest.fixture(scope="session", autouse=True)
def loaded() -> None:
    found = accelerator.load()
    if isinstance(found, str):
        pytest.skip(found)


@pytest.fixture
def device() -> Iterator[torch.device]:
    torch.manual_seed(0)
    yield torch.device("emulated")
    with accelerator.counting() as counts:
        torch.zeros(1, device="emulated")
    assert counts.launches == 1, "a test left an order to fail behind"
