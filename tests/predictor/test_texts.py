"""A model for texts: predictions for texts equal the formula on their tokens."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fededge import Predictor
from fededge.cli import main
from fededge.errors import DataError
from fededge.inputs.tokens import tokenise
from fededge.predictor.http.endpoint import Endpoint

LENGTH, VOCABULARY, LABELS = 6, 50, ["sport", "weather"]
WEIGHTS = np.random.default_rng(1).normal(size=(VOCABULARY, len(LABELS))).astype(np.float32)
TEXT, OTHER = "Rain, rain again: all day!", "the ball is round"


def expected(text: str) -> np.ndarray:
    """The softmax of the sum of the tokens' weights, in float64."""
    logits = WEIGHTS.astype(np.float64)[tokenise([text], LENGTH, VOCABULARY)[0]].sum(axis=0)
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A device whose model sums the weights of the tokens."""
    nodes = [
        helper.make_node("Gather", ["weights", "tokens"], ["weighed"]),
        helper.make_node("ReduceSum", ["weighed", "axis"], ["logits"], keepdims=0),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "texts",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", LENGTH])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 2])],
        [
            numpy_helper.from_array(WEIGHTS, "weights"),
            numpy_helper.from_array(np.array([1]), "axis"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    folder = tmp_path / "state" / "models" / "current"
    folder.mkdir(parents=True)
    data = model.SerializeToString()
    (folder / "model.onnx").write_bytes(data)
    about = {
        "labels": LABELS,
        "round": 3,
        "sha256": hashlib.sha256(data).hexdigest(),
        "input": {
            "name": "tokens",
            "shape": [LENGTH],
            "dtype": "int64",
            "range": [0, VOCABULARY - 1],
        },
    }
    (folder / "manifest.json").write_text(json.dumps(about))
    return tmp_path / "state"


def test_a_text_its_tokens_and_a_list_of_texts_give_the_reference_answer(state: Path) -> None:
    predictor = Predictor(state)
    assert predictor.about.input.kind == "text"
    tokens = tokenise([TEXT, OTHER], LENGTH, VOCABULARY)
    for one in (TEXT, tokens[0], tokens[0].astype(np.int32)):
        np.testing.assert_allclose(predictor.predict(one).probabilities, expected(TEXT), atol=1e-6)
    for many in ([TEXT, OTHER], tokens):
        got = [result.probabilities for result in predictor.predict(many)]
        np.testing.assert_allclose(got, [expected(TEXT), expected(OTHER)], atol=1e-6)
    assert predictor.predict([]) == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (Path("a.txt"), "this model reads texts: .*; this is pathlib"),
        (b"rain", "this is builtins.bytes"),
        (["rain", 3], "this is builtins.int"),
        (np.zeros(5, np.int64), r"of shape \[6\] or \[N, 6\].*int64 of shape \(5,\)"),
        (np.zeros((1, 1, 6), np.int64), r"of shape \(1, 1, 6\)"),
        (np.zeros(6), "this array is float64"),
        (np.full(6, 50), "tokens must be from 0 to 49, got 50 to 50"),
        (np.full(6, -1), "got -1"),
    ],
    ids=range(8),
)
def test_an_input_that_is_not_text_is_refused_with_a_sentence(
    state: Path, given: object, sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence):
        Predictor(state).predict(given)


def test_the_endpoint_takes_texts(state: Path) -> None:
    """Texts as they are or as JSON; anything else gets an error."""
    endpoint = Endpoint(Predictor(state), "127.0.0.1", 0)
    thread = threading.Thread(target=endpoint.run)
    thread.start()

    def ask(body: bytes, kind: str) -> tuple[int, dict[str, object]]:
        request = urllib.request.Request(endpoint.url, body, {"Content-Type": kind})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    try:
        status, one = ask(TEXT.encode(), "text/plain; charset=utf-8")
        assert (status, one["label"]) == (200, LABELS[int(expected(TEXT).argmax())])
        assert one["probability"] == pytest.approx(expected(TEXT).max(), abs=1e-6)
        assert ask(json.dumps(TEXT).encode(), "application/json") == (200, one)
        assert ask(json.dumps([TEXT]).encode(), "application/json") == (200, {"predictions": [one]})
        tokens = tokenise([TEXT], LENGTH, VOCABULARY)[0]
        assert ask(json.dumps(tokens.tolist()).encode(), "application/json") == (200, one)
        assert ask(b"\xff", "text/plain")[1] == {"error": "the text is not UTF-8 (byte 0)"}
        assert ask(b"x", "image/png")[0] == 415
        assert ask(b"[1, 2]", "application/json")[0] == 400
        sentence = "the JSON must be a text, a list of texts, or an array of whole numbers"
        for wrong in (b"{}", b'["a", 1]', b"[0.5]", b"[%d]" % 10**30, b"null"):
            status, answer = ask(wrong, "application/json")
            assert (status, str(answer["error"]).startswith(sentence)) == (400, True)
        assert ask(b'["", "%s"]' % (b"x " * 10**6), "application/json")[0] == 200
        assert ask(json.dumps([""] * 1025).encode(), "application/json")[0] == 413
        assert ask(json.dumps([tokens.tolist()] * 1025).encode(), "application/json")[0] == 413
    finally:
        endpoint.stop()
        thread.join(30)


def test_the_command_labels_every_line_of_a_file(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "news.txt").write_text(f"{TEXT}\n\n{OTHER}\n")
    assert main(["predict", str(state), str(tmp_path / "news.txt"), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["file"].rpartition(":")[2] for line in lines] == ["1", "3"]
    wanted = [LABELS[int(expected(text).argmax())] for text in (TEXT, OTHER)]
    assert [line["label"] for line in lines] == wanted
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe")
    assert main(["predict", str(state), str(tmp_path / "bad.txt")]) == 2
    assert "bad.txt: not a text in UTF-8" in capsys.readouterr().err
