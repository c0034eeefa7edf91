"""The embedded data set is real, balanced, and what its rule selects from the full one."""

from __future__ import annotations

from importlib import resources

import numpy as np
import pytest
import torch

from fededge.data import embedded, load
from fededge.data.embed import TARGET, select
from fededge.data.formats.idx import DEBIAN, FASHION, read_fashion_mnist
from fededge.data.raw import Request

FULL = pytest.mark.skipif(not DEBIAN.is_dir(), reason="package dataset-fashion-mnist not installed")


def test_sizes_and_balance() -> None:
    train, test = embedded()
    assert train.shape == test.shape == (1, 28, 28)
    assert train.labels == FASHION
    assert train.counts().tolist() == [600] * 10
    assert test.counts().tolist() == [100] * 10


def test_pixels_look_like_fashion_mnist() -> None:
    """Mean and deviation lie within 0.005 of the full set's 0.2860 and 0.3530."""
    train, test = embedded()
    assert train.mean == pytest.approx((0.2860,), abs=0.005)
    assert train.std == pytest.approx((0.3530,), abs=0.005)
    assert (train.mean, train.std) == (test.mean, test.std)
    assert int(train.x.min()) == 0
    assert int(train.x.max()) == 255
    # a bag fills far more of its picture than trousers do: the labels belong to the images
    bags, trousers = (train.x[train.y == FASHION.index(n)].float() for n in ("Bag", "Trouser"))
    assert bags.mean() > trousers.mean() + 30


def test_no_image_twice_and_none_in_both_parts() -> None:
    train, test = embedded()
    images = [image.tobytes() for part in (train, test) for image in part.x.numpy()]
    assert len(set(images)) == 7000


def test_classes_are_mixed() -> None:
    """No stretch of 100 training images lacks half of the classes: the order is not by class."""
    train, _ = embedded()
    assert min(len(torch.unique(chunk)) for chunk in train.y.split(100)) > 5


def test_licence_and_size() -> None:
    """The notice travels with the data, in a few megabytes altogether."""
    folder = resources.files("fededge.data") / "embedded"
    notice = (folder / "LICENSE.fashion-mnist").read_text(encoding="utf-8")
    assert "2017 Zalando SE" in notice
    assert "Permission is hereby granted" in notice
    assert TARGET.stat().st_size < 4_000_000


@FULL
def test_the_rule_selects_these_images_from_the_full_set() -> None:
    full = read_fashion_mnist(Request(None))
    assert full.test is not None
    for chosen, part in zip(select(full.train, full.test), embedded(), strict=True):
        assert np.array_equal(chosen.x, part.x.numpy())
        assert np.array_equal(chosen.y, part.y.numpy())


@FULL
def test_debians_full_set() -> None:
    """60,000 and 10,000 images, balanced, with the published mean and deviation."""
    train, test = load("fashion-mnist", None, shape=(1, 28, 28), labels=FASHION)
    assert test is not None
    assert train.counts().tolist() == [6000] * 10
    assert test.counts().tolist() == [1000] * 10
    assert train.mean == pytest.approx((0.2860,), abs=5e-5)
    assert train.std == pytest.approx((0.3530,), abs=5e-5)
