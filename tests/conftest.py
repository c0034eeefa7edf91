"""Set-up of all tests: they test the installed package, and use one thread."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]


def drop_checkout() -> None:
    """Keep the checkout from hiding an installed package: it has no compiled module of its own.

    After `pip install .`, `python -m pytest` puts the checkout first on the path, and the tests
    would quietly run the pure-torch ops. An editable install finds the checkout without the path.
    """
    before = list(sys.path)
    sys.path[:] = [entry for entry in before if Path(entry or os.curdir).resolve() != ROOT]
    try:
        importlib.metadata.distribution("fededge")
    except importlib.metadata.PackageNotFoundError:
        sys.path[:] = before


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that may take longest: at the end, one worker would wait for another."""

    def limit(item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        return float(marker.args[0]) if marker is not None else 0.0

    items.sort(key=limit, reverse=True)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load the accelerator before the first backward pass: autograd counts devices only once.

    One that does not compile fails its own tests with the reason; an error here would end the run.
    """
    accelerator = sys.modules.get("tests.accelerator")
    other = os.environ.get("FEDEDGE_TEST_DEVICE", "emulated") != "emulated"  # a GPU is tested
    if accelerator is not None and not other and not session.config.option.collectonly:
        with contextlib.suppress(RuntimeError, OSError, ImportError):
            accelerator.load()


@pytest.fixture(autouse=True)
def _auto_is_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the emulated accelerator from `device = "auto"`: another test may have loaded it here.

    Tests with the marker `accelerator` see it.
    """
    if "emulated_accelerator" not in sys.modules or request.node.get_closest_marker("accelerator"):
        return
    from fededge.hardware import Probe  # after drop_checkout()

    sees = Probe.accelerator

    def none_by_itself(self: Probe) -> str:
        found = sees(self)
        return "" if found == "emulated" else found

    monkeypatch.setattr(Probe, "accelerator", none_by_itself)


drop_checkout()
torch.set_num_threads(1)
# A busy machine is not a failure: no example has to end within some milliseconds.
settings.register_profile("fededge", deadline=None)
settings.load_profile("fededge")
