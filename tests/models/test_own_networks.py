"""Networks of a user's own: what is built from a file, and what is refused in one sentence."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from torch import nn

from fededge import methods, models
from fededge.cli import main
from fededge.config import CoordinatorConfig, load
from fededge.errors import ConfigError, MethodError
from fededge.flat import FlatModel, Layout
from fededge.model_spec import ModelSpec
from fededge.models import own_names
from tests.pages import blocks, page

SHAPE = (1, 12, 12)
HEAD = "import torch\nfrom torch import nn\n"
PLAIN = HEAD + "def make(classes, shape):\n    return {}\n"
FLAT = "nn.Flatten(), nn.Linear(144, 8), nn.ReLU()"
MODULE = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.one = nn.Linear(144, 8)
        self.two = nn.Linear(8, classes)
        {extra}

    def forward(self, x):
        x = x.flatten(1)
        {forward}


def make(classes, shape):
    return Net(classes)
"""
)


def written(folder: Path, text: str, name: str = "net.py") -> str:
    path = folder / name
    path.write_text(text)
    return f"{path}:make"


def built(folder: Path, text: str, head: str = "linear", seed: int = 0) -> nn.Module:
    return models.build(models.load(written(folder, text)), 3, SHAPE, seed, head=head)


def net(extra: str = "pass", forward: str = "return self.two(self.one(x))") -> str:
    return MODULE.format(extra=extra, forward=forward)


def page_network(folder: Path) -> str:
    return written(folder, blocks(page("networks.md"), "python")[0])


def test_the_pages_network_is_split_at_its_last_layer_and_computes_the_same(
    tmp_path: Path,
) -> None:
    name = models.load(page_network(tmp_path))
    network = models.build(name, 5, (1, 28, 28), seed=3).eval()
    assert isinstance(network, models.Classifier)
    x = torch.randn(4, 1, 28, 28)
    features = network.features(x)
    assert features.shape == (4, 32)
    assert torch.equal(network(x), network.head(features))
    torch.manual_seed(3)
    alone = own_names.loaded(name).make(5, (1, 28, 28)).eval()
    assert torch.equal(network(x), alone(x))


def test_the_first_values_depend_on_the_seed_alone(tmp_path: Path) -> None:
    for head in ("linear", "cosine"):
        one, same, other = (
            FlatModel(built(tmp_path, net(), head, seed)).vector for seed in (1, 1, 2)
        )
        assert torch.equal(one, same)
        assert not torch.equal(one, other)


def test_a_network_is_announced_without_its_path(tmp_path: Path) -> None:
    reference = written(tmp_path, net())
    sha256 = hashlib.sha256(net().encode()).hexdigest()
    assert models.announced_name(reference) == models.load(reference) == f"make@{sha256}"


def test_reading_a_configuration_does_not_import_the_file(tmp_path: Path) -> None:
    written(tmp_path, "raise SystemExit('imported')\n")
    config = tmp_path / "coordinator.toml"
    config.write_text('federation = "f"\nstate = "s"\n[model]\nname = "net.py:make"\n')
    assert load(config, CoordinatorConfig).model.name == f"{tmp_path}/net.py:make"


@pytest.mark.parametrize("name", ["/tmp/net.py:make", "./net.py:make", f"make@{'0' * 64}"])
def test_text_from_the_network_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "raise SystemExit('imported')\n")
    spec = ModelSpec(name, ("a", "b"), SHAPE, (0.5,), (0.5,))
    for build in (models.meta_network, lambda spec: models.build_for(spec, 0)):
        with pytest.raises(ConfigError, match=r"no network|not loaded"):
            build(spec)


@pytest.mark.parametrize(
    ("text", "head", "kind"),
    [
        (PLAIN.format(f"nn.Sequential({FLAT}, nn.Linear(8, classes))"), "bias-free", "Linear"),
        (net(), "cosine:0.2", "CosineHead"),
        (net(extra="self.norm = nn.BatchNorm1d(144)"), "linear", "Linear"),
        (net(extra="self.drop = nn.Dropout(0.5)"), "linear", "Linear"),
    ],
)
def test_the_configured_head_replaces_the_last_layer(
    tmp_path: Path, text: str, head: str, kind: str
) -> None:
    network = built(tmp_path, text, head)
    assert isinstance(network, models.Classifier)
    assert type(network.head).__name__ == kind


def test_a_classifier_decides_its_own_features(tmp_path: Path) -> None:
    network = built(tmp_path, blocks(page("networks.md"), "python")[1])
    assert isinstance(network, models.Classifier)
    assert isinstance(network.body, nn.Sequential)
    assert isinstance(network.body[-1], nn.Tanh)


# No layer that could be the head: the logits are something else, or the layer is used twice.
HEADLESS = [
    PLAIN.format("nn.Sequential(nn.Conv2d(1, classes, 12), nn.Flatten())"),
    net(forward="return self.two(self.one(x)).log_softmax(1)"),
    net(forward="return torch.nn.functional.linear(self.one(x), self.two.weight)"),
    net(forward="return self.two(self.one(x)) + self.two(self.one(x).relu())"),
]


@pytest.mark.parametrize("text", HEADLESS)
def test_a_network_without_a_head_trains_with_methods_that_need_none(
    tmp_path: Path, text: str
) -> None:
    network = built(tmp_path, text)
    assert not isinstance(network, models.Classifier)
    methods.method("scaffold+ala").needs(network)
    for name in ("moon", "fedphp(transfer=mmd)", "map(transfer=mmd)", "fedrod", "lfd"):
        with pytest.raises(MethodError, match=r"head|last linear layer"):
            methods.method(name).needs(network)
    with pytest.raises(ConfigError, match=r"net\.py:make: head = 'cosine' replaces"):
        built(tmp_path, text, "cosine")


TIED = net(
    extra="self.three = nn.Linear(8, classes); self.three.weight = self.two.weight",
    forward="return self.two(self.one(x) + (self.three(self.one(x)) @ self.three.weight))",
)


def test_tied_parameters_are_one_tensor(tmp_path: Path) -> None:
    layout = Layout.of(built(tmp_path, TIED))
    tied = [entry for entry in layout.entries if entry.aliases]
    assert [(entry.name, *entry.aliases) for entry in tied] == [
        ("body.three.weight", "head.weight")
    ]
    with pytest.raises(ConfigError, match="also used elsewhere"):
        built(tmp_path, TIED, "cosine")


def test_the_layout_is_the_same_without_values(tmp_path: Path) -> None:
    for text in (net(), TIED, HEADLESS[0], net(extra="self.n = int(torch.ones(1).sum().item())")):
        spec = ModelSpec(models.load(written(tmp_path, text)), ("a", "b"), SHAPE, (0.5,), (0.5,))
        assert Layout.of(models.meta_network(spec)) == Layout.of(models.build_for(spec, 0))
        assert models.activation_counts(spec).macs > 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (PLAIN.format("1 / 0"), "cannot be made for 3 classes .*line 4: ZeroDivisionError"),
        (PLAIN.format("exit(3)"), "cannot be made .*SystemExit"),
        (PLAIN.format("[1]"), "returned a list, not a torch.nn.Module"),
        (PLAIN.format("nn.Flatten()"), "no parameters to train"),
        (net(forward="return self.two(self.one(x)), x"), "returns a tuple in evaluation"),
        (
            net(forward="y = self.two(self.one(x)); return (y, x) if self.training else y"),
            "returns a tuple in training",
        ),
        (net(forward="return self.one(x)"), r"shape \[2, 8\] in evaluation for 2 inputs, not"),
        (net(forward="return self.two(self.one(x)).squeeze()"), r"shape \[3\] .* for 1 inputs"),
        (net(forward="return self.two(self.one(x[:, :9]))"), r"take .* \[1, 12, 12\] .*net.py, l"),
        (net(extra="self.double()"), "float64: a flat model is float32"),
        (net(extra="self.h = nn.Parameter(torch.ones(1).half())"), "'h' is torch.float16"),
        (net(extra="self.l = nn.LazyLinear(2)"), "without a shape yet"),
        (net(extra="self.one.bias.data = self.two.weight.data[0]"), "share memory"),
        (net(forward="return self.two(self.one(x)).detach()"), "depends on no parameter"),
        (
            net(
                "self.register_buffer('c', torch.randn(144), persistent=False)",
                "return self.two(self.one(x * self.c))",
            ),
            "values that do not travel",
        ),
        (
            net("self.c = torch.randn(144)", "return self.two(self.one(x * self.c))"),
            "values that do not travel",
        ),
        (
            net(
                "self.n = nn.BatchNorm1d(144, momentum=None)",
                "return self.two(self.one(self.n(x)))",
            ),
            "values that do not travel",
        ),
    ],
)
def test_what_no_federation_can_train_is_refused_in_a_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        built(tmp_path, text)
    assert str(refused.value).startswith("net.py:make")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("net.py", "which network in it"),
        ("net.py:other", "has no 'other'"),
        ("net.py:SHAPE", "is a int, not a callable"),
        ("none.py:make", "there is no such file"),
        ("net.py:a b", "is not the name of a callable"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(tmp_path: Path, name: str, sentence: str) -> None:
    written(tmp_path, net() + "SHAPE = 3\n")
    with pytest.raises(ConfigError, match=sentence):
        models.load(f"{tmp_path}/{name}")


def test_only_a_file_of_the_same_content_is_allowed() -> None:
    one, other = f"make@{'1' * 64}", f"make@{'2' * 64}"
    models.check_allowed(one, [other, one])
    models.check_allowed("lenet", [])
    models.check_allowed("torchvision:resnet18", [])
    with pytest.raises(ConfigError, match=f"SHA-256 {'1' * 64}, but this device's has {'2' * 64}"):
        models.check_allowed(one, [other])
    with pytest.raises(ConfigError, match="does not have: allow it with networks ="):
        models.check_allowed(one, [])


def test_text_networks_get_the_vocabulary(tmp_path: Path) -> None:
    text = HEAD + (
        "def make(classes, shape, vocabulary):\n"
        "    return nn.Sequential(nn.EmbeddingBag(vocabulary, 4), nn.Linear(4, classes))\n"
    )
    name = models.load(written(tmp_path, text))
    network = models.build(name, 3, (6,), 0, vocabulary=11)
    assert network(torch.randint(11, (2, 6))).shape == (2, 3)


def test_torchvisions_networks_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchvision")
    network = models.build("torchvision:mobilenet_v3_small", 4, (3, 32, 32), 0)
    assert isinstance(network, models.Classifier)
    assert isinstance(network.head, nn.Linear)
    with pytest.raises(ConfigError, match="did you mean 'resnet18'"):
        models.build("torchvision:resnet_18", 4, (3, 32, 32), 0)
    with pytest.raises(ConfigError, match=r"does not take a batch of 2 inputs \[1, 32, 32\]"):
        models.build("torchvision:mobilenet_v3_small", 4, (1, 32, 32), 0)
    monkeypatch.setattr(own_names, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="is not installed: pip install"):
        models.check_configured("torchvision:resnet18")


def test_a_simulation_takes_a_network_and_tells_its_fault_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page_network(tmp_path)
    flags = ["--limit=200", "--devices=2", "--rounds=1", "--epochs=1", "--model=net.py:make"]
    assert main(["simulate", *flags, "--method", "moon", "--json", "result.json"]) == 0
    sha256 = hashlib.sha256((tmp_path / "net.py").read_bytes()).hexdigest()
    assert f'"model_file": "{sha256}"' in Path("result.json").read_text()
    capsys.readouterr()
    written(tmp_path, HEADLESS[0].replace("12)", "28)"), "other.py")
    assert main(["simulate", *flags[:-1], "--model=other.py:make", "--method", "moon"]) == 2
    said = capsys.readouterr().err
    assert "moon needs the network's features" in said
    assert said.count("\n") == 1
