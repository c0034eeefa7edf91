"""Every kind of input gives the same pixels as in training."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from fededge import Predictor
from fededge.data.formats.images import read_images
from fededge.errors import ConfigError, DataError
from fededge.predictor.images import prepare_images
from tests.predictor.conftest import Maker

SHAPE = (3, 8, 10)
rng = np.random.default_rng(11)


def picture(mode: str, size: tuple[int, int] = (37, 23)) -> PIL.Image.Image:
    noise = rng.integers(0, 256, (size[1], size[0], 4), np.uint8)
    image = PIL.Image.fromarray(noise)
    return (image.convert("RGB") if mode == "P" else image).convert(mode)


def png(image: PIL.Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_every_kind_of_input_gives_the_reference_answer(
    models: Path, colour: Maker, pixels: np.ndarray, tmp_path: Path
) -> None:
    """The formula in float64 on the pixels; a single input gives one result, many give a list."""
    predictor = Predictor(models / "current")
    expected = colour.expected(1, pixels)
    image = PIL.Image.fromarray(pixels.transpose(1, 2, 0))
    image.save(tmp_path / "picture.png")
    singles = [
        pixels,
        pixels.transpose(1, 2, 0),
        image,
        png(image),
        tmp_path / "picture.png",
        str(tmp_path / "picture.png"),
    ]
    for single in singles:
        np.testing.assert_allclose(predictor.predict(single).probabilities, expected, atol=1e-6)
    for many in (pixels[None], pixels.transpose(1, 2, 0)[None], singles, tuple(singles)):
        results = predictor.predict(many)
        assert len(results) == len(many)
        for result in results:
            np.testing.assert_allclose(result.probabilities, expected, atol=1e-6)


def test_a_result_names_label_probability_and_the_order(
    models: Path, colour: Maker, pixels: np.ndarray
) -> None:
    result = Predictor(models / "current").predict(pixels)
    expected = colour.expected(1, pixels)
    order = np.argsort(-expected)
    assert result.label == colour.spec.labels[order[0]]
    assert result.probability == pytest.approx(expected[order[0]], abs=1e-6)
    assert [label for label, _ in result.top()] == [colour.spec.labels[i] for i in order]
    assert result.top(2) == result.top()[:2]
    assert repr(result).startswith(f"Prediction({result.label!r}, 0.")
    with pytest.raises(ValueError, match="read-only"):
        result.probabilities[0] = 1


def test_many_images_are_answered_each_on_its_own(models: Path, colour: Maker) -> None:
    """More images than one batch of the network."""
    many = rng.integers(0, 256, (150, *SHAPE), np.uint8)
    results = Predictor(models).predict(many)
    expected = [colour.expected(1, image) for image in many]
    np.testing.assert_allclose([r.probabilities for r in results], expected, atol=1e-6)


@pytest.mark.parametrize("nothing", [[], np.empty((0, 3, 8, 10), np.uint8)], ids=["list", "array"])
def test_no_images_give_no_results(models: Path, nothing: object) -> None:
    assert Predictor(models).predict(nothing) == []


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
@pytest.mark.parametrize("shape", [(3, 8, 10), (1, 8, 10), (3, 23, 37), (1, 40, 20)])
def test_a_file_becomes_the_pixels_that_training_makes_of_it(
    mode: str, shape: tuple[int, int, int], tmp_path: Path
) -> None:
    """An app must see what the device was trained on, to the bit."""
    image = picture(mode)
    path = tmp_path / ("picture.jpg" if mode == "CMYK" else "picture.png")
    image.save(path)
    trained = read_images([path], shape)
    assert np.array_equal(prepare_images(path, shape, True)[0], trained)
    with PIL.Image.open(path) as opened:
        assert np.array_equal(prepare_images(opened, shape, True)[0], trained)


def test_a_picture_is_rotated_by_its_exif_orientation(tmp_path: Path) -> None:
    image, exif = picture("RGB"), PIL.Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "side.png", exif=exif)
    got, _ = prepare_images(tmp_path / "side.png", (3, 37, 23), True)
    assert np.array_equal(got[0], np.rot90(np.asarray(image), -1).transpose(2, 0, 1))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
@pytest.mark.parametrize("shape", [(3, 23, 37), (1, 23, 37), (3, 8, 10), (1, 8, 10)])
def test_an_array_is_treated_as_the_picture_it_shows(
    mode: str, shape: tuple[int, int, int]
) -> None:
    """Grey from colour, colour from grey, opacity dropped, scaled: as Pillow does it."""
    image = picture(mode)
    array = np.asarray(image)
    expected, single = prepare_images(image, shape, True)
    assert single
    assert np.array_equal(prepare_images(array, shape, True)[0], expected)
    if array.ndim == 3:
        first = np.ascontiguousarray(array.transpose(2, 0, 1))
        assert np.array_equal(prepare_images(first, shape, True)[0], expected)
        batch, single = prepare_images(np.stack([array, array]), shape, True)
        assert not single
        assert np.array_equal(batch, np.concatenate([expected, expected]))


def test_a_list_may_mix_kinds_and_sizes() -> None:
    image = picture("RGB")
    batch, single = prepare_images([image, np.asarray(image)[:9, :9], png(image)], SHAPE, True)
    assert (batch.shape, single) == ((3, *SHAPE), False)
    assert np.array_equal(batch[0], batch[2])


def test_a_cube_is_read_as_the_model_has_it() -> None:
    """If both axis orders are possible, the model's own is used."""
    cube = rng.integers(0, 256, (3, 3, 3), np.uint8)
    assert np.array_equal(prepare_images(cube, (3, 3, 3), True)[0][0], cube)


def test_other_channels_than_grey_and_colour_go_through_as_they_are() -> None:
    five = rng.integers(0, 256, (5, 8, 10), np.uint8)
    assert np.array_equal(prepare_images(five, (5, 8, 10), True)[0][0], five)
    assert np.array_equal(prepare_images(five.transpose(1, 2, 0), (5, 8, 10), True)[0][0], five)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (np.zeros((8, 10), np.float32), "pixels are uint8 from 0 to 255, this array is float32"),
        (np.zeros((8, 10), bool), "this array is bool"),
        (np.zeros(8, np.uint8), r"one image has 2 or 3 dimensions .* has shape \(8,\)"),
        (np.zeros((1, 1, 3, 8, 10), np.uint8), "one image has 2 or 3 dimensions"),
        ([np.zeros((2, 3, 8, 10), np.uint8)], "one image has 2 or 3 dimensions"),
        (np.zeros((0, 10), np.uint8), r"an array of shape \(0, 10\) has no pixels"),
        (np.zeros((0, 10, 3), np.uint8), r"an array of shape \(0, 10, 3\) has no pixels"),
        (np.zeros((5, 0, 10, 3), np.uint8), r"shape \(5, 0, 10, 3\) has no pixels"),
        (PIL.Image.new("RGB", (5, 0)), r"the image given: the image is empty \(5 x 0 pixels\)"),
        ("", r"\.: this is a folder"),
        (np.zeros((8, 10, 7), np.uint8), "neither the first nor the last could be"),
        (np.zeros((3, 9, 3), np.uint8), "both the first and the last could be"),
        (3.5, "predict takes an image file's path .*; this is builtins.float"),
        ([[1, 2]], "this is builtins.list"),
        (b"no image", "the bytes given: not a readable image .known: BMP, JPEG, PNG, PPM, WEBP"),
        (b"", "the bytes given: not a readable image"),
        ("absent.png", "absent.png: there is no such file"),
        (Path("/"), "/: this is a folder; pass the image files in it"),
        (PIL.Image.new("F", (8, 8)), "the image given: Pillow's mode F is not supported"),
        (PIL.Image.new("L", (8193, 1)), "8193 x 1 pixels, the limit is 8192 a side"),
    ],
    ids=range(20),
)
def test_an_input_that_is_not_an_image_is_refused_with_a_sentence(
    given: object, sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence):
        prepare_images(given, SHAPE, True)


@pytest.mark.parametrize("shape", [SHAPE, (1, 8, 10)])
@pytest.mark.filterwarnings("default")
def test_a_palette_whose_colours_are_partly_opaque_is_read_without_a_warning(
    shape: tuple[int, int, int], recwarn: pytest.WarningsRecorder
) -> None:
    """Transparency is ignored, and Pillow's warning must not reach the terminal."""
    image = picture("P")
    expected, _ = prepare_images(png(image), shape, True)
    file = io.BytesIO()
    image.save(file, "PNG", transparency=bytes(range(200)))
    assert np.array_equal(prepare_images(file.getvalue(), shape, True)[0], expected)
    assert [str(warning.message) for warning in recwarn] == []


def test_half_a_file_is_refused() -> None:
    half = png(picture("RGB"))[:500]
    with pytest.raises(DataError, match="the bytes given: not a readable image"):
        prepare_images(half, SHAPE, True)
    with pytest.raises(DataError, match="the image given: not a readable image"):
        prepare_images(PIL.Image.open(io.BytesIO(half)), SHAPE, True)


def test_a_file_without_permission_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(PIL.Image, "open", refuse)
    with pytest.raises(DataError, match=r"a\.png: cannot be read \(Permission denied\)"):
        prepare_images("a.png", SHAPE, True)


def test_a_picture_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DataError, match="the image is too large"):
        prepare_images(png(picture("RGB")), SHAPE, True)


def test_another_size_is_refused_where_nothing_may_be_scaled(models: Path) -> None:
    predictor = Predictor(models, resize=False)
    for image in (picture("RGB"), np.asarray(picture("RGB"))):
        with pytest.raises(DataError, match=r"37x23 pixels is not scaled \(resize=False\); .*10x8"):
            predictor.predict(image)
    assert predictor.predict(picture("RGB", (10, 8))).label


def test_a_model_of_five_channels_takes_arrays_of_its_size_only() -> None:
    shape = (5, 8, 10)
    with pytest.raises(DataError, match=r"images have 1 channel .grey. or 3 .*takes 5"):
        prepare_images(picture("RGB"), shape, True)
    with pytest.raises(DataError, match="only 1 or 3 channels can be, not 5"):
        prepare_images(np.zeros((5, 9, 11), np.uint8), shape, True)
    with pytest.raises(DataError, match="the model takes 5 channels, and these images have 3"):
        prepare_images(np.zeros((3, 8, 10), np.uint8), shape, True)


def test_arrays_work_without_pillow(
    models: Path, pixels: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays are scaled to the same pixels; only files and PIL images need Pillow."""
    frame = np.asarray(picture("RGB"))
    expected, _ = prepare_images(frame, SHAPE, True)
    for name in [name for name in sys.modules if name == "PIL" or name.startswith("PIL.")]:
        monkeypatch.setitem(sys.modules, name, None)
    assert np.array_equal(prepare_images(frame, SHAPE, True)[0], expected)
    predictor = Predictor(models)
    assert predictor.predict(pixels).label
    with pytest.raises(ConfigError, match=r"need Pillow, which cannot be .*pip install"):
        predictor.predict("photo.png")
