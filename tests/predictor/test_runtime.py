"""ONNX Runtime tells nobody that it was used: no id of the device, no events."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fededge.export import ModelRegistry, Template
from fededge.flat import FlatModel
from fededge.model_spec import ModelSpec
from fededge.models import build_for
from tests.origin import ORIGIN

PREDICT = """
import sys, numpy as np, fededge
predictor = fededge.Predictor(sys.argv[1])
predictor.predict(np.zeros((1, 28, 28), np.uint8))
"""

EXPORT = """
import sys, torch
from pathlib import Path
from fededge.export import predict_all
predict_all(next(Path(sys.argv[1]).glob("models/*/model.onnx")), torch.zeros(1, 1, 28, 28).byte())
"""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with one exported model."""
    folder = tmp_path_factory.mktemp("state")
    spec = ModelSpec("lenet", ("a", "b"), (1, 28, 28), (0.5,), (0.5,))
    flat = FlatModel(build_for(spec, seed=0))
    template = Template.trace(flat.module, spec)
    images = torch.zeros(8, 1, 28, 28, dtype=torch.uint8)
    ModelRegistry(folder / "models").export(flat, template, ORIGIN, images)
    return folder


@pytest.mark.parametrize("program", [PREDICT, EXPORT], ids=["predict", "export"])
def test_no_id_of_the_device_is_kept_for_telemetry(
    program: str, state: Path, tmp_path: Path
) -> None:
    """The home folder of the process stays empty: ONNX Runtime keeps such an id in its cache."""
    unset = {"ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "CI"}
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    environment["HOME"] = str(tmp_path)
    command = [sys.executable, "-c", program, str(state)]
    subprocess.run(command, env=environment, check=True)
    assert not [*tmp_path.rglob("*onnxruntime*")]
