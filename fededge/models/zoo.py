"""Builds a network by name; its initial weights depend on the seed alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fededge.errors import ConfigError
from fededge.model_spec import Kind, ModelSpec
from fededge.models.base import Classifier
from fededge.models.catalogue import check_name, names
from fededge.models.head import head_of
from fededge.models.networks import (
    alexnet,
    cnn4,
    fasttext,
    lenet,
    mlpnet,
    resnet,
    resnet18,
    tfcnn,
    vgg,
)
from fededge.models.own_names import is_own, loaded
from fededge.models.own_networks import Inputs, build_own, made, meta_own

__all__ = ["build", "build_for", "check_parameters", "meta_network", "probe_network"]

# 4 GB of float32: more than any network here needs, less than would exhaust a machine.
MOST_PARAMETERS = 1_000_000_000


class ImageNetwork(NamedTuple):
    """A body for images of a shape, the width of its features, the smallest side it takes."""

    body: Callable[[tuple[int, int, int]], nn.Module]
    width: int
    smallest: int = 1


class TextNetwork(NamedTuple):
    """A body for texts of a vocabulary, and the width of its features."""

    body: Callable[[int], nn.Module]
    width: int


IMAGE_NETWORKS = {
    "lenet": ImageNetwork(lenet.lenet, lenet.WIDTH, lenet.SMALLEST),
    "lenet5": ImageNetwork(lenet.lenet5, lenet.WIDTH, lenet.SMALLEST),
    "lfd-cnn": ImageNetwork(lenet.lfd_cnn, lenet.PROJECTED, lenet.SMALLEST),
    "cnn4": ImageNetwork(cnn4.cnn4, cnn4.WIDTH, cnn4.SMALLEST),
    "mlpnet": ImageNetwork(mlpnet.mlpnet, mlpnet.WIDTH, mlpnet.SMALLEST),
    "tfcnn": ImageNetwork(tfcnn.tfcnn, tfcnn.WIDTH, tfcnn.SMALLEST),
    "alexnet32": ImageNetwork(alexnet.alexnet32, alexnet.WIDTH, alexnet.SMALLEST),
    **{name: ImageNetwork(body, vgg.WIDTH) for name, body in vgg.VGGS.items()},
    **{name: ImageNetwork(body, resnet.WIDTH) for name, body in resnet.RESNETS.items()},
    "resnet18": ImageNetwork(resnet18.resnet18, resnet18.WIDTH),
    "resnet18-small": ImageNetwork(resnet18.resnet18_small, resnet18.WIDTH),
}
TEXT_NETWORKS = {"fasttext": TextNetwork(fasttext.FastText, fasttext.WIDTH)}


def build_for(spec: ModelSpec, seed: int | None) -> nn.Module:
    """Build a federation's network; without a seed, see `build`."""
    return build(
        spec.name, spec.classes, spec.shape, seed, head=spec.head, vocabulary=spec.vocabulary
    )


def meta_network(spec: ModelSpec) -> nn.Module:
    """Build a federation's network on the meta device: without values, it takes no memory."""
    check_name(spec.name)
    if is_own(spec.name):
        return meta_own(spec.name, Inputs(spec.classes, spec.shape, spec.vocabulary), spec.head)
    make_head = head_of(spec.head)
    _check(spec.name, spec.classes, spec.shape, spec.vocabulary)
    with torch.device("meta"):
        body, width = _body(spec.name, spec.shape, spec.vocabulary)
        return Classifier(body, make_head(width, spec.classes))


def check_parameters(spec: ModelSpec, most: int) -> None:
    """Refuse a user's network of more parameters than these, before it takes memory."""
    net = made(spec.name, Inputs(spec.classes, spec.shape, spec.vocabulary))
    _check_size(loaded(spec.name).title, spec.shape, net, most)


def probe_network(name: str, head: str = "linear") -> Classifier:
    """Build a network on the meta device for placeholder inputs: a check before data is read."""
    check_name(name)
    shape, vocabulary = ((1,), 2) if name in TEXT_NETWORKS else ((3, 32, 32), 0)
    with torch.device("meta"):
        body, width = _body(name, shape, vocabulary)
        return Classifier(body, head_of(head)(width, 2))


def build(
    name: str,
    classes: int,
    shape: tuple[int, ...],
    seed: int | None,
    *,
    head: str = "linear",
    vocabulary: int = 0,
) -> nn.Module:
    """Build a network for images of a shape, or for texts of a vocabulary.

    Returns:
        A `Classifier`; a network of a user's own may be another module, see `own_networks`.

    Args:
        name: one of `names()` or `names("text")`, or what `load` returns.
        classes: the number of logits.
        shape: one input's channels, height and width, or the length of a text.
        seed: seeds the initial weights; torch's own generators keep their state. Without one they
            are zeros: for a network whose values are loaded later, drawing them is lost time.
        head: "linear"; "bias-free" for methods that compare the rows of the last layer; "cosine"
            (tau 0.1) or "cosine:TAU" for methods that compare directions only.
        vocabulary: the number of different tokens of texts; 0 for images.
    """
    check_name(name)
    make_head = head_of(head)
    if is_own(name):
        inputs = Inputs(classes, tuple(shape), vocabulary)
        _check_size(loaded(name).title, shape, made(name, inputs), MOST_PARAMETERS)
        return build_own(name, inputs, head, seed or 0)
    _check(name, classes, shape, vocabulary)

    def assemble() -> Classifier:
        body, width = _body(name, shape, vocabulary)
        return Classifier(body, make_head(width, classes))

    with torch.device("meta"):
        _check_size(name, shape, assemble(), MOST_PARAMETERS)
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed or 0)  # torch.manual_seed reseeds the GPUs too
        with contextlib.nullcontext() if seed is not None else ZerosForDraws():
            return assemble()


class ZerosForDraws(TorchFunctionMode):
    """Fill tensors with zeros where the usual initialisations would draw numbers."""

    DRAWS = frozenset(
        {
            *(nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_),
            *(Tensor.uniform_, Tensor.normal_),
        }
    )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func not in self.DRAWS:
            return func(*args, **(kwargs or {}))
        tensor: Tensor = args[0] if args else (kwargs or {})["tensor"]
        with torch.no_grad():
            return tensor.zero_()


def _body(name: str, shape: tuple[int, ...], vocabulary: int) -> tuple[nn.Module, int]:
    if name in TEXT_NETWORKS:
        text = TEXT_NETWORKS[name]
        return text.body(vocabulary), text.width
    image = IMAGE_NETWORKS[name]
    channels, height, width = shape
    return image.body((channels, height, width)), image.width


def _check(name: str, classes: int, shape: tuple[int, ...], vocabulary: int) -> None:
    if classes < 2:
        raise ConfigError(f"{name} needs at least two classes, got {classes}")
    kind: Kind = "text" if vocabulary or len(shape) == 1 else "image"
    if name not in names(kind):
        raise ConfigError(
            f"{name} does not take {kind}s, the inputs of this federation; choose one of "
            f"{', '.join(names(kind))}"
        )
    if kind == "text":
        _check_text(name, shape, vocabulary)
    else:
        _check_image(name, shape)


def _check_text(name: str, shape: tuple[int, ...], vocabulary: int) -> None:
    if vocabulary < 2 or len(shape) != 1 or shape[0] < 1:
        raise ConfigError(
            f"{name} needs the length of a text, at least 1, and a vocabulary of at least 2 "
            f"(padding and a word), got {list(shape)} and {vocabulary}"
        )


def _check_image(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 3:
        raise ConfigError(f"{name} needs channels, height and width, got {list(shape)}")
    channels, height, width = shape
    smallest = IMAGE_NETWORKS[name].smallest
    if channels < 1 or min(height, width) < smallest:
        raise ConfigError(
            f"{name} takes images of at least {smallest}x{smallest} pixels, got "
            f"{height}x{width} with {channels} channels; choose another network or larger images"
        )


def _check_size(name: str, shape: tuple[int, ...], network: nn.Module, most: int) -> None:
    size = sum(math.prod(p.shape) for p in network.parameters())
    if size > most:
        raise ConfigError(
            f"{name} would have {size:,} parameters for inputs of shape {shape}, more than "
            f"{most:,}; choose another network or smaller inputs"
        )
