"""Common parts of every network: body and head, normalisation, initial weights, memory order."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fededge.errors import ConfigError
from fededge.model_spec import ModelSpec

__all__ = ["Classifier", "Preprocess", "he_initialised", "redraw_", "takes_texts"]

HE = "drawn_as_he"


class Classifier(nn.Module):
    """`forward(x) = head(body(x))`; the features are the body's output."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x)
        return features


def takes_texts(net: nn.Module) -> bool:
    """Return True if a network embeds tokens, which cannot be mixed or scaled as pixels can."""
    return any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in net.modules())


def he_initialised(module: nn.Module) -> nn.Module:
    """Draw convolutions as He et al. 2015: gradients keep their size through many ReLUs."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            setattr(part, HE, True)  # for `redraw_`
            # Skipped on the meta device: torch would load its compiler there.
            if not part.weight.is_meta:
                _draw_he(part)
    return module


def redraw_(module: nn.Module, seed: int) -> None:
    """Draw all initial values again from this seed; torch's own generators keep their state.

    A parameter whose module has no `reset_parameters` keeps its values.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        for part in module.modules():
            if isinstance(part, nn.Conv2d) and getattr(part, HE, False):
                _draw_he(part)
            elif callable(draw := getattr(part, "reset_parameters", None)):
                draw()


def _draw_he(part: nn.Conv2d) -> None:
    nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    if part.bias is not None:
        nn.init.zeros_(part.bias)


class Preprocess(nn.Module):
    """Convert pixels 0..255 [N, C, H, W] to float32: (x/255 - mean)/std for each channel.

    The two buffers are not persistent: they belong to the spec, not to the weights that travel.
    Tokens pass unchanged.
    """

    offset: Tensor
    scale: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.kind = spec.kind
        if self.kind == "text":
            return
        _check_statistics(spec)
        for name, values in (("offset", spec.mean), ("scale", spec.std)):
            # In float64 until the last step: 255*std is rounded once.
            in_pixels = 255 * torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1)
            self.register_buffer(name, in_pixels.to(torch.float32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "text":
            return x
        return (x.to(torch.float32) - self.offset) / self.scale


def _check_statistics(spec: ModelSpec) -> None:
    channels = spec.shape[0]
    for name, values in (("mean", spec.mean), ("std", spec.std)):
        if len(values) != channels:
            raise ConfigError(
                f"the model's {name} has {len(values)} values, but its images have {channels} "
                "channels; give one value for each channel"
            )
    if not all(map(math.isfinite, (*spec.mean, *spec.std))) or min(spec.std) <= 0:
        raise ConfigError(
            f"the model's mean {spec.mean} must be finite, and its std {spec.std} above zero"
        )
