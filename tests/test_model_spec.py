"""ModelSpec: images, texts and heads, and refusals on decoding."""

from __future__ import annotations

import msgspec
import pytest

from fededge.model_spec import ModelSpec

IMAGE = ModelSpec("lenet", ("a", "b"), (1, 28, 28), (0.5,), (0.5,))
TEXT = ModelSpec("fasttext", ("a", "b"), (200,), (), (), vocabulary=98635)


def test_an_image_is_the_default() -> None:
    assert (IMAGE.kind, IMAGE.head, IMAGE.classes) == ("image", "linear", 2)
    assert TEXT.kind == "text"


@pytest.mark.parametrize("spec", [IMAGE, TEXT, msgspec.structs.replace(IMAGE, head="cosine:0.05")])
def test_a_spec_survives_the_wire(spec: ModelSpec) -> None:
    assert msgspec.json.decode(msgspec.json.encode(spec), type=ModelSpec) == spec


def test_a_spec_of_before_has_a_linear_head() -> None:
    old = b'{"name":"lenet","labels":["a","b"],"shape":[1,28,28],"mean":[0.5],"std":[0.5]}'
    assert msgspec.json.decode(old, type=ModelSpec) == IMAGE


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (IMAGE, {"shape": [28, 28]}),
        (IMAGE, {"shape": [200]}),
        (IMAGE, {"shape": []}),
        (IMAGE, {"shape": [65, 28, 28]}),
        (IMAGE, {"shape": [1, 0, 28]}),
        (IMAGE, {"shape": [1, 8193, 28]}),
        (IMAGE, {"shape": [1, 28, 28, 1]}),
        (IMAGE, {"std": [0.0]}),
        (IMAGE, {"head": "quadratic"}),
        (IMAGE, {"head": "cosine:"}),
        (IMAGE, {"head": "linear\n"}),
        (IMAGE, {"head": "cosine:1;rm"}),
        (IMAGE, {"vocabulary": -1}),
        (IMAGE, {"vocabulary": 1000}),
        (IMAGE, {"kind": "text"}),
        (TEXT, {"vocabulary": 1}),
        (TEXT, {"vocabulary": 10_000_001}),
        (TEXT, {"vocabulary": 0}),
        (TEXT, {"mean": [0.5]}),
        (TEXT, {"std": [0.5]}),
        (TEXT, {"shape": [8193]}),
        (TEXT, {"shape": [1, 1, 200]}),
    ],
)
def test_an_invalid_spec_is_refused_on_decoding(
    spec: ModelSpec, changes: dict[str, object]
) -> None:
    """Always msgspec's own error, which the wire turns into a WireError."""
    data = msgspec.json.encode({**msgspec.to_builtins(spec), **changes})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(data, type=ModelSpec)
