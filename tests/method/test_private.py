"""Private state can be read by its device, and leaves it by no general way."""

from __future__ import annotations

import copy
import io
import json
import pickle
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from fededge.errors import EgressError
from fededge.flat import Layout
from fededge.method.private import Private
from fededge.wire import tensors

LAYOUT = Layout.of(nn.Linear(2, 1))


def some() -> Private:
    return Private({"map.inherited": torch.arange(3.0), "map.turns": 2, "ditto.v": torch.ones(3)})


@pytest.mark.parametrize(
    ("way_out", "error"),
    [
        (pickle.dumps, EgressError),
        (copy.copy, EgressError),
        (copy.deepcopy, EgressError),
        (lambda private: torch.save(private, io.BytesIO()), EgressError),
        (np.asarray, EgressError),
        (np.array, EgressError),
        (lambda private: tensors.encode(LAYOUT, {"model": private}), EgressError),
        (json.dumps, TypeError),
        (msgspec.json.encode, TypeError),
        (msgspec.msgpack.encode, TypeError),
    ],
)
def test_it_cannot_be_encoded(way_out: Callable[[object], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        way_out(some())


@pytest.mark.parametrize("wrap", [lambda p: [p], lambda p: {"a": p}, lambda p: (1, p)])
def test_nor_inside_of_something_else(wrap: Callable[[Private], object]) -> None:
    for way_out in (pickle.dumps, copy.deepcopy):
        with pytest.raises(EgressError, match="private state stays on its device"):
            way_out(wrap(some()))


def test_it_reads_as_a_mapping() -> None:
    private = some()
    assert (len(private), list(private)) == (3, ["map.inherited", "map.turns", "ditto.v"])
    assert private["map.turns"] == 2
    assert "map.other" not in private


def test_a_layer_sees_its_own_pieces_only() -> None:
    own = some().of("map")
    assert list(own) == ["inherited", "turns"]
    assert not some().of("ma")


def test_an_update_is_a_copy() -> None:
    before = some()
    after = before.updated("map", {"turns": 3})
    assert (before["map.turns"], after["map.turns"], after["ditto.v"] is before["ditto.v"]) == (
        2,
        3,
        True,
    )


def test_pieces_are_taken_by_kind() -> None:
    own = some().of("map")
    assert own.tensor("inherited").tolist() == [0.0, 1.0, 2.0]
    assert (own.number("turns"), own.number("never", 7.0)) == (2, 7.0)
    with pytest.raises(TypeError, match="'turns' is a number, not a tensor"):
        own.tensor("turns")
    with pytest.raises(TypeError, match="'inherited' is a tensor, not a number"):
        own.number("inherited")


def test_its_text_shows_names_and_no_values() -> None:
    assert repr(some()) == "Private(map.inherited, map.turns, ditto.v)"
    assert "2" not in str(some())
