"""The apps in `examples/` (Python, Node.js, browser, C++) agree on the same images."""

from __future__ import annotations

import base64
import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageCms
import PIL.ImageOps
import pytest
import torch
from torch import nn

from fededge import Predictor
from fededge.data import Dataset, embedded
from fededge.export import ModelRegistry, Template
from fededge.flat import FlatModel
from fededge.model_spec import ModelSpec
from fededge.models import Preprocess, build
from fededge.predictor.images import prepare_images
from tests.browser import Page, browser
from tests.origin import ORIGIN
from tests.predictor.conftest import Maker, bare

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Answers = dict[str, tuple[str, float]]

# Decoders of JPEG may differ by one in a pixel; with the same pixels the runtimes differ by 1e-6.
CLOSE = 1e-3


@pytest.fixture(scope="session")
def fashion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of a device with a briefly trained LeNet for Fashion-MNIST."""
    state = tmp_path_factory.mktemp("fashion")
    train, _ = embedded()
    spec = ModelSpec("lenet", train.labels, (1, 28, 28), train.mean, train.std)
    network = build("lenet", 10, (1, 28, 28), seed=0)
    fit(nn.Sequential(Preprocess(spec), network), train)
    flat = FlatModel(network)
    template = Template.trace(flat.module, spec)
    ModelRegistry(state / "models").export(flat, template, ORIGIN, train.x[:64])
    return state


def fit(network: nn.Module, train: Dataset) -> None:
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for batch in torch.randperm(len(train.x), generator=generator).split(64):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(train.x[batch]), train.y[batch]).backward()
        optimiser.step()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fashion-MNIST images, tinted and enlarged, in common sizes and formats."""
    folder = tmp_path_factory.mktemp("pictures")
    _, test = embedded()
    shapes = {
        "wide.jpg": (640, 480),
        "tall.jpg": (300, 700),
        "square.png": (256, 256),
        "small.png": (20, 17),
        "exact.png": (28, 28),
        "model.png": (10, 8),
        "photo.webp": (333, 222),
        "frame.ppm": (320, 240),
    }
    for number, (name, size) in enumerate(shapes.items()):
        clothes(test, 37 * number).resize(size, PIL.Image.Resampling.BICUBIC).save(folder / name)
    turned, profiled = (clothes(test, n).resize((320, 200)) for n in (400, 500))
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    turned.save(folder / "turned.jpg", exif=exif)
    profiled.convert("L").save(folder / "grey.jpg", quality=95, progressive=True)
    lab = PIL.ImageCms.createProfile("XYZ")
    profiled.save(folder / "profile.png", icc_profile=PIL.ImageCms.ImageCmsProfile(lab).tobytes())
    return folder


def clothes(test: Dataset, number: int) -> PIL.Image.Image:
    grey = test.x[number, 0].numpy().astype(np.float64)
    tint = np.array([1.0, 0.8, 0.6]) * grey[..., None] + 20
    return PIL.Image.fromarray(np.minimum(tint, 255).astype(np.uint8))


def parsed(output: str) -> Answers:
    """The lines `path/name: label 0.1234` of an app."""
    found = re.findall(r"^(.*): (.+) ([01]\.\d{4})(?: \(unsure\))?$", output, re.MULTILINE)
    return {Path(name).name: (label, float(p)) for name, label, p in found}


def run_python(state: Path, folder: Path) -> tuple[int, str, str]:
    code = "import runpy; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    process = bare(code, EXAMPLES / "python_app.py", state, folder, "--once")
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def python_app(state: Path, folder: Path) -> Answers:
    code, out, err = run_python(state, folder)
    assert (code, err) == (0, "")
    return parsed(out)


def node_app(state: Path, folder: Path) -> Answers:
    if shutil.which("node") is None or not (EXAMPLES / "node" / "node_modules").exists():
        pytest.skip("needs Node.js, and `npm install` in examples/node")
    files = sorted(p for p in folder.iterdir() if p.suffix != ".ppm")  # sharp reads none
    return parsed(run("node", EXAMPLES / "node" / "app.mjs", state, *files))


def cpp_app(state: Path, folder: Path, scratch: Path) -> Answers:
    """The C++ app reads PPM only, so other images are converted first."""
    program = built(scratch / "build")
    for file in folder.iterdir():
        with PIL.Image.open(file) as image:
            PIL.ImageOps.exif_transpose(image).convert("RGB").save(scratch / f"{file.name}.ppm")
    answers = parsed(run(program, state, *sorted(scratch.glob("*.ppm"))))
    return {name.removesuffix(".ppm"): answer for name, answer in answers.items()}


def built(folder: Path) -> Path:
    places = (Path("/usr/include/onnxruntime"), EXAMPLES / "cpp" / "build" / "headers")
    if shutil.which("g++") is None or not any(place.exists() for place in places):
        pytest.skip("needs g++ and ONNX Runtime's headers: `make headers` in examples/cpp")
    run("make", "-C", EXAMPLES / "cpp", f"BUILD={folder}", f"PYTHON={sys.executable}")
    return folder / "app"


def web_app(page: Page, url: str, state: Path, folder: Path) -> Answers:
    page.go(url)
    load_model(page, state / "models" / "current")
    return {
        file.name: ask(page, file)
        for file in sorted(folder.iterdir())
        if file.suffix != ".ppm"  # browsers read none
    }


def load_model(page: Page, current: Path) -> None:
    manifest = json.loads((current / "manifest.json").read_text())
    plain = {"file": "model.onnx"}
    model = current / manifest["variants"].get(manifest["use"], plain)["file"]
    page.choose("#model", model, current / "manifest.json")
    page.until("!document.querySelector('#picture').disabled")


def ask(page: Page, file: Path) -> tuple[str, float]:
    result, wrong = "document.querySelector('#result')", "document.querySelector('.wrong')"
    page.value(f"delete {result}.dataset.answer")
    page.choose("#picture", file)
    page.until(f"{result}.dataset.answer || {wrong}")
    assert page.value(f"{wrong}?.textContent") is None
    label, probability = page.value(f"JSON.parse({result}.dataset.answer)[0]")
    return label, probability


def run(*command: object) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_agree(ours: Answers, theirs: Answers, count: int) -> None:
    assert len(theirs) == count
    assert {name: label for name, (label, _) in theirs.items()} == {
        name: ours[name][0] for name in theirs
    }
    assert {name: p for name, (_, p) in theirs.items()} == pytest.approx(
        {name: ours[name][1] for name in theirs}, abs=CLOSE
    )


@pytest.fixture(scope="session")
def served() -> Iterator[str]:
    """The folder of the page behind Python's own web server, as `npm start` does it."""
    if not (EXAMPLES / "web" / "node_modules").exists():
        pytest.skip("needs `npm install` in examples/web")
    handler = functools.partial(Quiet, directory=str(EXAMPLES / "web"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join(30)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        pass


@pytest.fixture(params=["fashion", "colour", "int8"])
def device(request: pytest.FixtureRequest, fashion: Path, colour: Maker, tmp_path: Path) -> Path:
    """A device with grey images of 28x28, one with colour images that are no squares, and one
    whose apps are to load int8: they must not look at float32.
    """
    if request.param == "fashion":
        return fashion
    state = tmp_path / "state"
    colour.export(state / "models", seed=1, use="int8" if request.param == "int8" else "fp32")
    if request.param == "int8":
        (state / "models" / "current" / "model.onnx").write_bytes(b"not to be read")
    return state


def test_the_python_app_says_what_the_predictor_says(device: Path, pictures: Path) -> None:
    answers, predictor = python_app(device, pictures), Predictor(device)
    expected = {p.name: predictor.predict(p) for p in pictures.iterdir()}
    assert answers == {n: (e.label, round(e.probability, 4)) for n, e in expected.items()}
    assert len(answers) == 11


def test_the_python_app_goes_on_after_a_picture_that_is_none(fashion: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no picture")
    PIL.Image.new("L", (28, 28)).save(tmp_path / "b.png")
    code, out, err = run_python(fashion, tmp_path)
    assert (code, err, len(out.splitlines())) == (0, "", 3)
    assert "a.png: not a readable image" in out
    assert set(parsed(out)) == {"b.png"}
    code, out, err = run_python(tmp_path, tmp_path)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"python_app.py: {tmp_path}: there is no model here")


def test_the_clothes_are_told_apart(fashion: Path) -> None:
    """The model must be good, else all apps could agree on nonsense."""
    _, test = embedded()
    predictor = Predictor(fashion)
    labels = [result.label for result in predictor.predict(test.x.numpy())]
    right = np.mean([label == test.labels[y] for label, y in zip(labels, test.y, strict=True)])
    assert right > 0.5


def test_node_agrees_with_python(device: Path, pictures: Path) -> None:
    assert_agree(python_app(device, pictures), node_app(device, pictures), 10)


PIXELS = """
import { readFileSync } from "node:fs";
const { pixels } = await import(process.argv[1]);
for (const { shape, width, height, rgb } of JSON.parse(readFileSync(process.argv[2]))) {
  const data = Uint8Array.from(Buffer.from(rgb, "base64"));
  console.log(Buffer.from(pixels({ data, width, height, step: 3 }, shape)).toString("base64"));
}
"""


def test_javascript_makes_the_pixels_of_training_to_the_bit(tmp_path: Path) -> None:
    """60 pictures of sizes from 1 to 90, for models of sizes from 1 to 40; no package is needed."""
    if shutil.which("node") is None:
        pytest.skip("needs Node.js")
    rng, cases, expected = np.random.default_rng(4), [], []
    for number in range(60):
        high, wide = rng.integers(1, 91, 2).tolist()
        shape = (1 + 2 * (number % 2), *rng.integers(1, 41, 2).tolist())
        picture = rng.integers(0, 256, (high, wide, 3), np.uint8)
        rgb = base64.b64encode(picture.tobytes()).decode()
        cases.append({"shape": shape, "width": wide, "height": high, "rgb": rgb})
        expected.append(prepare_images(PIL.Image.fromarray(picture), shape, True)[0].tobytes())
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    script = ("--input-type=module", "--eval", PIXELS, "--")
    output = run("node", *script, EXAMPLES / "web" / "pixels.mjs", tmp_path / "cases.json")
    assert [base64.b64decode(line) for line in output.splitlines()] == expected


@pytest.mark.slow
def test_a_browser_agrees_with_python(
    device: Path, pictures: Path, served: str, tmp_path: Path
) -> None:
    """The page contacts no other server than its own."""
    with browser(tmp_path / "profile") as page:
        answers = web_app(page, served, device, pictures)
        assert_agree(python_app(device, pictures), answers, 10)
        assert page.complaints() == []
        asked = {url for url in page.requests() if not url.startswith(("blob:", "data:"))}
    assert {url.startswith(served) for url in asked} == {True}
    assert any("ort-wasm" in url for url in asked)


@pytest.mark.slow
def test_the_page_says_what_is_wrong(
    fashion: Path, served: str, pictures: Path, tmp_path: Path
) -> None:
    """A missing file, a model of another manifest, no image; the page stays usable."""
    current = fashion / "models" / "current"
    (tmp_path / "model.onnx").write_bytes(b"another")
    (tmp_path / "no.png").write_text("no picture")
    with browser(tmp_path / "profile") as page:
        page.go(served)
        page.choose("#model", current / "model.onnx")
        page.until("says.textContent.startsWith('choose both files of models/current')")
        page.choose("#model", current / "manifest.json")
        page.until("says.textContent.startsWith('choose both files: manifest.json and model.onnx')")
        page.choose("#model", tmp_path / "model.onnx", current / "manifest.json")
        page.until("says.textContent.startsWith('model.onnx is not the one')")
        load_model(page, current)
        page.choose("#picture", tmp_path / "no.png")
        page.until("says.textContent.startsWith('no.png is not a picture')")
        page.choose("#picture", pictures / "exact.png")
        page.until("result.dataset.answer")
        assert page.value("says.classList.contains('wrong') || result.hidden") is False
        assert page.value("labels.childElementCount") == 5


@pytest.mark.slow
def test_cpp_agrees_with_python(device: Path, pictures: Path, tmp_path: Path) -> None:
    answers = cpp_app(device, pictures, tmp_path)
    assert_agree(python_app(device, pictures), answers, 11)
