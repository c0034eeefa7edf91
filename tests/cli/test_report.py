"""The tables at the end of a demo, on a terminal of 80 columns."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from fededge.cli.demo import report

SENT = {"tensor body.0.weight": 1_947_440, "scalar steps": 924, "report": 3_360, "status": 12_470}
SENT |= {"claim": 47, "framing": 7_880}


def test_no_digit_is_cut_off_in_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    monkeypatch.setattr(report, "console", Console(file=screen, width=80))
    device = report.DeviceOutcome("device-1", ("a",), [1], 0.5, 0.5, "model.onnx", SENT)
    report.show(report.RunOutcome(0, "fedavg", 10, "0" * 64, 0.1, 0.7, [device]))
    for count in (*SENT.values(), sum(SENT.values())):
        assert f"{count:,}" in screen.getvalue()
