"""The networks of the zoo: sizes from the papers, shapes, seeds, and the mistakes of a user."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fededge.data import embedded
from fededge.errors import ConfigError
from fededge.flat import FlatModel
from fededge.model_spec import ModelSpec
from fededge.models import Classifier, Preprocess, build, build_for, heads, names
from fededge.models.base import redraw_
from fededge.models.catalogue import IMAGES, TEXTS
from fededge.models.zoo import IMAGE_NETWORKS, TEXT_NETWORKS
from tests.zoo_network import zoo_network

Shape = tuple[int, ...]

GREY = (1, 28, 28)
COLOUR = (3, 32, 32)
TEXT = (12,)
WORDS = 50
ALL = (*names(), *names("text"))
BATCH_NORM = ("vgg8-bn", *(name for name in names() if name.startswith("resnet")))
DROPOUT = ("alexnet32",)


def make(name: str, shape: Shape = COLOUR, seed: int | None = 0, classes: int = 10) -> Classifier:
    """A network; one for texts has a vocabulary of 50 and takes 12 tokens."""
    if name in names("text"):
        return zoo_network(name, classes, TEXT, seed, vocabulary=WORDS)
    return zoo_network(name, classes, shape, seed)


def inputs(name: str, count: int, shape: Shape = COLOUR) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if name in names("text"):
        return torch.randint(0, WORDS, (count, *TEXT), generator=generator)
    return torch.randn(count, *shape, generator=generator)


def size(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def test_the_names_that_are_known_without_torch_are_those_of_the_networks() -> None:
    assert (tuple(IMAGE_NETWORKS), tuple(TEXT_NETWORKS)) == (IMAGES, TEXTS)
    assert (names("image"), names("text")) == (IMAGES, TEXTS)


# ---- sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        # 16*25+16, 16*16*25+16, 256*120+120, 120*84+84, 84*10+10
        ("lenet", GREY, 416 + 6416 + 30840 + 10164 + 850),
        # 3*6*25+6, 6*16*25+16, 400*120+120, 120*84+84, 84*10+10
        ("lenet5", COLOUR, 456 + 2416 + 48120 + 10164 + 850),
        # as lenet5 without its head; 84*84+84, 84*256+256, 256*10+10
        ("lfd-cnn", COLOUR, 456 + 2416 + 48120 + 10164 + 7140 + 21760 + 2570),
        # 32*25+32, 32*64*25+64, 1024*512+512, 512*10+10: the 582,026 of PFLlib's FedAvgCNN
        ("cnn4", GREY, 832 + 51264 + 524800 + 5130),
        # 3*32*25+32, 32*64*25+64, 1600*512+512, 512*10+10
        ("cnn4", COLOUR, 2432 + 51264 + 819712 + 5130),
        # 784*1024+1024, 1024*1024+1024, 1024*128+128, 128*10+10
        ("mlpnet", GREY, 803840 + 1049600 + 131200 + 1290),
        # the TensorFlow tutorial prints a total of 122,570
        ("tfcnn", COLOUR, 122570),
        # 3*64*9+64, 64*192*9+192, 192*384*9+384, 384*256*9+256, 256*256*9+256,
        # twice 1024*1024+1024 (the map is 256x2x2), 1024*10+10
        ("alexnet32", COLOUR, 1792 + 110784 + 663936 + 884992 + 590080 + 2 * 1049600 + 10250),
        # 3*64*9+64, 64*128*9+128, 128*256*9+256, 256*512*9+512, 512*512*9+512, 512*10+10
        ("vgg8", COLOUR, 1792 + 73856 + 295168 + 1180160 + 2359808 + 5130),
        # and a weight and a bias for each of 64 + 128 + 256 + 512 + 512 channels
        ("vgg8-bn", COLOUR, 3915914 + 2 * 1472),
        # as vgg8, and 256*256*9+256 and twice 512*512*9+512
        ("vgg11", COLOUR, 3915914 + 590080 + 2 * 2359808),
        # the stem 3*16*9+2*16; a block of 16: 2*16*16*9+4*16; of 32: (16+32)*32*9+4*32, shortcut
        # 16*32+2*32; of 64: (32+64)*64*9+4*64, shortcut 32*64+2*64; 64*10+10
        ("resnet8", COLOUR, 464 + 4672 + 13952 + 576 + 55552 + 2176 + 650),
        # torchvision publishes 11,689,512 with 1000 classes, hence 1000*512+1000 in its head
        ("resnet18", COLOUR, 11689512 - 513000 + 5130),
        # and its first convolution is 3*64*9 instead of 3*64*49
        ("resnet18-small", COLOUR, 11689512 - 513000 + 5130 - 9408 + 1728),
    ],
)
def test_number_of_parameters(name: str, shape: Shape, expected: int) -> None:
    """Each network has the parameters counted by hand from its description."""
    assert size(build(name, 10, shape, seed=0)) == expected


@pytest.mark.parametrize(
    ("name", "millions"), [("resnet20", 0.27), ("resnet32", 0.46), ("resnet56", 0.85)]
)
def test_resnets_have_their_published_size(name: str, millions: float) -> None:
    """He et al., table 6, with shortcuts that have none: 16*32+2*32 and 32*64+2*64 come on top."""
    assert round((size(make(name)) - 576 - 2176) / 1e6, 2) == millions


def test_fasttext_has_fedalas_size() -> None:
    """98,635 words of 32 numbers, 32*32+32, and 32*4+4."""
    network = build("fasttext", 4, (200,), seed=0, vocabulary=98635)
    assert size(network) == 3156320 + 1056 + 132


def test_resnet8_costs_what_fedbalance_says() -> None:
    """Its table 3: 12.75 million multiplications. Convolutions, by hand: 16*27*1024; 2*16*144*1024;
    (16+32)*32*9*256; (32+64)*64*9*64; shortcuts 16*32*256 and 32*64*64. With 2 for each output of
    batch norm (86,016), 1 for each of ReLU (73,728), the mean's 4,096 inputs and the head's 650.
    """
    network = make("resnet8").eval()
    cost = {"convolutions": 0, "norm": 0, "relu": 0}

    def count(module: nn.Module, _: object, out: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            cost["convolutions"] += out.numel() * module.weight[0].numel()
        cost["norm"] += out.numel() * isinstance(module, nn.BatchNorm2d)
        cost["relu"] += out.numel() * isinstance(module, nn.ReLU)

    for module in network.modules():
        module.register_forward_hook(count)
    network(torch.zeros(1, *COLOUR))
    stages = 442368 + 4718592 + 3538944 + 3538944 + 131072 + 131072
    assert cost == {"convolutions": stages, "norm": 86016, "relu": 73728}
    assert round((stages + 2 * 86016 + 73728 + 4096 + 650) / 1e6, 2) == 12.75


# ---- every network ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("shape", [GREY, COLOUR, (5, 40, 24)])
def test_logits_are_head_of_features(name: str, shape: Shape) -> None:
    """Any channels and sides that fit are taken; forward is the head applied to the features."""
    network = make(name, shape, seed=1, classes=7).eval()
    x = inputs(name, 3, shape)
    logits = network(x)
    assert network.features(x).shape == (3, IMAGE_NETWORKS[name].width)
    assert torch.equal(logits, network.head(network.body(x)))
    assert (logits.shape, logits.dtype) == ((3, 7), torch.float32)


@pytest.mark.parametrize("name", ALL)
def test_gradient_reaches_every_parameter(name: str) -> None:
    network = make(name)
    network(inputs(name, 4)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


@pytest.mark.parametrize("head", heads())
@pytest.mark.parametrize("name", ALL)
def test_a_network_drawn_anew_is_one_of_the_same_kind(name: str, head: str) -> None:
    """Each tensor has other values than before, unless it begins at a constant, and as large."""
    shape, vocabulary = (TEXT, WORDS) if name in names("text") else (COLOUR, 0)
    network, again = (build(name, 10, shape, 3, head=head, vocabulary=vocabulary) for _ in range(2))
    before = torch.get_rng_state()
    redraw_(again, 4)
    assert torch.equal(torch.get_rng_state(), before)
    for key, tensor in network.state_dict().items():
        drawn = again.state_dict()[key]
        if len(tensor.unique()) == 1:
            assert torch.equal(drawn, tensor), key
        else:
            assert not torch.equal(drawn, tensor), key
            if tensor.numel() > 400:
                ratio = float(drawn.square().mean() / tensor.square().mean())
                assert ratio == pytest.approx(1, abs=0.3), key


@pytest.mark.parametrize("name", ALL)
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    """The same seed gives the same weights whatever was drawn before, and torch's state stays."""
    first = make(name, seed=3).state_dict()
    torch.rand(5)
    before = torch.random.get_rng_state()
    second = make(name, seed=3).state_dict()
    other = make(name, seed=4).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[key], second[key]) for key in first)
    matrices = [key for key in first if first[key].ndim > 1]  # norms and some biases begin alike
    assert len(matrices) > 1
    assert not any(torch.equal(first[key], other[key]) for key in matrices)


@pytest.mark.parametrize("name", ALL)
def test_without_a_seed_nothing_is_drawn_and_the_rest_is_the_same(name: str) -> None:
    """Drawn numbers are zero; constants, such as the scales of a norm, are there."""
    first, second, blank = (make(name, seed=seed).state_dict() for seed in (3, 4, None))
    assert first.keys() == blank.keys()
    for key, tensor in blank.items():
        drawn = not torch.equal(first[key], second[key])
        assert torch.equal(tensor, torch.zeros_like(tensor) if drawn else first[key]), key


@pytest.mark.parametrize("name", ALL)
def test_a_flat_model_holds_the_whole_network(name: str) -> None:
    """Every parameter and running statistic is a view of the vector, and every gradient too."""
    network = make(name).eval()
    x = inputs(name, 2)
    before = network(x)
    statistics = sum(b.numel() for b in network.buffers() if b.is_floating_point())
    flat = FlatModel(network)
    assert flat.layout.size == size(network) + statistics
    assert (statistics > 0) == (name in BATCH_NORM)
    assert torch.equal(flat(x), before)
    flat(x).sum().backward()
    assert flat.grad.abs().sum() > 0
    flat.load(torch.zeros(flat.layout.size))
    assert not flat(x).any()


@pytest.mark.parametrize("name", ALL)
def test_training_differs_from_evaluation_where_it_should(name: str) -> None:
    """Batch norm looks at the other images and learns its statistics; dropout throws dice."""
    network, x = make(name), inputs(name, 4)
    state = {key: value.clone() for key, value in network.state_dict().items()}
    trained = network.train()(x), network(x)
    learnt = any(not torch.equal(state[key], value) for key, value in network.state_dict().items())
    network.load_state_dict(state)
    evaluated = network.eval()(x)
    torch.testing.assert_close(network(x[:1]), evaluated[:1], atol=1e-5, rtol=1e-4)
    assert all(torch.equal(state[key], value) for key, value in network.state_dict().items())
    assert learnt == (name in BATCH_NORM)
    assert torch.equal(*trained) == (name not in DROPOUT)
    assert torch.equal(trained[0], evaluated) == (name not in (*DROPOUT, *BATCH_NORM))


@cache
def batch() -> tuple[Tensor, Tensor]:
    train, _ = embedded()
    preprocess = Preprocess(ModelSpec("lenet", train.labels, GREY, train.mean, train.std))
    return preprocess(train.x[:16]), train.y[:16]


def labelled_inputs(name: str) -> tuple[Tensor, Tensor]:
    if name in names("text"):
        return inputs(name, 16), torch.arange(16) % 10
    return batch()


@pytest.mark.parametrize(
    ("name", "head"),
    [(name, "linear") for name in ALL]
    + [(name, head) for name in ("lenet", "lfd-cnn", "fasttext") for head in heads()[1:]],
)
def test_one_step_lowers_the_loss(name: str, head: str) -> None:
    """On 16 real images; without dropout's dice, so that the two losses can be compared."""
    x, y = labelled_inputs(name)
    vocabulary = WORDS if name in names("text") else 0
    network = build(name, 10, tuple(x.shape[1:]), seed=0, head=head, vocabulary=vocabulary)
    for part in network.modules():
        part.train(not isinstance(part, nn.Dropout))
    optimiser = torch.optim.SGD(network.parameters(), lr=0.003)
    before = F.cross_entropy(network(x), y)
    before.backward()
    optimiser.step()
    assert F.cross_entropy(network(x), y) < before


# ---- single networks --------------------------------------------------------------------------


def test_resnet18_is_torchvisions() -> None:
    """The same weights give the same logits as torchvision's own network."""
    models = pytest.importorskip("torchvision.models")
    theirs = models.resnet18(weights=None, num_classes=10).eval()
    ours = zoo_network("resnet18", 10, (3, 64, 64), seed=0).eval()
    weights = {k: v for k, v in theirs.state_dict().items() if not k.startswith("fc.")}
    ours.body.load_state_dict(weights)
    ours.head.load_state_dict(theirs.fc.state_dict())
    x = inputs("resnet18", 2, (3, 64, 64))
    torch.testing.assert_close(ours(x), theirs(x))


def test_resnet18_begins_with_torchvisions_weights() -> None:
    models = pytest.importorskip("torchvision.models")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        theirs = models.resnet18(weights=None, num_classes=1).state_dict()
    ours = zoo_network("resnet18", 10, (3, 64, 64), seed=5).body.state_dict()
    assert {*theirs} - {*ours} == {"fc.weight", "fc.bias"}
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_the_small_stem_keeps_the_size() -> None:
    """32x32 reaches the first stage as 32x32; torchvision's stem makes it 8x8."""
    sides = {}
    for name in ("resnet18", "resnet18-small"):
        body = make(name).body.eval()
        body.get_submodule("layer1").register_forward_hook(
            lambda _, x, __, name=name: sides.update({name: tuple(x[0].shape[2:])})
        )
        body(torch.zeros(1, *COLOUR))
    assert sides == {"resnet18": (8, 8), "resnet18-small": (32, 32)}


def test_the_projection_may_be_negative() -> None:
    """MOON and LfD compare directions: the last layer before the head has no ReLU."""
    assert (make("lfd-cnn").features(inputs("lfd-cnn", 8)) < 0).any()
    assert (make("lenet5").features(inputs("lenet5", 8)) >= 0).all()


def test_fasttext_is_the_mean_of_the_words_that_are_there() -> None:
    """Against float64 numpy, word by word; padding counts neither above nor below the line."""
    network = make("fasttext")
    words = network.body.get_parameter("embedding.weight").detach().double().numpy()
    weight = network.body.get_parameter("hidden.weight").detach().double().numpy()
    bias = network.body.get_parameter("hidden.bias").detach().double().numpy()
    rows = [[7, 3, 3], [49], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], []]
    tokens = torch.tensor([row + [0] * (12 - len(row)) for row in rows])
    means = [words[row].mean(0) if row else np.zeros(32) for row in rows]
    expected = np.stack(means) @ weight.T + bias
    features = network.features(tokens)
    np.testing.assert_allclose(features.detach().numpy(), expected, rtol=1e-4, atol=1e-6)
    longer = network.features(F.pad(tokens, (0, 30)))
    torch.testing.assert_close(longer, features)


def test_padding_learns_nothing() -> None:
    network = make("fasttext")
    embedding = network.body.get_parameter("embedding.weight")
    network(torch.tensor([[3, 0, 0], [0, 0, 0]])).sum().backward()
    assert embedding.grad is not None
    assert embedding.grad.any(1).nonzero().tolist() == [[3]]


# ---- mistakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "side"),
    [("lenet", 16), ("lfd-cnn", 16), ("cnn4", 16), ("mlpnet", 1), ("tfcnn", 18), ("alexnet32", 15)],
)
def test_smallest_side_is_the_smallest(name: str, side: int) -> None:
    """LeNet: 16 → 12 → 6 → 2 → 1; TFCNN: 18 → 16 → 8 → 6 → 3 → 1; AlexNet: 15 → 8 → 4 → 2 → 1.
    One pixel less leaves nothing.
    """
    assert build(name, 2, (1, side, side), seed=0)(torch.zeros(1, 1, side, side)).shape == (1, 2)
    with pytest.raises(ConfigError, match=f"at least {side}x{side}.*{side - 1}x{side}"):
        build(name, 2, (1, side - 1, side), seed=0)


def test_unknown_names_are_explained() -> None:
    with pytest.raises(ConfigError, match=r"'LeNett'; did you mean 'lenet'.*lenet, .*tfcnn"):
        build("LeNett", 10, GREY, seed=0)
    with pytest.raises(ConfigError, match="two classes, got 1"):
        build("lenet", 1, GREY, seed=0)
    with pytest.raises(ConfigError, match=r"channels, height and width, got \[3, 32\]"):
        build("lenet", 10, (3, 32), seed=0)


def test_a_network_for_the_other_kind_of_input_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lenet does not take texts.*one of fasttext"):
        build("lenet", 10, (200,), seed=0, vocabulary=1000)
    with pytest.raises(ConfigError, match=r"fasttext does not take images.*one of lenet, "):
        build("fasttext", 10, GREY, seed=0)
    with pytest.raises(ConfigError, match=r"vocabulary of at least 2 .*and 0"):
        build("fasttext", 10, (200,), seed=0)


def test_absurd_size_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(ConfigError, match=r"4,398,0.* parameters"):
        build("mlpnet", 10, (64, 8192, 8192), seed=0)


# ---- from a spec ------------------------------------------------------------------------------


def test_build_for_takes_all_from_the_spec() -> None:
    image = ModelSpec("lenet", ("a", "b", "c"), GREY, (0.5,), (0.5,), head="bias-free")
    expected = build("lenet", 3, GREY, seed=5, head="bias-free").state_dict()
    made = build_for(image, seed=5).state_dict()
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[key], expected[key]) for key in made)
    text = ModelSpec("fasttext", ("a", "b"), (9,), (), (), vocabulary=70)
    assert size(build_for(text, seed=0)) == 70 * 32 + 32 * 32 + 32 + 2 * 32 + 2


def test_preprocess_passes_tokens_on() -> None:
    text = ModelSpec("fasttext", ("a", "b"), (9,), (), (), vocabulary=70)
    tokens = torch.arange(18).view(2, 9)
    assert Preprocess(text)(tokens) is tokens


def spec(mean: tuple[float, ...], std: tuple[float, ...]) -> ModelSpec:
    return ModelSpec("lenet", ("a", "b"), (2, 4, 4), mean, std)


def test_preprocess_is_the_formula() -> None:
    """(x/255 - mean)/std of each channel, against float64 numpy."""
    mean, std = (0.25, 0.5), (0.2, 0.4)
    x = torch.randint(0, 256, (3, 2, 4, 4), generator=torch.Generator().manual_seed(0))
    expected = x.numpy() / 255 - np.reshape(mean, (1, 2, 1, 1))
    expected = expected / np.reshape(std, (1, 2, 1, 1))
    out = Preprocess(spec(mean, std))(x.to(torch.uint8))
    assert out.dtype == torch.float32
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_preprocess_has_no_state_that_travels() -> None:
    module = Preprocess(spec((0.5, 0.5), (1.0, 1.0)))
    assert not module.state_dict()
    assert not list(module.parameters())


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((), (), "mean has 0 values.*2 channels"),
        ((0.5,), (1.0, 1.0), "mean has 1 values.*2 channels"),
        ((0.5, 0.5), (1.0, 1.0, 1.0), "std has 3 values.*2 channels"),
        ((0.5, float("nan")), (1.0, 1.0), "must be finite"),
        ((0.5, 0.5), (1.0, 0.0), "above zero"),
    ],
)
def test_preprocess_refuses_wrong_statistics(
    mean: tuple[float, ...], std: tuple[float, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Preprocess(spec(mean, std))
