"""Every source on small files made here, and every mistake with the file that it names."""

from __future__ import annotations

import builtins
import gzip
import hashlib
import io
import pickle
import random
import re
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fededge.data import Dataset, load, sources
from fededge.data.raw import Naming
from fededge.errors import ConfigError, DataError

RNG = np.random.default_rng(0)


def refuses(message: str, source: str, root: Path | None, **wanted: object) -> None:
    """The source raises a DataError of one line that matches."""
    with pytest.raises(DataError, match=message) as caught:
        load(source, root, **wanted)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def train_of(source: str, root: Path | None, **wanted: object) -> Dataset:
    return load(source, root, **wanted)[0]  # type: ignore[arg-type]


# ---- every source -----------------------------------------------------------------------------


def test_an_unknown_source_is_explained() -> None:
    with pytest.raises(ConfigError, match="'fashion_mnist'; did you mean 'fashion-mnist'"):
        load("fashion_mnist", None)


@pytest.mark.parametrize("source", sorted(set(sources()) - {"embedded", "fashion-mnist"}))
def test_a_source_without_root_says_what_root_is(source: str) -> None:
    with pytest.raises(ConfigError, match=f"'{source}' needs `root`, the"):
        load(source, None)


@pytest.mark.parametrize("source", sorted(set(sources()) - {"embedded"}))
def test_a_missing_root_is_named(source: str, tmp_path: Path) -> None:
    refuses(re.escape(str(tmp_path / "nowhere")), source, tmp_path / "nowhere")


def test_labels_of_the_federation_decide_the_numbers() -> None:
    """Names decide, not positions; a class too many is fine, one too few is an error."""
    own = train_of("embedded", None)
    order = ("Kimono", *reversed(own.labels))
    other = train_of("embedded", None, labels=order)
    assert other.labels == order
    assert [order[n] for n in other.y[:50]] == [own.labels[n] for n in own.y[:50]]
    refuses("no label 'Ankle boot'.*federation", "embedded", None, labels=own.labels[:-1])
    refuses("must name each class once", "embedded", None, labels=())
    refuses("must name each class once", "embedded", None, labels=("a", "a"))


def test_arrays_of_another_shape_are_refused() -> None:
    refuses(r"shape \[3, 32, 32\], got \[1, 28, 28\]", "embedded", None, shape=(3, 32, 32))


def test_embedded_reads_no_root(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'embedded' reads no `root`"):
        load("embedded", tmp_path)


# ---- mnist and fashion-mnist: idx files -------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder: Path, suffix: str = "") -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    pack: Callable[[bytes], bytes] = gzip.compress if suffix else bytes
    for part, size in (("train", 12), ("t10k", 4)):
        x, y = pixels(size, 28, 28), np.arange(size, dtype=np.uint8) % 10
        (folder / f"{part}-images-idx3-ubyte{suffix}").write_bytes(pack(idx(x)))
        (folder / f"{part}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(y)))
        if part == "train":
            first = x, y
    return first


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("source", "folder"),
    [("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw"), ("mnist", "")],
)
def test_idx_files(tmp_path: Path, source: str, folder: str, suffix: str) -> None:
    """Plain or gzipped, in torchvision's folder or in the root itself."""
    x, y = write_mnist(tmp_path / folder, suffix)
    train, test = load(source, tmp_path)
    assert np.array_equal(train.x.numpy()[:, 0], x)
    assert np.array_equal(train.y.numpy(), y)
    assert test is not None
    assert len(test) == 4
    assert train.mean == test.mean == pytest.approx((x.mean() / 255,))
    assert train.labels[9] == ("9" if source == "mnist" else "Ankle boot")


def test_torchvision_reads_the_same_files_to_the_same_images(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    write_mnist(tmp_path / "FashionMNIST" / "raw")
    theirs = torchvision.datasets.FashionMNIST(str(tmp_path), train=True, download=False)
    ours = train_of("fashion-mnist", tmp_path)
    assert np.array_equal(ours.x[:, 0].numpy(), theirs.data.numpy())
    assert ours.y.tolist() == theirs.targets.tolist()
    assert list(ours.labels) == theirs.classes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:-1], "fewer bytes than its header"),
        (lambda b: b + b"x", "more bytes than its header"),
        (lambda b: b"\0\0\x0d\x03" + b[4:], "not an idx file"),
        (lambda b: b[:9], "not an idx file"),
        (lambda b: b"", "not an idx file"),
        (lambda b: b[:4] + b"\xff" * 12, "bytes of pixels are more than"),
        (lambda b: idx(pixels(11, 28, 28)), "11 images, but there are 12 labels"),
    ],
)
def test_damaged_idx_files(tmp_path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(change(path.read_bytes()))
    refuses(f"train-images-idx3-ubyte: .*{message}", "mnist", tmp_path)


def test_damaged_gzip(tmp_path: Path) -> None:
    write_mnist(tmp_path, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for damaged in (whole[:-20], b"x" + whole, whole[:40] + b"\0" * 9 + whole[49:]):
        path.write_bytes(damaged)
        refuses("ubyte.gz: damaged gzip", "mnist", tmp_path)


def test_nothing_is_downloaded(tmp_path: Path) -> None:
    refuses("nothing is downloaded: put the four idx files there", "mnist", tmp_path)
    refuses("nothing is downloaded: unpack", "cifar10", tmp_path)


def test_fashion_mnist_without_debians_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fededge.data.formats.idx.DEBIAN", tmp_path / "none")
    with pytest.raises(ConfigError, match="package dataset-fashion-mnist"):
        load("fashion-mnist", None)


# ---- cifar ------------------------------------------------------------------------------------


def write_cifar(root: Path, classes: int) -> dict[str, np.ndarray]:
    """Three images a file, in the official binary layout; returns the records by file."""
    folder, extra = root / "cifar-10-batches-bin", 0
    files, names = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"], "batches.meta"
    if classes == 100:
        folder, extra = root / "cifar-100-binary", 1
        files, names = ["train.bin", "test.bin"], "fine_label_names"
    folder.mkdir(parents=True)
    (folder / f"{names}.txt").write_text("".join(f"name{n}\n" for n in range(classes)) + "\n")
    records = {}
    for name in files:
        records[name] = pixels(3, 1 + extra + 3072)
        records[name][:, extra] %= classes
        (folder / name).write_bytes(records[name].tobytes())
    return records


def test_cifar10_binary(tmp_path: Path) -> None:
    records = write_cifar(tmp_path, 10)
    train, test = load("cifar10", tmp_path)
    rows = np.concatenate([records[f"data_batch_{n}.bin"] for n in range(1, 6)])
    assert test is not None
    assert (len(train), len(test), train.shape) == (15, 3, (3, 32, 32))
    assert train.y.tolist() == rows[:, 0].tolist()
    # the format: 1024 red bytes, then green, then blue, each row by row
    assert int(train.x[4, 2, 7, 9]) == rows[4, 1 + 2048 + 7 * 32 + 9]
    assert train.labels[3] == "name3"
    again = train_of("cifar10", tmp_path / "cifar-10-batches-bin")
    assert again.y.tolist() == train.y.tolist()


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    records = write_cifar(tmp_path, 100)
    train = train_of("cifar100", tmp_path)
    assert train.y.tolist() == records["train.bin"][:, 1].tolist()
    assert int(train.x[2, 0, 0, 1]) == records["train.bin"][2, 3]
    assert (len(train.labels), train.labels[99]) == (100, "name99")
    (tmp_path / "cifar-100-binary" / "fine_label_names.txt").unlink()
    assert train_of("cifar100", tmp_path).labels[99] == "99"


def test_damaged_cifar(tmp_path: Path) -> None:
    write_cifar(tmp_path, 10)
    folder = tmp_path / "cifar-10-batches-bin"
    batch = folder / "data_batch_2.bin"
    whole = batch.read_bytes()
    batch.write_bytes(whole[:-1])
    refuses("data_batch_2.bin: 9,218 bytes are not whole records", "cifar10", tmp_path)
    batch.write_bytes(b"\x0a" + whole[1:])
    refuses("label 10 is out of range for 10 classes", "cifar10", tmp_path)
    batch.unlink()
    refuses("data_batch_2.bin: there is no such file", "cifar10", tmp_path)
    (folder / "test_batch.bin").rename(tmp_path / "elsewhere.bin")
    refuses("test_batch.bin: there is no such file", "cifar10", tmp_path)
    (tmp_path / "elsewhere.bin").rename(folder / "test_batch.bin")
    (folder / "batches.meta.txt").write_text("only\n")
    refuses("batches.meta.txt: holds 1 class names instead of 10", "cifar10", tmp_path)


def write_cifar_pickles(root: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The Python version in small, with torchvision told the MD5 of these files."""
    cifar = pytest.importorskip("torchvision.datasets").CIFAR10
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    rows = pixels(4, 3072)

    def write(name: str, content: object) -> list[str]:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return [name, hashlib.md5(data).hexdigest()]

    batches = [write(n, {"data": rows, "labels": [0, 1, 2, 1]}) for n in ("data_batch_1", "test")]
    meta = write("batches.meta", {"label_names": list("abcdefghij")})
    monkeypatch.setattr(cifar, "train_list", batches[:1])
    monkeypatch.setattr(cifar, "test_list", batches[1:])
    key = {"filename": meta[0], "key": "label_names", "md5": meta[1]}
    monkeypatch.setattr(cifar, "meta", key)
    return rows


def test_cifar_of_torchvision_comes_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision's folder is read by torchvision itself, and only without a binary version."""
    rows = write_cifar_pickles(tmp_path, monkeypatch)
    train = train_of("cifar10", tmp_path)
    assert np.array_equal(train.x.numpy(), rows.reshape(4, 3, 32, 32))
    assert (train.y.tolist(), train.labels) == ([0, 1, 2, 1], tuple("abcdefghij"))
    write_cifar(tmp_path, 10)
    assert len(train_of("cifar10", tmp_path)) == 15


def test_pickles_with_another_md5_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pickle that would run code when opened is refused by its MD5 and runs nothing."""
    write_cifar_pickles(tmp_path, monkeypatch)
    trace = tmp_path / "trace"

    class Attack:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return Path.touch, (trace,)

    attack = pickle.dumps(Attack())
    pickle.loads(attack)  # noqa: S301 - proves that the attack works when it is opened
    trace.unlink()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(attack)
    refuses("cifar-10-batches-py: files are missing or do not have", "cifar10", tmp_path)
    assert not trace.exists()


def test_cifar_without_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    refuses(r"needs torchvision.*install fededge\[vision\]", "cifar10", tmp_path)


# ---- folder -----------------------------------------------------------------------------------


def write_image(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def test_folder_names_are_classes(tmp_path: Path) -> None:
    """PNG pixels come back exactly; names sort; other files and hidden folders are no images."""
    images = {
        "truck/b.png": pixels(6, 8, 3),
        "truck/a.png": pixels(6, 8, 3),
        "bus/c.PNG": pixels(6, 8, 3),
    }
    for name, array in images.items():
        write_image(tmp_path / name, array)
    (tmp_path / "bus" / "notes.txt").write_text("not an image")
    (tmp_path / ".cache").mkdir()
    train, test = load("folder", tmp_path)
    assert (test, train.labels, train.y.tolist()) == (None, ("bus", "truck"), [0, 1, 1])
    assert np.array_equal(train.x[1].numpy(), images["truck/a.png"].transpose(2, 0, 1))


def test_labels_given_a_missing_class_is_fine_an_unknown_one_is_not(tmp_path: Path) -> None:
    write_image(tmp_path / "truck" / "a.png", pixels(4, 4))
    train = train_of("folder", tmp_path, labels=("bike", "bus", "truck"))
    assert (train.y.tolist(), train.counts().tolist()) == ([2], [0, 0, 1])
    refuses("no label 'truck'; did you mean 'trucks'", "folder", tmp_path, labels=("bus", "trucks"))


def test_an_empty_class_folder_is_a_missing_class(tmp_path: Path) -> None:
    write_image(tmp_path / "truck" / "a.png", pixels(4, 4))
    (tmp_path / "bus").mkdir()
    assert train_of("folder", tmp_path).counts().tolist() == [0, 1]


def test_train_and_test_folders(tmp_path: Path) -> None:
    """A root of just `train` and `test` has a test part; a class may be absent from it."""
    for name in ("train/a/1.png", "train/b/1.png", "train/b/2.png", "test/b/3.png"):
        write_image(tmp_path / name, pixels(5, 5))
    train, test = load("folder", tmp_path)
    assert test is not None
    assert (train.y.tolist(), test.y.tolist(), test.labels) == ([0, 1, 1], [1], ("a", "b"))


def test_images_are_fitted_to_the_shape(tmp_path: Path) -> None:
    """A wide image is scaled to cover and cropped around its centre, in grey or colour."""
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = (200, 100, 50)  # the square in the middle
    write_image(tmp_path / "a" / "wide.png", wide)
    colour = train_of("folder", tmp_path, shape=(3, 10, 10))
    assert colour.x[0].unique(dim=1).shape[1] == 1
    assert colour.x[0, :, 5, 5].tolist() == [200, 100, 50]
    grey = train_of("folder", tmp_path, shape=(1, 20, 20))
    assert grey.shape == (1, 20, 20)
    assert int(grey.x[0, 0, 9, 9]) == round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)


def test_a_shape_that_fits_changes_no_pixel(tmp_path: Path) -> None:
    array = pixels(7, 9)
    write_image(tmp_path / "a" / "1.png", array)
    assert np.array_equal(train_of("folder", tmp_path, shape=(1, 7, 9)).x[0, 0].numpy(), array)


def test_a_photo_stands_upright(tmp_path: Path) -> None:
    """A camera's orientation tag is followed: 6 means that the left column is the top row."""
    (tmp_path / "a").mkdir()
    image = Image.fromarray(np.array([[10, 20, 30], [40, 50, 60]], np.uint8))
    tag = Image.Exif()
    tag[0x0112] = 6
    image.save(tmp_path / "a" / "1.png", exif=tag)
    assert train_of("folder", tmp_path).x[0, 0].tolist() == [[40, 10], [50, 20], [60, 30]]


def test_folder_mistakes(tmp_path: Path) -> None:
    refuses("must hold one sub-folder of images for each class", "folder", tmp_path)
    (tmp_path / "a").mkdir()
    refuses("none of its class folders holds an image", "folder", tmp_path)
    write_image(tmp_path / "a" / "1.png", pixels(4, 4))
    refuses("but 2 are wanted", "folder", tmp_path, shape=(2, 4, 4))
    write_image(tmp_path / "a" / "2.png", pixels(4, 5))
    refuses(r"2.png: its shape \(1, 4, 5\) differs from \(1, 4, 4\)", "folder", tmp_path)
    write_image(tmp_path / "a" / "2.png", pixels(4, 4, 3))
    refuses(r"2.png: its shape \(3, 4, 4\) differs", "folder", tmp_path)
    (tmp_path / "a" / "2.png").unlink()
    (tmp_path / "a" / "1.png").write_bytes(b"\x89PNG but no more")
    refuses("1.png: not a readable image", "folder", tmp_path)
    write_image(tmp_path / "a" / "1.png", pixels(4, 4).astype(np.uint16))
    refuses("1.png: Pillow's mode I;16 is not supported", "folder", tmp_path)
    (tmp_path / "a" / "more").mkdir()
    refuses("more: a class folder holds images only", "folder", tmp_path)
    refuses("1.png: cannot be read", "folder", tmp_path / "a" / "1.png")


def test_an_unreadable_image_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = [pixels(4, 4) + shade for shade in range(3)]
    for number, array in enumerate(arrays):
        write_image(tmp_path / "cat" / f"{number}.png", array)
    write_image(tmp_path / "dog" / "0.png", arrays[0])
    (tmp_path / "cat" / "1.png").write_bytes(b"\x89PNG half of it")
    train = train_of("folder", tmp_path)
    assert train.skipped == 1
    assert train.y.tolist() == [0, 0, 1]
    assert np.array_equal(train.x[:, 0].numpy(), [arrays[0], arrays[2], arrays[0]])
    assert [record.message for record in caplog.records] == [
        f"{tmp_path / 'cat' / '1.png'}: not a readable image; replace or remove it; it is left out"
    ]


def test_of_many_unreadable_images_the_log_names_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_image(tmp_path / "cat" / "good.png", pixels(4, 4))
    for number in range(25):
        (tmp_path / "cat" / f"{number}.png").write_bytes(b"")
    assert train_of("folder", tmp_path).skipped == 25
    assert len(caplog.records) == 21
    assert (
        caplog.records[-1].message == f"{tmp_path}: 5 more images cannot be read and are left out"
    )


def test_aliases_and_ignored_folders(tmp_path: Path) -> None:
    for place in ("cat", "cats", "dog", "unsorted"):
        write_image(tmp_path / place / "1.png", pixels(4, 4))
    refuses("no label 'cats'; did you mean 'cat'", "folder", tmp_path, labels=("dog", "cat"))
    naming = Naming({"cats": "cat"}, ["unsorted"])
    train = train_of("folder", tmp_path, labels=("dog", "cat"), naming=naming)
    assert train.counts().tolist() == [1, 2]
    assert train_of("folder", tmp_path, naming=naming).labels == ("cat", "dog")


def test_aliases_in_a_table(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("label,a,b,c,d\ncats,1,2,3,4\ndog,1,2,3,4\ncat,1,2,3,4\n")
    train = train_of("csv", path, labels=("dog", "cat"), naming=Naming({"cats": "cat"}))
    assert train.y.tolist() == [1, 0, 1]


def test_an_image_that_is_another_format_than_allowed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels(4, 4)).save(tmp_path / "a" / "1.png", format="TIFF")
    refuses("1.png: not a readable image", "folder", tmp_path)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((8193, 1), "8193 x 1 pixels, the limit is 8192"),
        ((10_000, 10_000), "too large"),
        ((60_000, 60_000), "too large"),
    ],
)
def test_a_bomb_is_refused_by_its_header(
    tmp_path: Path, size: tuple[int, int], message: str
) -> None:
    """A BMP of a few bytes that claims gigabytes is never decoded."""
    (tmp_path / "a").mkdir()
    buffer = io.BytesIO()
    Image.fromarray(pixels(2, 2)).save(buffer, format="BMP")
    header = bytearray(buffer.getvalue())
    header[18:26] = struct.pack("<ii", *size)
    (tmp_path / "a" / "1.bmp").write_bytes(header)
    refuses(f"1.bmp: .*{message}", "folder", tmp_path)


def test_too_many_pixels_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "123":
        write_image(tmp_path / "a" / f"{name}.png", pixels(4, 4))
    monkeypatch.setattr("fededge.data.raw.MOST_BYTES", 47)
    refuses("48 bytes of pixels are more than the 47", "folder", tmp_path)
    small = {"shape": (3, 2, 2), "most_bytes": 35}
    refuses("36 bytes of pixels are more than the 35", "folder", tmp_path, **small)
    large = {"shape": (3, 8192, 8192), "most_bytes": 10**12}
    refuses("more than the 47", "folder", tmp_path, **large)  # before any is read
    monkeypatch.setattr("fededge.data.formats.images.MOST_FILE_BYTES", 10)
    refuses("1.png: larger than the 10 bytes", "folder", tmp_path)


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(tmp_path / "a" / "1.png", pixels(4, 4))
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.startswith("PIL"):
            raise ImportError("No module named 'PIL'")
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    refuses(r"install fededge\[vision\]", "folder", tmp_path)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")  # PIL reads such an image all the same
@pytest.mark.parametrize("kind", ["BMP", "JPEG", "PNG", "PPM", "WEBP"])
def test_damaged_images_give_an_image_or_one_sentence(tmp_path: Path, kind: str) -> None:
    """Hundreds of seeded mutations and cuts: never another exception than DataError."""
    buffer = io.BytesIO()
    Image.fromarray(pixels(12, 12, 3)).save(buffer, format=kind, exif=Image.Exif())
    whole, rng = buffer.getvalue(), random.Random(0)
    refused: list[str] = []
    path = tmp_path / "a" / "1.png"
    path.parent.mkdir()
    for _ in range(400):
        path.write_bytes(mutated(whole, rng))
        try:
            load("folder", tmp_path, shape=(3, 4, 4))
        except DataError as error:
            refused.append(str(error))
    assert len(refused) > 50
    assert all(str(path) in message for message in refused)


def mutated(whole: bytes, rng: random.Random) -> bytes:
    data = bytearray(whole)
    for _ in range(rng.randint(1, 6)):
        data[rng.randrange(rng.choice((min(60, len(data)), len(data))))] = rng.randrange(256)
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.3 else data)


# ---- npz --------------------------------------------------------------------------------------


def write_npz(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


Y = np.array([0, 2, 1, 2])


@pytest.mark.parametrize(
    ("array", "wanted", "expected"),
    [
        (pixels(4, 6, 8), None, (1, 6, 8)),
        (pixels(4, 3, 6, 8), None, (3, 6, 8)),
        (pixels(4, 6, 8, 3), None, (3, 6, 8)),
        (pixels(4, 9, 6, 8), (9, 6, 8), (9, 6, 8)),
        (pixels(4, 6, 8, 9), (9, 6, 8), (9, 6, 8)),
        (pixels(4, 3, 5, 4), (4, 3, 5), (4, 3, 5)),
    ],
)
def test_npz_layouts(
    tmp_path: Path, array: np.ndarray, wanted: tuple[int, int, int] | None, expected: object
) -> None:
    """Channels first, last or none; the wanted shape settles what could be either."""
    train, test = load("npz", write_npz(tmp_path / "a.npz", x=array, y=Y), shape=wanted)
    assert (train.shape, test, train.labels) == (expected, None, ("0", "1", "2"))
    first = array if array.shape[1:] == expected or array.ndim == 3 else np.moveaxis(array, 3, 1)
    assert np.array_equal(train.x.numpy().reshape(first.shape), first)
    assert train.y.tolist() == Y.tolist()


def test_npz_with_a_test_part_and_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=pixels(4, 3, 3), y=Y, x_test=pixels(1, 3, 3), y_test=Y[:1])
    train, test = load("npz", path, labels=("a", "b", "c", "d"))
    assert test is not None
    assert (len(test), train.counts().tolist()) == (1, [1, 1, 2, 0])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": Y}, "no array `x` in it .it holds y.npy"),
        ({"x": pixels(4, 3, 3)}, "no array `y`"),
        ({"x": pixels(4, 3, 3), "y": Y, "y_test": Y}, "no array `x_test`"),
        ({"x": np.zeros((4, 3, 3)), "y": Y}, "x is float64, but pixels must be uint8"),
        ({"x": pixels(4, 3, 3), "y": Y / 2}, "y must be one row of whole numbers, got float64"),
        ({"x": pixels(4, 3, 3), "y": Y[None]}, "y must be one row"),
        ({"x": pixels(3, 3, 3), "y": Y}, r"x has shape \[3, 3, 3\], but y has 4 labels"),
        ({"x": pixels(0, 3, 3), "y": Y[:0]}, "0 labels"),
        ({"x": pixels(4, 0, 3), "y": Y}, "images without pixels"),
        ({"x": pixels(4, 9, 9, 9), "y": Y}, "neither"),
        ({"x": pixels(4, 9), "y": Y}, "neither"),
        ({"x": pixels(4, 3, 3), "y": Y - 1}, "label -1 is out of range"),
        ({"x": pixels(4, 3, 3), "y": Y * 100_000}, "label 200000 is above the 100,000 classes"),
        ({"x": np.array([{}] * 4), "y": Y}, "array `x` cannot be read .object"),
        (
            {"x": pixels(4, 3, 3), "y": Y, "x_test": pixels(4, 5, 5), "y_test": Y},
            r"shape \[1, 3, 3\], got \[1, 5, 5\]",
        ),
    ],
)
def test_npz_mistakes(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    refuses(f"a.npz: .*{message}", "npz", write_npz(tmp_path / "a.npz", **arrays))


def test_npz_labels_out_of_range(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", x=pixels(4, 3, 3), y=Y)
    refuses("a.npz: label 2 is out of range for 2 classes", "npz", path, labels=("a", "b"))


def npy(shape: str, data: bytes) -> bytes:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117)
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n" + data


def write_zip(path: Path, content: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", npy("(2,)", b"\0\1"))
    return path


def test_npz_that_promises_more_than_it_holds(tmp_path: Path) -> None:
    """A header of terabytes over a few bytes takes no memory; a negative one is no trick either."""
    good = write_zip(tmp_path / "good.npz", npy("(2, 1, 1)", b"\0\1"))
    assert len(train_of("npz", good)) == 2
    for shape in ("(2, 1000000, 1000000)", "(-2, -1, 1)", "(2, 1, 'x')", "(2, "):
        path = write_zip(tmp_path / "a.npz", npy(shape, b"\0\1"))
        refuses("a.npz: .*array `x` cannot be read", "npz", path)
    path = write_zip(tmp_path / "a.npz", npy("(2, 1000000, 1000000)", b"\0\1"))
    refuses(r"uint8 \[2, 1000000, 1000000\] in 130 bytes", "npz", path)  # before any memory
    path = write_zip(tmp_path / "a.npz", npy("(2, 1, 1)", b"\0\1"), zipfile.ZIP_BZIP2)
    refuses("it is not compressed as numpy does", "npz", path)


def test_npz_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_npz(tmp_path / "a.npz", x=pixels(4, 3, 3), y=Y)
    monkeypatch.setattr("fededge.data.raw.MOST_BYTES", 100)
    refuses("bytes of pixels are more than the 100", "npz", path)


def test_damaged_npz_gives_images_or_one_sentence(tmp_path: Path) -> None:
    """Seeded mutations of stored and compressed archives: never another exception."""
    rng, refused = random.Random(1), 0
    for save in (np.savez, np.savez_compressed):
        path = tmp_path / "a.npz"
        save(path, x=pixels(4, 3, 3), y=Y)
        whole = path.read_bytes()
        for _ in range(600):
            path.write_bytes(mutated(whole, rng))
            try:
                load("npz", path)
            except DataError:
                refused += 1
    assert refused > 600


# ---- csv --------------------------------------------------------------------------------------


def write_csv(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_of_paths(tmp_path: Path) -> None:
    """Paths are relative to the file; other columns are ignored, blank lines and a BOM too."""
    first, second = pixels(4, 4), pixels(4, 4)
    write_image(tmp_path / "img" / "1.png", first)
    write_image(tmp_path / "img" / "2.png", second)
    text = "\ufefftime,label,path\n7, truck,img/2.png\n\n8,bus,img/1.png\n"
    train, test = load("csv", write_csv(tmp_path / "a.csv", text))
    assert (test, train.labels, train.y.tolist()) == (None, ("bus", "truck"), [1, 0])
    assert np.array_equal(train.x[:, 0].numpy(), np.stack([second, first]))


def test_csv_of_pixels(tmp_path: Path) -> None:
    """Without a shape, one square channel; numeric labels sort by value."""
    text = "a,b,label,c,d\n1,2,10,3,4\n0,255,9,0,0\n"
    train = train_of("csv", write_csv(tmp_path / "a.csv", text))
    assert train.x.tolist() == [[[[1, 2], [3, 4]]], [[[0, 255], [0, 0]]]]
    assert (train.labels, train.y.tolist()) == (("9", "10"), [1, 0])


def test_csv_of_pixels_is_channel_by_channel(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", "label,a,b,c,d,e,f\nx,1,2,3,4,5,6\n")
    assert train_of("csv", path, shape=(3, 1, 2)).x.tolist() == [[[[1, 2]], [[3, 4]], [[5, 6]]]]


def test_csv_labels_by_name_or_number(tmp_path: Path) -> None:
    """Numbers count the federation's labels, unless a label is a number itself."""
    names = write_csv(tmp_path / "a.csv", "label,p\nbus,1\ntruck,2\n")
    numbers = write_csv(tmp_path / "b.csv", "label,p\n2,1\n0,2\n")
    labels = ("truck", "bike", "bus")
    assert train_of("csv", names, labels=labels).y.tolist() == [2, 0]
    assert train_of("csv", numbers, labels=labels).y.tolist() == [2, 0]
    assert train_of("csv", numbers, labels=("2", "1", "0")).y.tolist() == [0, 2]
    refuses("a.csv: no label 'bus'", "csv", names, labels=("truck", "bike"))
    refuses("b.csv: no label '2'", "csv", numbers, labels=("truck", "bike"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "first line must name the columns, one of them `label`"),
        ("path,class\n", "one of them `label`"),
        ("label,label,p\n", "one of them `label`"),
        ("label,p\n", "no rows below its header"),
        ("label,path\n", "no rows below its header"),
        ("label,p\na,1,2\n", "row 2 has 3 cells instead of 2"),
        ("label,p\na,1\n,2\n", "row 3 has no label"),
        ("label,p\na,256\n", "row 2: pixels must be whole numbers from 0 to 255"),
        ("label,p\na,-1\n", "row 2: pixels"),
        ("label,p\na,0.5\n", "row 2: pixels"),
        ("label,p\na," + "9" * 5000 + "\n", "row 2: pixels"),
        ("label,p\na," + "9" * 200_000 + "\n", "not a CSV file in UTF-8 .field larger"),
        ("label,a,b\nx,1,2\n", r"2 pixel columns, which do not make an image of shape \[1, 1, 1\]"),
        ("label\nx\n", "0 pixel columns"),
        ("label,path\na,../secret.png\n", "'../secret.png' must lead to an image below"),
        ("label,path\na,/etc/passwd\n", "'/etc/passwd' must lead"),
        ("label,path\na,\n", "'' must lead"),
        ("label,path\na,gone.png\n", "gone.png: there is no such file"),
    ],
)
def test_csv_mistakes(tmp_path: Path, text: str, message: str) -> None:
    refuses(message, "csv", write_csv(tmp_path / "a.csv", text))


def test_csv_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"label,p\n\xff\xfe,1\n")
    refuses("a.csv: not a CSV file in UTF-8", "csv", tmp_path / "a.csv")
    refuses("cannot be read .Is a directory", "csv", tmp_path)
