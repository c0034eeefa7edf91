"""`fededge predict` and `fededge serve-model`, as a user and as an app without torch meet them."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import sys
import urllib.request
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from fededge.cli import main
from fededge.cli.apps import serve_model
from tests.predictor.conftest import Maker, bare

APP = """
import fededge
assert not {"numpy", "onnxruntime"} & sys.modules.keys()
predictor = fededge.Predictor(sys.argv[1])
print(predictor.predict(sys.argv[2]).label)
assert not ABSENT & {name.partition(".")[0] for name in sys.modules}
"""
COMMAND = """
from fededge.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Images in a folder and in one below; other files, and hidden ones."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    (folder / ".thumbnails").mkdir()
    rng = np.random.default_rng(2)
    for name in ("b.png", "a.jpg", "more/c.PNG", ".thumbnails/a.png", ".hidden.png"):
        pixels = rng.integers(0, 256, (16, 20, 3), np.uint8)
        PIL.Image.fromarray(pixels).save(folder / name)
    (folder / "notes.txt").write_text("not an image")
    return folder


def expected_label(maker: Maker, seed: int, path: Path) -> str:
    with PIL.Image.open(path) as image:
        small = PIL.ImageOps.fit(image.convert("RGB"), (10, 8), PIL.Image.Resampling.BILINEAR)
    probabilities = maker.expected(seed, np.asarray(small).transpose(2, 0, 1))
    return maker.spec.labels[int(probabilities.argmax())]


def test_an_app_without_torch_gets_its_label(models: Path, colour: Maker, photos: Path) -> None:
    """Neither torch nor anything else of FedEdge's needs; `import fededge` alone loads nothing."""
    process = bare(APP, models / "current", photos / "b.png")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out.strip() == expected_label(colour, 1, photos / "b.png")


def test_the_command_works_without_torch(models: Path, photos: Path) -> None:
    process = bare(COMMAND, "predict", models.parent, photos, "--json")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert len(out.splitlines()) == 3


def test_a_served_model_answers_until_it_is_told_to_stop(
    models: Path, colour: Maker, photos: Path
) -> None:
    """A process without torch, on a free port; SIGTERM ends it cleanly."""
    process = bare(COMMAND, "serve-model", models, "--port", 0)
    try:
        assert process.stdout is not None
        url, *said = process.stdout.readline().split()
        assert said[:3] == ["answers", "with", "version"]
        assert process.stdout.readline().startswith("CPU runs the model")
        data = (photos / "a.jpg").read_bytes()
        request = urllib.request.Request(url, data, {"Content-Type": "image/jpeg"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            got = json.load(answer)
        assert got["label"] == expected_label(colour, 1, photos / "a.jpg")
        assert got["version"] == said[3]
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in err


@pytest.mark.parametrize(("host", "open_"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_an_endpoint_that_others_can_reach_says_so(
    models: Path,
    host: str,
    open_: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve_model, "run_until_signal", lambda endpoint: endpoint.server_close())
    assert main(["serve-model", str(models), "--host", host, "--port", "0"]) == 0
    assert ("without password or encryption" in capsys.readouterr().out) == open_


def test_a_folder_gives_a_line_for_each_image(
    models: Path, colour: Maker, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(models), str(photos), "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    files = [photos / name for name in ("a.jpg", "b.png", "more/c.PNG")]
    assert [line.split()[0] for line in lines] == [str(file) for file in files]
    assert [line.split()[1] for line in lines] == [expected_label(colour, 1, f) for f in files]
    assert [line.count("%") for line in lines] == [2, 2, 2]


def test_json_has_one_object_a_line_also_for_a_bad_file(
    models: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "aa.png").write_text("no image")
    assert main(["predict", str(models), str(photos), str(photos / "b.png"), "--json"]) == 2
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(line["file"]).name for line in lines] == [
        "a.jpg",
        "aa.png",
        "b.png",
        "c.PNG",
        "b.png",
    ]
    assert [("error" in line) for line in lines] == [False, True, False, False, False]
    assert lines[0].keys() == {"file", "label", "probability", "version", "top"}
    assert len(lines[0]["top"]) == 1


def test_csv_has_a_header_and_two_columns_for_each_of_the_best(
    models: Path, colour: Maker, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A count beyond the labels gives all labels; a bad file has an error instead of a row."""
    (photos / "aa.png").write_text("no image")
    assert main(["predict", str(models), str(photos), "--csv", "--top", "9"]) == 2
    said = capsys.readouterr()
    header, *rows = csv.reader(said.out.splitlines())
    assert header[:4] == ["file", "version", "label", "probability"]
    assert header[4:] == ["label 2", "probability 2", "label 3", "probability 3"]
    files = [photos / name for name in ("a.jpg", "b.png", "more/c.PNG")]
    assert [row[0] for row in rows] == [str(file) for file in files]
    assert [row[2] for row in rows] == [expected_label(colour, 1, file) for file in files]
    assert all(sum(map(float, row[3::2])) == pytest.approx(1, abs=1e-5) for row in rows)
    assert "aa.png: not a readable image" in said.err


def test_a_terminal_sees_how_far_it_is_while_the_answers_go_to_a_file(
    models: Path,
    photos: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["predict", str(models), str(photos), "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == "\r1 of 3\r2 of 3\r3 of 3\n"
    assert len(said.out.splitlines()) == 3


def test_a_bad_file_gets_a_sentence_and_the_others_their_lines(
    models: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "aa.png").write_text("no image")
    assert main(["predict", str(models), str(photos)]) == 2
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 3
    assert said.err.startswith(f"fededge: {photos / 'aa.png'}: not a readable image")
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["predict", "MODELS", "absent.png"], "absent.png: there is no such file"),
        (["predict", "MODELS", "MODELS"], "there is no image in this folder (.bmp"),
        (["predict", "PHOTOS", "PHOTOS"], "there is no model here"),
        (["predict", "MODELS", "PHOTOS", "--provider", "gpu"], "no provider 'gpu'"),
        (["predict", "MODELS", "PHOTOS", "--variant", "int4"], "no variant 'int4' (known: fp32)"),
        (["serve-model", "PHOTOS"], "there is no model here"),
        (["serve-model", "MODELS", "--port", "70000"], "127.0.0.1:70000: cannot listen there"),
    ],
)
def test_a_mistake_gets_one_sentence(
    arguments: list[str],
    sentence: str,
    models: Path,
    photos: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"MODELS": str(models), "PHOTOS": str(photos)}
    assert main([places.get(word, word) for word in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fededge: ")
    assert sentence in line


def test_a_count_of_zero_is_refused(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["predict", str(models), "x.png", "--top", "0"])
    assert "'0' is not a number from 1" in capsys.readouterr().err


def test_a_folder_without_images_does_not_keep_the_others_from_their_lines(
    models: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "empty").mkdir()
    given = [photos / "empty", photos / "b.png"]
    assert main(["predict", str(models), *map(str, given)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"fededge: {photos}/empty: there is no image in this folder")
    assert captured.out.startswith(f"{photos}/b.png")


@pytest.mark.parametrize("form", [[], ["--csv"], ["--json"]])
def test_a_name_that_the_terminal_cannot_print_is_written_with_escapes(
    models: Path, photos: Path, form: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are bytes on Linux: here one that is no UTF-8, on a terminal that knows UTF-8 only."""
    (photos / "b.png").rename(photos / os.fsdecode(b"b\xff.png"))
    screen = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["predict", str(models), str(photos), *form]) == 0
    screen.seek(0)
    assert "b\\udcff.png" in screen.read()


@pytest.mark.parametrize("command", ["export", "doctor", "simulate"])
def test_a_command_that_needs_more_than_an_app_says_so(models: Path, command: str) -> None:
    """docs/apps.md installs FedEdge without its dependencies on a box that has no agent."""
    out, err = (process := bare(COMMAND, command, models)).communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert re.fullmatch(rf"fededge: {command} needs \w+, which is not installed here; .*\n", err)


def test_a_picture_too_large_is_refused_in_our_own_words(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pillow would add two lines about attacks."""
    PIL.Image.new("1", (10000, 9000)).save(tmp_path / "huge.png")
    assert main(["predict", str(models), str(tmp_path / "huge.png")]) == 2
    assert "10000 x 9000 pixels, the limit is 8192 a side" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["http://camera.lan", "camera.lan:80", "camera.lan/", "a@b", ""])
def test_a_host_name_is_a_name_alone(
    models: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve-model", str(models), "--port", "0", "--host-name", name]) == 2
    assert f"--host-name {name}: give a name without" in capsys.readouterr().err
