"""Every network and every method's own model answer in ONNX as in torch, on real inputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor

from fededge.data import embedded, tokenise
from fededge.errors import MethodError
from fededge.export import Template, check, predict, session
from fededge.export.tracing import Deployed
from fededge.flat import FlatModel, as_tensors
from fededge.methods import METHODS, Hyper, Private, method
from fededge.model_spec import ModelSpec
from fededge.models import Preprocess, build_for, names
from fededge.training import Examples, Task, Trainer

ROOT = Path(__file__).resolve().parents[2]
GREY = ("lenet", "lenet5", "lfd-cnn", "mlpnet")
SLOW = ("alexnet32", "resnet18", "resnet18-small", "resnet56", "vgg11", "vgg8", "vgg8-bn")
IMAGES, LENGTH, VOCABULARY = 256, 24, 2000
Ask = Callable[[Tensor], Tensor]


def networks() -> list[object]:
    marks = {name: [pytest.mark.slow] if name in SLOW else [] for name in names()}
    return [pytest.param(name, marks=marks[name], id=name) for name in names()]


@cache
def images(channels: int, side: int) -> tuple[Tensor, Tensor]:
    """Photographs of clothes, in the size and colours that a network takes."""
    _, test = embedded()
    x = test.x[:IMAGES]
    if side != x.shape[-1]:
        x = torch.nn.functional.interpolate(x.float(), size=side, mode="bilinear").round().byte()
    return x.expand(-1, channels, -1, -1).contiguous(), test.y[:IMAGES]


@cache
def texts() -> tuple[Tensor, Tensor]:
    """Sentences of the documentation, and whether they speak of a model: real words."""
    pages = "\n".join(page.read_text("utf-8") for page in sorted(ROOT.glob("docs/*.md")))
    sentences = [s for s in re.split(r"[.\n|]+", pages) if len(s.split()) > 3][:IMAGES]
    assert len(sentences) == IMAGES
    labels = torch.tensor([int("model" in s) for s in sentences])
    return torch.from_numpy(tokenise(sentences, LENGTH, VOCABULARY)), labels


def image_spec(name: str, head: str = "linear") -> ModelSpec:
    _, test = embedded()
    shape = (1, 28, 28) if name in GREY else (3, 32, 32)
    mean, std = test.mean * shape[0], test.std * shape[0]
    return ModelSpec(name, test.labels, shape, mean, std, head)


def text_spec() -> ModelSpec:
    return ModelSpec("fasttext", ("other", "model"), (LENGTH,), (), (), "linear", VOCABULARY)


def agree(model: bytes, flat: FlatModel, spec: ModelSpec, inputs: Tensor) -> None:
    """Within 1e-4 and with the same labels: all at once, one alone, and 33."""
    onnx.checker.check_model(model, full_check=True)
    parity = check(model, flat.module, spec, inputs)
    assert (parity.samples, parity.same_labels) == (IMAGES, IMAGES)
    assert parity.difference <= 1e-4
    loaded, deployed = session(model), Deployed(flat.module, spec)
    for size in (1, 33):
        with torch.no_grad():
            expected = deployed(inputs[:size])
        torch.testing.assert_close(predict(loaded, inputs[:size]), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", networks())
def test_every_network_of_the_zoo_answers_in_onnx_as_in_torch(name: str) -> None:
    """With other weights than the traced ones."""
    spec = image_spec(name)
    template = Template.trace(build_for(spec, seed=1), spec)
    flat = FlatModel(build_for(spec, seed=2))
    x, _ = images(spec.shape[0], spec.shape[1])
    agree(template.fill(flat.vector, {}), flat, spec, x)


def test_a_network_for_texts_answers_in_onnx_as_in_torch() -> None:
    spec = text_spec()
    template = Template.trace(build_for(spec, seed=1), spec)
    flat = FlatModel(build_for(spec, seed=2))
    agree(template.fill(flat.vector, {}), flat, spec, texts()[0])


TEMPLATES: dict[str, Template] = {}


def export_after_turns(name: str, spec: ModelSpec, x: Tensor, y: Tensor) -> None:
    """Train two turns, and export what the method says is the device's own model."""
    stack, net = method(name), FlatModel(build_for(spec, 0))
    data = Examples(x[:96], y[:96], x[96:], y[96:], spec.classes)
    trainer = Trainer("box", net, Preprocess(spec), data, stack)
    start, private = net.vector.clone(), Private()
    for number in range(2):
        sent = as_tensors(stack.send(stack.initial(net.layout)))
        hyper = Hyper(1, 16, 0.05, 0.9, 0.0)
        task = Task(0, number, hyper, start if not number else 0.9 * start, sent)
        answer = trainer.turn(task, private)
        private = answer.private
    deployed = trainer.deployed.clone()
    if deployed.layout.hash not in TEMPLATES:
        TEMPLATES[deployed.layout.hash] = Template.trace(deployed.module, spec)
    deployed.load(answer.personal)
    assert answer.personal.shape != start.shape or not torch.equal(answer.personal, start)
    agree(TEMPLATES[deployed.layout.hash].fill(deployed.vector, {}), deployed, spec, x)


@pytest.mark.parametrize("name", [*METHODS, "scaffold+map", "fedprox(mu=0.1)+ala", "fedavg+mixup"])
def test_the_personal_model_of_every_method_answers_in_onnx_as_in_torch(name: str) -> None:
    """Local, inherited, body and private head, generic and personal head, φ + α ⊙ ψ."""
    spec = image_spec("lenet", head="cosine" if name == "lfd" else "linear")
    export_after_turns(name, spec, *images(1, 28))


@pytest.mark.slow
@pytest.mark.parametrize("name", networks())
def test_whatever_a_method_deploys_answers_in_onnx_as_in_torch_on_every_network(name: str) -> None:
    """A method deploys the network itself, or puts its own around it: each kind that there is."""
    x, y = images(*image_spec(name).shape[:2])
    data = Examples(x[:96], y[:96], x[96:], y[96:], len(image_spec(name).labels))
    seen = set()
    for called in METHODS:
        spec = image_spec(name, head="cosine" if called == "lfd" else "linear")
        net = FlatModel(build_for(spec, 0))
        try:
            method(called).needs(net.module)
        except MethodError:
            continue  # it is refused when the configuration is read
        trainer = Trainer("box", net, Preprocess(spec), data, method(called))
        deployed = trainer.deployed.clone()
        if (kind := (type(deployed.module), deployed.layout.hash)) in seen:
            continue
        seen.add(kind)
        template = Template.trace(deployed.module, spec)
        other = FlatModel(build_for(spec, 2)).vector
        deployed.load(torch.cat([other, 0.1 + deployed.vector[len(other) :]]))
        agree(template.fill(deployed.vector, {}), deployed, spec, x)
    assert len(seen) > 2  # the network, the one with a cosine head, and what is put around


def for_texts() -> list[str]:
    """The methods that take texts: the others say so."""

    def takes(name: str) -> bool:
        try:
            method(name).needs(build_for(text_spec(), 0))
        except MethodError:
            return False
        return True

    return [name for name in METHODS if takes(name)]


@pytest.mark.parametrize("name", for_texts())
def test_the_personal_model_for_texts_too(name: str) -> None:
    export_after_turns(name, text_spec(), *texts())
