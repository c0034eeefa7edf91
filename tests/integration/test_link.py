"""A round over a link with 200 ms of delay, 5 % of loss and 1 Mbit/s.

Here with LeNet's 250 KB; `make link` takes ResNet-18's 45 MB over it, which needs a quarter of an
hour, and prints what docs/runtime.md tells.
"""

from __future__ import annotations

import os
import sys
import time

import pytest

from fededge.broker.local import Broker
from tests.integration.conftest import Federation
from tests.integration.test_federation import rounds_done
from tests.link import SlowLink

MODEL = os.environ.get("FEDEDGE_LINK_MODEL", "lenet")
SECONDS = float(os.environ.get("FEDEDGE_LINK_SECONDS", "90"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 60)]


def test_a_round_passes_a_slow_and_lossy_link(federation: Federation, broker: Broker) -> None:
    """The coordinator sits beside the broker, the device behind the link."""
    with SlowLink(broker.host, broker.port, delay=0.2, loss=0.05, bits=1e6) as link:
        began = time.monotonic()
        coordinator = federation.coordinator(
            rounds={"count": 1, "min_devices": 1, "deadline": SECONDS},
            training={"batch_size": 16, "epochs": 1},
            model={"name": MODEL},
        )
        behind = {**federation.broker, "port": link.port}
        agent = federation.agent("far", devices=8, broker=behind, model={"name": MODEL})
        federation.wait_for(lambda: coordinator.exit_code is not None, "the round", SECONDS)
        assert coordinator.exit_code == 0, coordinator.said(20)
        assert rounds_done(federation) == 1
        assert "lost" not in agent.log.read_text(), agent.said(20)
        seconds = time.monotonic() - began
        down, up = link.bytes_down / 1e6, link.bytes_up / 1e6
        assert down > 0.19
        assert up > 0.19
        sys.stdout.write(f"{MODEL}: {seconds:.0f} s, {down:.1f} MB down, {up:.1f} MB up\n")
