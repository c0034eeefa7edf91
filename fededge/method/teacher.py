"""Teachers: fixed models whose outputs a loss uses as targets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fededge import models
from fededge._internal.lazy_torch import Tensor, nn, torch
from fededge.flat import FlatModel
from fededge.method.examples import Batch
from fededge.method.objective import Output, forward
from fededge.models.evaluation import evaluating

__all__ = ["Teacher", "outputs"]

INFERENCE_BATCH = 256
"""Examples in one forward pass without gradients."""


@dataclass(eq=False)
class Teacher:
    """A fixed model that returns outputs for a batch, in evaluation mode and without gradients.

    Its outputs for the device's examples are computed once and then looked up; mixtures go
    through a copy of the network.
    """

    net: FlatModel
    vector: Tensor
    preprocess: nn.Module
    x: Tensor

    def __call__(self, batch: Batch) -> Output:
        if batch.index is None:
            with torch.no_grad():
                return forward(self._network, batch.x)
        known = self._outputs
        return Output(known.logits[batch.index], known.features[batch.index])

    @cached_property
    def _outputs(self) -> Output:
        return outputs(self.net, self.vector, self.preprocess, self.x)

    @cached_property
    def _network(self) -> nn.Module:
        twin = self.net.clone()
        twin.swap(self.vector)
        return twin.module.eval()


def outputs(net: FlatModel, vector: Tensor, preprocess: nn.Module, x: Tensor) -> Output:
    """Return the outputs of a network with these values for raw inputs; its own values stay."""
    before = net.swap(vector)
    try:
        with evaluating(net.module):
            quick = models.for_inference(net.module)
            device = net.vector.device
            inputs = (preprocess(some.to(device)) for some in x.split(INFERENCE_BATCH))
            parts = [forward(quick, some) for some in inputs]
    finally:
        net.swap(before)
    logits = torch.cat([part.logits for part in parts])
    return Output(logits, torch.cat([part.features for part in parts]))
