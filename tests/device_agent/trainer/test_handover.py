"""The samples on which an export is compared, calibrated and measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fededge.config import AgentConfig, DataConfig, ModelConfig
from fededge.data.local import model_spec
from fededge.export.parity import as_array
from fededge.flat import FlatModel
from fededge.methods import method
from fededge.models import Preprocess, build_for
from fededge.training import Examples, Trainer
from fededge_agent.exports.handover_files import read_samples
from fededge_agent.trainer.handover import Handover, spread

CLASSES, EACH = 10, 100


def test_int8_is_calibrated_on_all_classes_though_a_folder_is_read_class_after_class(
    tmp_path: Path,
) -> None:
    """The first 256 of a thousand would be of three classes, and of one in a larger folder."""
    y = torch.arange(CLASSES).repeat_interleave(EACH)
    x = y.to(torch.uint8)[:, None, None, None].expand(-1, 1, 28, 28).contiguous()
    data = Examples(x, y, x[:5], y[:5], CLASSES)
    spec, config = (
        model_spec(ModelConfig(), DataConfig(source="embedded")),
        AgentConfig(federation="gates", device="box", state=str(tmp_path)),
    )
    net = FlatModel(build_for(spec, 0))
    trainer = Trainer("box", net, Preprocess(spec), data, method("fedavg"))
    handover = Handover(config, spec, trainer)
    handover.prepare()
    samples = read_samples(handover.folder)
    counts = np.bincount(as_array(samples.training)[:, 0, 0, 0], minlength=CLASSES)
    assert counts.sum() == 256
    assert counts.min() >= 25
    np.testing.assert_array_equal(samples.held_x, data.held_x)  # measured on all of them
    np.testing.assert_array_equal(samples.held_y, data.held_y)


def test_samples_are_taken_evenly_each_at_most_once() -> None:
    assert spread(torch.arange(10), 4).tolist() == [0, 2, 5, 7]
    assert spread(torch.arange(5), 4).tolist() == [0, 1, 2, 3]
    assert spread(torch.arange(3), 4).tolist() == [0, 1, 2]
    assert spread(torch.arange(0), 4).tolist() == []
