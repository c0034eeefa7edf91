"""Texts: hashed tokens, AG News, CSV columns of texts, and errors."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from fededge.data import Dataset, load, tokenise
from fededge.errors import ConfigError, DataError
from fededge.inputs.tokens import fnv1a

LABELS = ("World", "Sports", "Business", "Sci/Tech")


def refuses(message: str, source: str, root: Path, **wanted: object) -> None:
    """The source raises a DataError of one line that matches."""
    with pytest.raises(DataError, match=message) as caught:
        load(source, root, **wanted)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


# ---- tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"), [(b"", 0x811C9DC5), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968)]
)
def test_the_hash_is_fnv1a(data: bytes, expected: int) -> None:
    """The test vectors that its authors publish."""
    assert fnv1a(data) == expected


def test_a_word_is_its_hash() -> None:
    """1 + hash mod (vocabulary - 1), so that 0 stays free for padding."""
    (row,) = tokenise(["a foobar"], length=4, vocabulary=1000)
    assert row.tolist() == [1 + 0xE40C292C % 999, 1 + 0xBF9CF968 % 999, 0, 0]
    assert row.dtype == np.int64


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("The RACE is On", "the race is on"),
        ("wall st.\\pull-back", "wall st pull back"),
        ("  a\tb\nc\x00d  ", "a b c d"),
        ("x_y #39;z [1] {2} `3` ~4@5", "x y 39 z 1 2 3 4 5"),
        ("ÄRGER über Ärger", "ärger ÜBER ärger"),
        ("日本 語", "日本 語"),
        ("…", "…"),
        ("?!", ""),
    ],
)
def test_words_are_cut_at_ascii_punctuation(text: str, same: str) -> None:
    """Letters of every alphabet belong to words; upper and lower case are one."""
    one, two = tokenise([text, same], length=12, vocabulary=10_000)
    assert one.tolist() == two.tolist()
    assert (one > 0).sum() == len(same.split())


def test_long_texts_are_cut_and_short_ones_filled() -> None:
    long, short = tokenise(["a b c d e", "b"], length=3, vocabulary=50)
    assert long.tolist() == tokenise(["a b c"], 3, 50)[0].tolist()
    assert short.tolist() == [long[1], 0, 0]
    assert tokenise([], 3, 50).shape == (0, 3)


def test_every_token_fits_the_vocabulary() -> None:
    words = " ".join(f"word{n}" for n in range(5000))
    assert set(np.unique(tokenise([words], 5000, 9))) == set(range(1, 9))
    assert set(np.unique(tokenise([words], 5000, 2))) == {1}


def test_a_lone_surrogate_does_not_crash() -> None:
    """JSON can carry one, UTF-8 cannot."""
    assert tokenise(["a \ud800"], 3, 50)[0, 1] > 0


@pytest.mark.parametrize(("length", "vocabulary"), [(0, 50), (3, 1), (3, -5)])
def test_absurd_sizes_are_refused(length: int, vocabulary: int) -> None:
    with pytest.raises(ConfigError, match="length of at least 1 and a vocabulary of at least 2"):
        tokenise(["a"], length, vocabulary)


# ---- AG News ----------------------------------------------------------------------------------


def write_agnews(folder: Path) -> Path:
    """Two files as the official ones are: every cell quoted, quotes doubled, no header."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = {
        "train.csv": [
            (3, "Wall St. Bears", 'Short-sellers "claw" back'),
            (2, "Final", "2-1, again"),
        ],
        "test.csv": [(4, "Probe lands", "on Titan"), (1, "Talks", "resume"), (3, "Oil", "up")],
    }
    for name, content in rows.items():
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(content)
    return folder


@pytest.mark.parametrize("folder", ["", "ag_news_csv"])
def test_agnews(tmp_path: Path, folder: str) -> None:
    """A text is the title and the description; without a federation, FedALA's sizes are used."""
    write_agnews(tmp_path / folder)
    train, test = load("agnews", tmp_path)
    assert test is not None
    assert (train.labels, train.y.tolist(), test.y.tolist()) == (LABELS, [2, 1], [3, 0, 2])
    assert (train.shape, train.vocabulary, train.mean, train.std) == ((200,), 98635, (), ())
    expected = tokenise(["wall st bears short sellers claw back", "final 2 1 again"], 200, 98635)
    assert np.array_equal(train.x.numpy(), expected)
    assert train.x.dtype == torch.int64


def test_the_federation_decides_length_vocabulary_and_labels(tmp_path: Path) -> None:
    write_agnews(tmp_path)
    order = tuple(reversed(LABELS))
    train, _ = load("agnews", tmp_path, shape=(5,), labels=order, vocabulary=30)
    assert (train.shape, train.vocabulary, train.y.tolist()) == ((5,), 30, [1, 2])
    assert np.array_equal(train.x[0].numpy(), tokenise(["wall st bears short sellers"], 5, 30)[0])
    assert load("agnews", tmp_path, shape=(5,))[0].vocabulary == 98635
    assert load("agnews", tmp_path, vocabulary=30)[0].shape == (200,)


def test_parts_of_a_text_set_stay_texts(tmp_path: Path) -> None:
    train, _ = load("agnews", write_agnews(tmp_path))
    part = train.subset([1])
    assert (part.vocabulary, part.counts().tolist()) == (98635, [0, 1, 0, 0])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('"5","a","b"', "row 3 is not a class from 1 to 4"),
        ('"0","a","b"', "row 3 is not a class"),
        ('"1","a"', "row 3 is not a class"),
        ('"1","a","b","c"', "row 3 is not a class"),
        ("", "row 3 is not a class"),
        ('"1","a","' + "b" * 200_000 + '"', "not a CSV file in UTF-8 .field larger"),
    ],
)
def test_agnews_mistakes(tmp_path: Path, row: str, message: str) -> None:
    path = write_agnews(tmp_path) / "train.csv"
    path.write_bytes(path.read_bytes() + row.encode() + b"\r\n")
    refuses(f"train.csv: {message}", "agnews", tmp_path)


def test_agnews_without_a_file_or_without_rows(tmp_path: Path) -> None:
    write_agnews(tmp_path)
    (tmp_path / "test.csv").write_bytes(b"")
    refuses("test.csv: it holds no texts", "agnews", tmp_path)
    (tmp_path / "test.csv").unlink()
    refuses("test.csv: there is no such file", "agnews", tmp_path)


def test_too_many_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before memory is taken: 2 texts of 1,000 tokens of 8 bytes."""
    monkeypatch.setattr("fededge.data.raw.MOST_BYTES", 15_999)
    folder = write_agnews(tmp_path)
    refuses("16,000 bytes of tokens are more", "agnews", folder, shape=(1000,))
    monkeypatch.undo()
    few = {"shape": (1000,), "most_bytes": 15_999}
    refuses("16,000 bytes of tokens are more than the 15,999", "agnews", folder, **few)


# ---- a column of texts ------------------------------------------------------------------------


def write_csv(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_of_texts(tmp_path: Path) -> None:
    """Other columns are ignored; labels are names or numbers, as with images."""
    path = write_csv(tmp_path / "a.csv", 'id,text,label\n1,"Too hot, again",warn\n2,All fine,ok\n')
    train, test = load("csv", path)
    assert (test, train.labels, train.y.tolist()) == (None, ("ok", "warn"), [1, 0])
    assert (train.shape, train.vocabulary) == ((200,), 98635)
    wanted, _ = load("csv", path, shape=(2,), labels=("ok", "bad", "warn"), vocabulary=40)
    assert np.array_equal(wanted.x.numpy(), tokenise(["too hot", "all fine"], 2, 40))
    assert wanted.y.tolist() == [2, 0]


def test_csv_mistakes_about_texts(tmp_path: Path) -> None:
    pixels = write_csv(tmp_path / "a.csv", "label,p\na,1\n")
    refuses("trains on texts: a column `text` is needed", "csv", pixels, shape=(9,))
    texts = write_csv(tmp_path / "b.csv", "label,text\na,hello\n")
    refuses("pixels must be whole numbers", "csv", texts, shape=(1, 1, 1))
    refuses("no rows below its header", "csv", write_csv(tmp_path / "c.csv", "label,text\n"))
    refuses("one of them `label`", "csv", write_csv(tmp_path / "d.csv", "text\nx\n"))


# ---- the other kind ---------------------------------------------------------------------------


def test_a_source_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    refuses("'folder' has no texts.*one of agnews, csv", "folder", tmp_path, shape=(200,))
    refuses("'mnist' has no texts", "mnist", tmp_path, vocabulary=100)
    refuses("'agnews' has no images.*one of embedded", "agnews", tmp_path, shape=(1, 28, 28))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(2, 3)}, r"texts must be int64 \[N, L\]"),
        ({"x": torch.zeros(2, 1, 1, 3, dtype=torch.int64)}, r"\[N, L\]"),
        ({"x": torch.tensor([[1, 5], [0, 0]])}, "tokens 0 to 5 do not fit a vocabulary of 5"),
        ({"x": torch.tensor([[1, -1], [0, 0]])}, "tokens -1"),
        ({"mean": (0.5,), "std": (0.5,)}, "each of 0 channels"),
        ({"y": torch.tensor([0])}, "2 examples need int64 labels"),
    ],
)
def test_texts_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    values: dict[str, object] = {
        "x": torch.tensor([[1, 4], [2, 0]]),
        "y": torch.tensor([0, 1]),
        "labels": ("a", "b"),
        "mean": (),
        "std": (),
        "vocabulary": 5,
    }
    assert len(Dataset(**values)) == 2  # type: ignore[arg-type]
    with pytest.raises(DataError, match=message):
        Dataset(**{**values, **changes})  # type: ignore[arg-type]
