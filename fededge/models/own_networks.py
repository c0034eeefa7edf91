"""Networks of a user's own, or of torchvision: built, examined once, and split into body and head.

Every one that a federation could not train is refused in a sentence: FedEdge moves float32
parameters and buffers, and all else that a network computes with must be the same everywhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fededge._internal.own_files import failed_line, summary
from fededge.errors import ConfigError, FedEdgeError, LayoutError
from fededge.flat import FlatModel
from fededge.models.base import Classifier
from fededge.models.head import head_of
from fededge.models.own_names import OwnNetwork, loaded

__all__ = ["Inputs", "build_own", "made", "meta_own"]

BATCH = 2

OVERRIDE = "or let it return fededge.models.Classifier(body, head)"


class Inputs(NamedTuple):
    """The classes, the shape of an input, and the vocabulary of texts (0: images)."""

    classes: int
    shape: tuple[int, ...]
    vocabulary: int = 0

    def batch(self, count: int) -> Tensor:
        """Draw inputs as a network gets them: normalised pixels, or tokens."""
        draw = torch.Generator().manual_seed(0)
        size = (count, *self.shape)
        if self.vocabulary:
            return torch.randint(self.vocabulary, size, generator=draw)
        return torch.randn(size, generator=draw)


def build_own(name: str, inputs: Inputs, head: str, seed: int) -> nn.Module:
    """Build a network by its announced name; its initial values depend on the seed alone.

    Returns:
        A `Classifier` if its last layer is found, else the module as it is.
    """
    own, last = loaded(name), _last_layer(name, inputs)
    with _seeded(seed):
        return _with_head(own, _split(_called(own, inputs), last), inputs, head)


def meta_own(name: str, inputs: Inputs, head: str) -> nn.Module:
    """Build the same on the meta device, without values; on the CPU if it needs them."""
    own, last = loaded(name), _last_layer(name, inputs)
    net = _split(made(name, inputs), last)
    with torch.device("meta"):
        return _with_head(own, net, inputs, head)


def made(name: str, inputs: Inputs) -> nn.Module:
    """Call the user's callable on the meta device; on the CPU if it needs values."""
    own = loaded(name)
    try:
        with torch.device("meta"):
            return _called(own, inputs)
    except ConfigError:
        return _drawn(own, inputs, 0)


def _drawn(own: OwnNetwork, inputs: Inputs, seed: int) -> nn.Module:
    with _seeded(seed):
        return _called(own, inputs)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw from this seed on the CPU; torch's own generators keep their state."""
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _called(own: OwnNetwork, inputs: Inputs) -> nn.Module:
    """Call the user's callable; refuse what is not a module."""
    more = {"vocabulary": inputs.vocabulary} if inputs.vocabulary and _takes_vocabulary(own) else {}
    with _told(own, f"cannot be made for {inputs.classes} classes and inputs {[*inputs.shape]}"):
        net = own.make(inputs.classes, inputs.shape, **more)
    if not isinstance(net, nn.Module):
        raise ConfigError(f"{own.title} returned a {type(net).__name__}, not a torch.nn.Module")
    if any(map(nn.parameter.is_lazy, net.parameters())):
        raise ConfigError(f"{own.title} has parameters without a shape yet: use no lazy modules")
    return net


def _takes_vocabulary(own: OwnNetwork) -> bool:
    try:
        return "vocabulary" in inspect.signature(own.make).parameters
    except (TypeError, ValueError):
        return False


@contextmanager
def _told(own: OwnNetwork, what: str) -> Iterator[None]:
    """Turn an exception of the user's code into a sentence with its file and line."""
    try:
        yield
    except (FedEdgeError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        where = failed_line(error, short=True)
        raise ConfigError(f"{own.title} {what} ({where}{summary(error)})") from error


# Examination


@lru_cache(maxsize=16)
def _last_layer(name: str, inputs: Inputs) -> str | None:
    """Examine a network; return the name of its last linear layer, None if it has no such layer.

    Raises:
        ConfigError: if a federation cannot train it.
    """
    own = loaded(name)
    one, other = (_drawn(own, inputs, seed) for seed in (1, 2))
    _check_outputs(own, one, inputs)
    _check_same(own, one, other, inputs)
    return None if isinstance(one, Classifier) else _found(own, one, inputs)


def _check_outputs(own: OwnNetwork, net: nn.Module, inputs: Inputs) -> None:
    """Refuse what is not one row of logits for each input, in training and in evaluation."""
    if not any(p.requires_grad for p in net.parameters()):
        raise ConfigError(f"{own.title} has no parameters to train")
    _flat(own, net)
    for training, count in ((False, BATCH), (False, 1), (True, BATCH)):
        logits = _outputs(own, net, inputs.batch(count), training)
        mode = "in training" if training else "in evaluation"
        _check_logits(own, logits, (count, inputs.classes), mode)
        if training and not logits.requires_grad:
            raise ConfigError(f"{own.title}: its output in training depends on no parameter")


def _check_logits(own: OwnNetwork, logits: object, size: tuple[int, int], mode: str) -> None:
    count, classes = size
    if not isinstance(logits, Tensor):
        kind = type(logits).__name__
        raise ConfigError(f"{own.title} returns a {kind} {mode}, not a tensor of logits")
    if tuple(logits.shape) != size:
        found = [*logits.shape]
        raise ConfigError(
            f"{own.title} returns a tensor of shape {found} {mode} for {count} inputs, not "
            f"{[*size]}: one number for each of {classes} classes"
        )
    if logits.dtype != torch.float32:
        raise ConfigError(f"{own.title} returns {logits.dtype} {mode}, not torch.float32")


def _check_same(own: OwnNetwork, one: nn.Module, other: nn.Module, inputs: Inputs) -> None:
    """Refuse values beside the parameters and float buffers, which would differ by machine.

    `one` has another seed than `other`, and has been used before. With the same parameters and
    float buffers both must compute the same.
    """
    mine, theirs = _flat(own, one), _flat(own, other)
    if mine.layout != theirs.layout:
        raise ConfigError(
            f"{own.title} makes other tensors each time; they must always be the same"
        )
    for training in (True, False):
        mine.load(theirs.vector)
        x = inputs.batch(BATCH)
        logits, same = (_outputs(own, net, x, training).detach() for net in (one, other))
        if not (_close(logits, same) and _close(mine.vector, theirs.vector)):
            raise ConfigError(
                f"{own.title} computes with values that do not travel (random constants, counters, "
                "BatchNorm with momentum=None): make them parameters or persistent float buffers"
            )


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True)


def _flat(own: OwnNetwork, net: nn.Module) -> FlatModel:
    try:
        return FlatModel(net, trains=False)
    except LayoutError as error:
        raise ConfigError(f"{own.title}: {error}") from None


def _outputs(own: OwnNetwork, net: nn.Module, x: Tensor, training: bool) -> Any:
    what = f"does not take a batch of {len(x)} inputs {[*x.shape[1:]]}"
    net.train(training)
    with _seeded(0), _told(own, what), torch.set_grad_enabled(training):  # dropout draws
        return net(x)


# Body and head


def _found(own: OwnNetwork, net: nn.Module, inputs: Inputs) -> str | None:
    """Return the last linear layer whose outputs are the logits, and which is called once."""
    names = {id(part): name for name, part in net.named_modules() if name}
    calls: list[nn.Module] = []
    linear = [part for part in net.modules() if type(part) is nn.Linear]
    hooks = [part.register_forward_hook(lambda p, *_: calls.append(p)) for part in linear]
    x = inputs.batch(BATCH)
    flat = _flat(own, net)
    start = flat.vector.clone()  # a training pass changes running statistics
    before = [_outputs(own, net, x, training).detach() for training in (False, True)]
    for hook in hooks:
        hook.remove()
    name = names.get(id(calls[-1]), "") if calls else ""
    if not name or calls.count(calls[-1]) != len(before):
        return None
    flat.load(start)
    run = partial(_outputs, own, _split(net, name), x)
    return name if _agree(run, before) else None


def _agree(run: Callable[[bool], Any], before: list[Tensor]) -> bool:
    """Return True if a network gives the same logits after it was split."""
    try:
        after = [run(training) for training in (False, True)]
    except ConfigError:
        return False
    return all(_close(a, b) for a, b in zip(after, before, strict=True))


def _split(net: nn.Module, last: str | None) -> nn.Module:
    """Make the last linear layer the head; the rest is the body, which returns features."""
    if last is None:
        return net
    owner, _, attribute = last.rpartition(".")
    inside = net.get_submodule(owner)
    head = inside._modules[attribute]
    assert head is not None
    inside._modules[attribute] = nn.Identity()
    return Classifier(net, head)


def _with_head(own: OwnNetwork, net: nn.Module, inputs: Inputs, head: str) -> nn.Module:
    """Replace the head by the configured one; `linear` keeps the network's own."""
    make_head = head_of(head)
    if head == "linear":
        return net
    if not isinstance(net, Classifier) or not isinstance(net.head, nn.Linear):
        raise ConfigError(
            f"{own.title}: head = '{head}' replaces the network's last layer, but none is found: "
            f"its logits must be the outputs of an nn.Linear that is called once; {OVERRIDE}"
        )
    if any(p is q for p in net.head.parameters() for q in net.body.parameters()):
        raise ConfigError(
            f"{own.title}: head = '{head}' replaces the network's last layer, but its weights are "
            "also used elsewhere in it: choose head = 'linear'"
        )
    net.head = make_head(net.head.in_features, inputs.classes)
    return net
