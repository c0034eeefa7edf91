"""A predictor switches to a new model while in use, and refuses a damaged one."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fededge
from fededge import Prediction, Predictor
from fededge.credentials.signing_keys import make_keys, read_signing_key
from fededge.errors import ConfigError, StoreError
from fededge.export import session
from fededge.predictor import predictor as following
from fededge.predictor.model import LoadOptions, Model
from tests.predictor.conftest import Maker, bare

Point = Callable[[Path, str], None]
THREADS, PREDICTIONS, SWAPS = 4, 2500, 100


@pytest.fixture
def two(models: Path, colour: Maker, point: Point) -> Path:
    """Two models, of seeds 1 and 2; `current` leads to the first."""
    colour.export(models, seed=2, round_=35)
    point(models, "1")
    return models


def version(path: Path, round_: int) -> str:
    """The name of a model's float32 file, or of a file that is named itself."""
    file = path / "model.onnx" if path.is_dir() else path
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return f"{round_:06d}-{digest[:16]}"


def eventually(fact: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not fact():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.002)


@pytest.mark.parametrize("given", ["", "models", "models/current", "models/1/model.onnx"])
def test_the_model_is_found_from_its_link_its_file_and_the_folders_above(
    models: Path, given: str
) -> None:
    predictor = Predictor(models.parent / given)
    assert predictor.version == version(models / "1", 34)
    assert predictor.about.manifest["device"] == "camera-7"
    assert predictor.about.folder == (models / "1").resolve()


def asked(path: Path, pixels: np.ndarray) -> np.ndarray:
    """The answer of ONNX Runtime itself for exactly this file."""
    (rows,) = session(path).run(None, {"image": pixels[None]})
    return np.asarray(rows[0])


def test_no_prediction_fails_and_none_mixes_while_models_are_swapped(
    two: Path, colour: Maker, pixels: np.ndarray, point: Point
) -> None:
    """10,000 predictions of 4 threads, 100 swaps: each answer is that of the file it names.

    Of the models one is used as float32, one as int8 and one as float16. The threads go on until
    they have theirs and every swap has been taken over.
    """
    colour.export(two, seed=3, round_=36, use="int8")
    colour.export(two, seed=4, round_=37, use="fp16")
    point(two, "1")
    predictor, swapped = Predictor(two / "current"), threading.Event()
    files = ["1/model.onnx", "3/model.int8.onnx", "4/model.fp16.onnx"]
    answers = {version(two / file, 33 + int(file[0])): asked(two / file, pixels) for file in files}
    np.testing.assert_allclose(next(iter(answers.values())), colour.expected(1, pixels), atol=1e-6)
    for one, other in itertools.combinations(answers.values(), 2):
        assert np.abs(one - other).max() > 0.05  # told apart
    results: list[list[Prediction]] = [[] for _ in range(THREADS)]

    def ask(mine: list[Prediction]) -> None:
        while len(mine) < PREDICTIONS or not swapped.is_set():
            mine.append(predictor.predict(pixels))

    threads = [threading.Thread(target=ask, args=(mine,)) for mine in results]
    for thread in threads:
        thread.start()
    try:
        turns = itertools.cycle(zip(files, answers, strict=True))
        for file, name in itertools.islice(turns, 1, SWAPS + 1):
            point(two, file[0])
            eventually(lambda wanted=name: predictor.version == wanted)  # type: ignore[misc]
    finally:
        swapped.set()
        for thread in threads:
            thread.join()
    assert min(map(len, results)) >= PREDICTIONS
    for name, expected in answers.items():
        mine = [r.probabilities for r in itertools.chain(*results) if r.version == name]
        assert len(mine) > SWAPS
        np.testing.assert_allclose(mine, np.tile(expected, (len(mine), 1)), atol=1e-6)
    assert {r.version for r in itertools.chain(*results)} == set(answers)


def test_a_variant_is_the_agents_choice_unless_the_app_makes_it(
    models: Path, colour: Maker, pixels: np.ndarray
) -> None:
    colour.export(models, seed=1, use="int8")
    chosen, plain = Predictor(models), Predictor(models, variant="fp32")
    assert (chosen.about.variant, plain.about.variant) == ("int8", "fp32")
    assert chosen.version == version(models / "current/model.int8.onnx", 34)
    expected = colour.expected(1, pixels)
    np.testing.assert_allclose(plain.predict(pixels).probabilities, expected, atol=1e-6)
    np.testing.assert_allclose(chosen.predict(pixels).probabilities, expected, atol=0.1)
    assert chosen.about.manifest["sha256"] == plain.about.manifest["sha256"]  # one model


def test_an_app_that_trusts_a_key_takes_what_it_signed_and_nothing_else(
    models: Path, colour: Maker, pixels: np.ndarray, tmp_path: Path
) -> None:
    make_keys(tmp_path / "device.key", tmp_path / "device.pub")
    make_keys(tmp_path / "other.key", tmp_path / "other.pub")
    with pytest.raises(StoreError, match=r"manifest\.json: not signed by the key"):
        Predictor(models, trusted_key=tmp_path / "device.pub")
    key = read_signing_key(tmp_path / "device.key")
    colour.export(models, seed=2, use="int8", key=key)
    predictor = Predictor(models, trusted_key=tmp_path / "device.pub")
    assert predictor.about.variant == "int8"
    with pytest.raises(StoreError, match="not signed by the key"):
        Predictor(models, trusted_key=tmp_path / "other.pub")
    with pytest.raises(ConfigError, match="holds no public Ed25519 key"):
        Predictor(models, trusted_key=tmp_path / "device.key")
    edit(models / "current", labels=["bicycle", "truck", "päckchen"])
    with pytest.raises(StoreError, match="not signed by the key"):
        Predictor(models, trusted_key=tmp_path / "device.pub")


def test_a_call_is_answered_by_the_old_model_until_the_new_one_is_ready(
    two: Path, pixels: np.ndarray, point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that loads slowly delays no call, and is loaded once for all threads."""
    predictor, slow, loads = Predictor(two), threading.Event(), []
    load = Model.load

    def loading(folder: Path, wanted: LoadOptions) -> Model:
        loads.append(folder)
        assert slow.wait(30)
        return load(folder, wanted)

    monkeypatch.setattr(Model, "load", loading)
    old = predictor.version
    point(two, "2")
    assert {predictor.predict(pixels).version for _ in range(50)} == {old}
    slow.set()
    eventually(lambda: predictor.predict(pixels).version == version(two / "2", 35))
    assert len(loads) == 1


def test_refresh_waits_for_the_new_model(two: Path, pixels: np.ndarray, point: Point) -> None:
    predictor = Predictor(two)
    assert not predictor.refresh()
    point(two, "2")
    assert predictor.refresh()
    assert predictor.predict(pixels).version == version(two / "2", 35)


def test_a_folder_that_was_begun_anew_is_noticed(
    models: Path, colour: Maker, pixels: np.ndarray
) -> None:
    """`current` leads to `1` as before, and yet it is another model."""
    predictor = Predictor(models)
    shutil.rmtree(models)
    colour.export(models, seed=5)
    assert predictor.refresh()
    expected = colour.expected(5, pixels)
    np.testing.assert_allclose(predictor.predict(pixels).probabilities, expected, atol=1e-6)


def damage(folder: Path) -> None:
    data = bytearray((folder / "model.onnx").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "model.onnx").write_bytes(data)


def halve(folder: Path) -> None:
    data = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(data[: len(data) // 2])


def set_model(folder: Path, data: bytes) -> None:
    """Bytes that match their manifest and are not a model."""
    (folder / "model.onnx").write_bytes(data)
    edit(folder, sha256=hashlib.sha256(data).hexdigest())


def pipe(folder: Path) -> None:
    (folder / "model.onnx").unlink()
    os.mkfifo(folder / "model.onnx")


def endless(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").symlink_to("/dev/zero")


def edit(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}))


WRONG = "a value is not valid"
INPUT = {"name": "image", "shape": [3, 8, 10], "dtype": "uint8", "range": [0, 255]}
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "one bit": (damage, r"2/model\.onnx: damaged or incomplete, its SHA-256 begins with"),
    "half a file": (halve, "damaged or incomplete"),
    "no file": (lambda f: (f / "model.onnx").unlink(), r"model\.onnx: cannot be read \(No such"),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), r"manifest\.json: cannot be read"),
    "no JSON": (lambda f: (f / "manifest.json").write_text("{"), r"manifest\.json: not JSON"),
    "a list": (
        lambda f: (f / "manifest.json").write_text("[]"),
        rf"not a manifest of an exported model \({WRONG}\)",
    ),
    "nothing in it": (
        lambda f: (f / "manifest.json").write_text("{}"),
        r"not a manifest of an exported model \(no 'input'\)",
    ),
    "labels of another type": (lambda f: edit(f, labels="abc"), WRONG),
    "no ONNX": (
        lambda f: set_model(f, b"nonsense"),
        r"model\.onnx: it is not an ONNX file, or a damaged one",
    ),
    "another kind": (
        lambda f: edit(f, input={**INPUT, "shape": [16000], "dtype": "float32"}),
        r"takes float32 of shape \[16000\]; this FedEdge supports only images",
    ),
    "a variant of another name": (lambda f: edit(f, use="int8"), WRONG),
    "a variant somewhere else": (
        lambda f: edit(f, use="int8", variants={"int8": {"file": "../1/model.onnx", "sha256": ""}}),
        WRONG,
    ),
    "a variant of no possible name": (
        lambda f: edit(f, use="x", variants={"x": {"file": "a\0b", "sha256": ""}}),
        WRONG,
    ),
    "a label that no terminal prints": (lambda f: edit(f, labels=["\ud800"] * 3), "not JSON"),
    "a shape of nothing": (lambda f: edit(f, input={**INPUT, "shape": [3, 0, 10]}), WRONG),
    "a shape beyond any memory": (
        lambda f: edit(f, input={**INPUT, "shape": [3, 10**5, 10**5]}),
        WRONG,
    ),
    "a round before the first": (lambda f: edit(f, round=-1), WRONG),
    "a manifest without end": (
        lambda f: os.truncate(f / "manifest.json", 20 << 30),
        r"manifest\.json: cannot be read \(21,474,836,480 bytes, the limit is",
    ),
    "a model without end": (
        lambda f: os.truncate(f / "model.onnx", 20 << 30),
        r"model\.onnx: cannot be read \(21,474,836,480 bytes, the limit is",
    ),
    "a pipe": (
        pipe,
        r"model\.onnx: cannot be read \(not a regular file\)",
    ),
    "a device": (
        endless,
        r"manifest\.json: cannot be read \(not a regular file\)",
    ),
    "another shape": (
        lambda f: edit(f, input={**INPUT, "shape": [3, 9, 9]}),
        r"model\.onnx: the model does not run \(",
    ),
    "another input": (lambda f: edit(f, input={**INPUT, "name": "x"}), "does not run"),
    "too few labels": (
        lambda f: edit(f, labels=["a", "b"]),
        "does not give one probability per label",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_model_is_refused_and_the_old_one_goes_on(
    kind: str, two: Path, pixels: np.ndarray, point: Point, caplog: pytest.LogCaptureFixture
) -> None:
    """One log line, however many calls there are; without an old model, loading fails."""
    breaking, sentence = BROKEN[kind]
    predictor = Predictor(two)
    breaking(two / "2")
    point(two, "2")
    with caplog.at_level(logging.WARNING):
        results = [predictor.predict(pixels) for _ in range(20)]
        predictor.refresh()
        results += [predictor.predict(pixels) for _ in range(20)]
    assert {result.version for result in results} == {version(two / "1", 34)}
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"the new model is refused, {predictor.version} stays in use"
    )
    assert re.search(sentence, record.getMessage())
    with pytest.raises(StoreError, match=sentence):
        Model.load(two / "2", LoadOptions())


def test_a_model_that_is_still_being_copied_is_taken_when_it_is_whole(
    two: Path, pixels: np.ndarray, point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy in place, manifest first: refused while incomplete, then used."""
    monkeypatch.setattr(following, "PAUSE_SECONDS", 0.0)
    predictor = Predictor(two)
    whole, new = (two / "2" / "model.onnx").read_bytes(), version(two / "2", 35)
    halve(two / "2")
    point(two, "2")
    assert not predictor.refresh()
    (two / "2" / "model.onnx").write_bytes(whole)
    eventually(lambda: predictor.predict(pixels).version == new)


def test_after_a_refusal_there_is_a_pause(
    two: Path,
    pixels: np.ndarray,
    point: Point,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without it a growing file would be hashed and logged all the time."""
    monkeypatch.setattr(following, "PAUSE_SECONDS", 600.0)
    monkeypatch.setattr(following, "CHECK_SECONDS", 0.0)
    predictor = Predictor(two)
    point(two, "2")
    for length in range(10):
        (two / "2" / "model.onnx").write_bytes(b"x" * length)
        predictor.predict(pixels)
        eventually(lambda: not predictor._loading.locked())
    assert len(caplog.records) == 1


def test_a_model_that_vanishes_goes_on_in_memory(
    models: Path, pixels: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    predictor = Predictor(models)
    (models / "current").unlink()
    assert not predictor.refresh()
    assert predictor.predict(pixels).label
    (record,) = caplog.records
    assert "manifest.json: cannot be read (No such file or directory)" in record.getMessage()


FORK = """
import os, signal
import numpy as np
import fededge
predictor = fededge.Predictor(sys.argv[1], threads=2)
image = np.zeros((8, 10, 3), np.uint8)
before = predictor.predict(image)
session = id(predictor._model.session)  # nothing else than the predictor keeps it
predictor._loading.acquire()  # as if the loading of a new model were under way
if (child := os.fork()) == 0:
    signal.alarm(30)
    after = predictor.predict(image)
    assert (after.version, after.probability) == (before.version, before.probability)
    assert id(predictor._model.session) != session
    os.replace(sys.argv[2], sys.argv[3])
    assert predictor.refresh()
    assert predictor.version != before.version
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_of_a_fork_has_a_model_of_its_own_and_follows(two: Path) -> None:
    """The threads of ONNX Runtime, and one that was just loading, are not there after a fork."""
    (two / ".next").symlink_to("2")
    process = bare(FORK, two / "current", two / ".next", two / "current")
    out, err = process.communicate(timeout=60)
    assert out.strip() == "0", err


FORKED = """
import os, shutil, signal
import numpy as np
import fededge
predictor = fededge.Predictor(sys.argv[1], threads=2)
image = np.zeros((8, 10, 3), np.uint8)
before = predictor.predict(image)
os.replace(sys.argv[2], sys.argv[3])  # `current` leads to a damaged model
if sys.argv[4] == "gone":
    shutil.rmtree(before.about.folder)
if (child := os.fork()) == 0:
    signal.alarm(30)
    try:
        os._exit(0 if predictor.predict(image).version == before.version else 1)
    except fededge.errors.StoreError:
        os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), predictor.predict(image).label)
"""


@pytest.mark.parametrize(("parents", "code"), [("there", "0"), ("gone", "2")])
def test_a_child_of_a_fork_goes_on_with_its_parents_model_or_says_what_is_wrong(
    two: Path, parents: str, code: str
) -> None:
    """The new one is damaged; the parent's session would wait for threads that are not there."""
    damage(two / "2")
    (two / ".next").symlink_to("2")
    process = bare(FORKED, two / "current", two / ".next", two / "current", parents)
    out, err = process.communicate(timeout=60)
    assert out.split()[:1] == [code], err
    assert len(out.split()) == 2, err  # the parent's answer, from memory


def test_without_a_new_thread_the_old_model_stays_in_use(
    two: Path, pixels: np.ndarray, point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    predictor = Predictor(two)
    point(two, "2")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert predictor.predict(pixels).version == version(two / "1", 34)
    assert predictor.refresh()


@pytest.mark.parametrize("given", ["absent", "models/empty"])
def test_a_missing_model_is_one_sentence(models: Path, given: str) -> None:
    (models / "empty").mkdir()
    with pytest.raises(StoreError, match=r"there is no model here .*after its first training"):
        Predictor(models.parent / given)


def test_a_folder_that_the_app_may_not_read_is_said_so(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(StoreError, match=r"cannot be read \(Permission denied\); the app"):
        Predictor(models)


def test_a_result_keeps_no_old_model_in_memory(two: Path, pixels: np.ndarray, point: Point) -> None:
    """An app may keep its results: they name the model, and do not hold the loaded one.

    ONNX Runtime's own arrays do: they are views of memory that lives as long as its session.
    """
    predictor = Predictor(two)
    (row,) = predictor._model.session.run(None, {"image": pixels[None]})
    assert not owner(row).flags.owndata
    for result in (predictor.predict(pixels), *predictor.predict([pixels] * 70)):
        assert predictor._model.session not in vars(result.about).values()
        assert owner(result.probabilities).flags.owndata


def owner(array: np.ndarray) -> np.ndarray:
    """The array whose memory this one is a view of."""
    return owner(array.base) if isinstance(array.base, np.ndarray) else array


def test_a_bad_model_is_reported_beside_it(two: Path, pixels: np.ndarray, point: Point) -> None:
    """The report is about the model in use, or the model of a given result."""
    predictor = Predictor(two)
    result = predictor.predict(pixels)
    point(two, "2")
    predictor.refresh()
    now = predictor.report_bad("sees trucks at night: " + "é" * 2000)
    then = predictor.report_bad("all bicycles", result.about)
    assert (now, then) == ((two / "2/bad.json").resolve(), (two / "1/bad.json").resolve())
    report = json.loads(now.read_text("utf-8"))
    assert report["version"] == predictor.version
    assert report["sha256"] == predictor.about.manifest["sha256"]
    assert len(report["reason"]) == 1000
    assert report["created"].endswith("+00:00")
    assert json.loads(then.read_text("utf-8"))["version"] == result.version
    assert sorted(p.name for p in now.parent.iterdir()) == [
        "bad.json",
        "manifest.json",
        "model.onnx",
    ]
    assert not predictor.refresh()  # a report is no new model


def test_a_report_of_any_text_can_be_read(two: Path) -> None:
    path = Predictor(two).report_bad("\udcff trucks")
    assert json.loads(path.read_bytes())["reason"] == "\udcff trucks"


def test_a_report_about_a_model_that_is_gone_does_not_bring_its_folder_back(
    two: Path, pixels: np.ndarray, point: Point
) -> None:
    predictor = Predictor(two)
    result = predictor.predict(pixels)
    point(two, "2")
    shutil.rmtree(two / "1")
    with pytest.raises(StoreError, match="this model was removed"):
        predictor.report_bad("late", result.about)
    assert not (two / "1").exists()


def test_the_package_offers_the_predictor_and_nothing_else_unasked() -> None:
    assert fededge.Predictor is Predictor
    assert fededge.Prediction is Prediction
    with pytest.raises(AttributeError, match="module 'fededge' has no attribute 'Predictr'"):
        _ = fededge.Predictr  # type: ignore[attr-defined]
