from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fededge.data import embedded
from fededge.export import Template, check, predict, session
from fededge.export.tracing import Deployed
from fededge.flat import FlatModel
from fededge.models import build, names
from fededge.spec import ModelSpec


@pytest.mark.parametrize("name", names())
def test_every_network_of_the_zoo_answers_in_onnx_as_in_torch(name: str) -> None:
    """Real images, weights other than the traced ones, in batches of 1, 33 and 256."""
    _, test = embedded()
    spec = ModelSpec(name, test.labels, shape(test.x), test.mean, test.std)
    template = Template.trace(build(name, spec.classes, spec.shape, seed=1), spec)
    flat = FlatModel(build(name, spec.classes, spec.shape, seed=2))
    model = template.fill(flat.vector, {})
    loaded, deployed = session(model), Deployed(flat.module, spec)
    for size in (1, 33, 256):
        images = test.x[:size]
        with torch.no_grad():
            expected = deployed(images)
        got = predict(loaded, images)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
        assert torch.equal(got.argmax(1), expected.argmax(1))
    assert check(model, flat.module, spec, test.x[:256]).same_labels == 256


def shape(images: Tensor) -> tuple[int, int, int]:
    _, channels, height, width = images.shape
    return channels, height, width
