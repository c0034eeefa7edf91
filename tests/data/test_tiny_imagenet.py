"""Tiny-ImageNet on a folder of a few images in the official layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fededge.data import load
from fededge.errors import DataError

TRUCK, FISH, FROG = "n04467665", "n01443537", "n01641577"
WORDS = {
    FISH: "goldfish, Carassius auratus",
    FROG: "bullfrog, Rana catesbeiana",
    TRUCK: "truck",
    "n00001740": "entity",
}


def write_image(path: Path, value: int, mode: str = "RGB", side: int = 64) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (side, side), (value,) * len(mode)).save(path, "JPEG", quality=95)


def write(root: Path) -> Path:
    """Two trucks and a fish to train with, one of them grey; a frog and a truck to test with."""
    write_image(root / f"train/{TRUCK}/images/{TRUCK}_0.JPEG", 10)
    write_image(root / f"train/{TRUCK}/images/{TRUCK}_1.JPEG", 20, mode="L")
    write_image(root / f"train/{FISH}/images/{FISH}_7.JPEG", 30)
    (root / f"train/{FISH}/{FISH}_boxes.txt").write_text(f"{FISH}_7.JPEG\t0\t0\t9\t9\n")
    for name, value in (("val_1.JPEG", 40), ("val_0.JPEG", 50)):
        write_image(root / "val/images" / name, value)
    annotations = ((0, FROG), (1, TRUCK), (2, FISH))
    lines = [f"val_{number}.JPEG\t{wnid}\t0\t32\t44\t62\n" for number, wnid in annotations]
    (root / "val/val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text(f"{TRUCK}\n{FISH}\n{FROG}\n")
    (root / "words.txt").write_text("".join(f"{w}\t{name}\n" for w, name in WORDS.items()))
    return root


def refuses(message: str, root: Path, **wanted: object) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load("tiny-imagenet", root, **wanted)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("folder", ["", "tiny-imagenet-200"])
def test_the_official_layout(tmp_path: Path, folder: str) -> None:
    """Classes sort by id and bear their first name; grey images become RGB; val is the test part.

    The list of annotations may name more images than there are.
    """
    write(tmp_path / folder)
    train, test = load("tiny-imagenet", tmp_path)
    assert test is not None
    assert train.labels == test.labels == ("goldfish", "bullfrog", "truck")
    assert (train.shape, train.y.tolist()) == ((3, 64, 64), [0, 2, 2])
    assert train.x[:, :, 5, 5].tolist() == [[30] * 3, [10] * 3, [20] * 3]
    assert (test.x[:, 0, 0, 0].tolist(), test.y.tolist()) == ([50, 40], [1, 2])


def test_shape_and_labels_of_the_federation(tmp_path: Path) -> None:
    labels = ("car", "truck", "goldfish", "bullfrog")
    train, _ = load("tiny-imagenet", write(tmp_path), shape=(1, 32, 32), labels=labels)
    assert (train.shape, train.y.tolist(), train.labels) == ((1, 32, 32), [2, 1, 1], labels)
    refuses("no label 'bullfrog'.*in this federation", tmp_path, labels=("truck", "goldfish"))


def test_a_device_may_lack_classes(tmp_path: Path) -> None:
    """`wnids.txt` names them all; a class of it that the device lacks need not be known either."""
    write(tmp_path)
    (tmp_path / "val/images/val_0.JPEG").unlink()  # the only frog
    assert load("tiny-imagenet", tmp_path)[0].labels == ("goldfish", "bullfrog", "truck")
    train, _ = load("tiny-imagenet", tmp_path, labels=("truck", "goldfish"))
    assert train.y.tolist() == [1, 0, 0]
    (tmp_path / "wnids.txt").unlink()
    assert load("tiny-imagenet", tmp_path)[0].labels == ("goldfish", "truck")


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        (None, (FISH, FROG, TRUCK)),
        (f"{FISH}\tcrane\n{FROG}\tfrog\n{TRUCK}\tcrane\n", (FISH, "frog", TRUCK)),
        (f"{FISH}\t\n{FROG}\tfrog\nnonsense\n\n", (FISH, "frog", TRUCK)),
    ],
)
def test_without_a_name_of_its_own_a_class_is_its_id(
    tmp_path: Path, words: str | None, labels: tuple[str, ...]
) -> None:
    write(tmp_path)
    (tmp_path / "words.txt").unlink()
    if words is not None:
        (tmp_path / "words.txt").write_text(words)
    assert load("tiny-imagenet", tmp_path)[0].labels == labels


def test_mistakes(tmp_path: Path) -> None:
    refuses("train: there is no such file or folder", tmp_path)
    write(tmp_path)
    annotations = tmp_path / "val/val_annotations.txt"
    whole = annotations.read_text()
    annotations.write_text(whole.replace("val_1", "val_9"))
    refuses("val_1.JPEG: val_annotations.txt does not say its class", tmp_path)
    annotations.write_text(whole.replace(FROG, "n99999999"))
    refuses("val_0.JPEG: its class n99999999 is not one of the 3 classes", tmp_path)
    annotations.unlink()
    refuses("val_annotations.txt: there is no such file", tmp_path)
    annotations.write_text(whole)
    (tmp_path / f"train/{FISH}/images/{FISH}_7.JPEG").write_bytes(b"\xff\xd8 cut")
    refuses(f"{FISH}_7.JPEG: not a readable image", tmp_path)
    for path in (tmp_path / "val/images").iterdir():
        path.unlink()
    refuses("val: it must hold a folder of images", tmp_path)


def test_empty_or_huge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train").mkdir()
    refuses("train: it must hold a folder <WordNet id>/images", tmp_path)
    write(tmp_path)
    monkeypatch.setattr("fededge.data.formats.tiny_imagenet.MOST_LIST_BYTES", 10)
    refuses("val_annotations.txt: larger than the 10 bytes", tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr("fededge.data.raw.MOST_BYTES", 3 * 3 * 64 * 64 - 1)
    refuses("bytes of pixels are more than", tmp_path)


def test_pixels_are_those_of_the_file(tmp_path: Path) -> None:
    """The pixels are those that Pillow decodes, channel by channel."""
    path = write(tmp_path) / f"train/{FISH}/images/{FISH}_7.JPEG"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, "JPEG")
    train, _ = load("tiny-imagenet", tmp_path)
    with Image.open(path) as image:
        assert np.array_equal(train.x[0].numpy(), np.asarray(image).transpose(2, 0, 1))
