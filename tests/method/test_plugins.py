"""Plugins: requirements on the file, permission to name it, and no imports caused by messages."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fededge.errors import MethodError, WireError
from fededge.federated.aggregation import aggregate
from fededge.flat import Entry, Layout, Vector
from fededge.method.base import State
from fededge.method.plugins import sha256_of
from fededge.methods import (
    METHODS,
    Hyper,
    Method,
    Stack,
    absolute_paths,
    announced,
    method,
    plugin_method,
    references,
)
from fededge.methods.fedprox import FedProx

HEAD = """\
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from fededge.methods.fedprox import FedProx
from fededge.method.base import Method
"""
MINE = """
@dataclass(frozen=True)
class Mine(Method):
    name: ClassVar[str] = "mine"
    mu: float = 0.5

    def epoch_end(self, r):
        pass
"""


def written(folder: Path, text: str = HEAD + MINE, name: str = "mine.py") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text, encoding="utf-8")
    return path


# Naming one


@pytest.mark.parametrize("name", ["Mine", "mine"])
def test_a_class_is_found_by_its_own_name_and_by_its_methods(tmp_path: Path, name: str) -> None:
    stack = method(f"{written(tmp_path)}:{name}(mu=0.25)")
    assert str(stack) == "mine(mu=0.25)"
    assert stack.files == {"mine": hashlib.sha256((HEAD + MINE).encode()).hexdigest()}
    assert "mine" not in METHODS


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("FILE:Mine+fedprox", "mine(mu=0.5)+fedprox(mu=0.01)"),
        (" FILE : Mine (mu=1e+1) + fedprox", "mine(mu=10.0)+fedprox(mu=0.01)"),
        ("fedprox(mu=1e+3)+FILE:Mine@train", "fedprox(mu=1000.0)+mine(mu=0.5)@train"),
        ("fedprox@first+FILE:Mine@first@second+map", None),
    ],
)
@pytest.mark.parametrize("folder", ["plain", "with space", "c++ (old)", "a@b", "v1.py"])
def test_it_composes_whatever_its_path_is(
    tmp_path: Path, folder: str, text: str, canonical: str | None
) -> None:
    path = written(tmp_path, name=f"{folder}/mine.py")
    stack = method(text.replace("FILE", str(path)))
    assert list(stack.files) == ["mine"]
    if canonical is not None:
        assert str(stack) == canonical


def test_relative_paths_are_seen_from_here_or_from_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    for path in ("mine.py", "./mine.py", f"../{tmp_path.name}/mine.py"):
        assert method(f"{path}:Mine").files
    text = "fedprox(mu=1e+3)+mine.py:Mine(mu=1)@train+./mine.py:Other"
    assert absolute_paths(text, Path("/opt/fed")) == (
        "fedprox(mu=1e+3)+/opt/fed/mine.py:Mine(mu=1)@train+/opt/fed/mine.py:Other"
    )
    assert absolute_paths("/x/mine.py:Mine+fedavg", Path("/opt/fed")) == "/x/mine.py:Mine+fedavg"
    assert absolute_paths("fedavg+mixup", Path("/opt/fed")) == "fedavg+mixup"
    assert references(absolute_paths(text, Path("/a"))) == ["/a/mine.py:Mine", "/a/mine.py:Other"]


def test_a_method_may_build_on_one_of_fededges(tmp_path: Path) -> None:
    text = "\n@dataclass(frozen=True)\nclass More(FedProx):\n    name: ClassVar[str] = 'more'\n"
    kind = plugin_method(f"{written(tmp_path, HEAD + text)}:More")
    assert issubclass(kind, FedProx)
    assert sha256_of(FedProx) == ""
    assert len(sha256_of(kind)) == 64


def test_a_process_does_not_change_with_the_file(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = method(f"{path}:Mine")
    path.write_text(HEAD + MINE + "\n# another day\n")
    assert method(f"{path}:Mine") == before
    assert method(f"{path}:Mine").files == before.files
    assert not list(tmp_path.glob("__pycache__"))


# Mistakes


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("x = (\n", "{path}, line 1: syntax error ('(' was never closed)"),
        ("x = 1\nclass\n", "{path}, line 2: syntax error (invalid syntax)"),
        (
            "def f():\n    import no_such_package\n\nf()\n",
            "{path}, line 2: import failed "
            "(ModuleNotFoundError: No module named 'no_such_package')",
        ),
        ("raise SystemExit\n", "{path}, line 1: import failed (SystemExit)"),
        ("raise ValueError('a\\nb')\n", "{path}, line 1: import failed (ValueError: a)"),
        ("", "{path} has no method 'Mine'; it has none"),
        (
            HEAD + MINE.replace("Mine", "Yours"),
            "{path} has no method 'Mine'; it has Yours",
        ),
        (
            "class Mine:\n    pass\n",
            "{path}: Mine is not a method: it must inherit from fededge.methods.Method",
        ),
        (
            HEAD + MINE.replace("@dataclass(frozen=True)\n", ""),
            "{path}: Mine is not a frozen dataclass: write @dataclass(frozen=True) above",
        ),
        (
            HEAD + MINE.replace('"mine"', '"fedprox"'),
            "{path}: FedEdge has a method 'fedprox' already; choose another name",
        ),
        (
            HEAD + MINE.replace('    name: ClassVar[str] = "mine"\n', ""),
            "{path}: Mine needs a name of letters, digits, - and _: name: ClassVar[str]",
        ),
        (
            HEAD + MINE.replace('"mine"', '"my.own"'),
            "{path}: Mine needs a name of letters, digits, - and _: name: ClassVar[str]",
        ),
        (
            HEAD + MINE + "    sizes: tuple = (1, 2)\n",
            "{path}: option 'sizes' of Mine needs a default: a number, a word, True or False",
        ),
        (
            HEAD + MINE.replace("mu: float = 0.5", "mu: float"),
            "{path}: option 'mu' of Mine needs a default: a number, a word, True or False",
        ),
        (
            HEAD + MINE + "    extra: ClassVar[Mapping[str, str]] = {}\n",
            "{path}: the types of Mine cannot be resolved "
            "(NameError: name 'Mapping' is not defined)",
        ),
        (
            HEAD + MINE + "    scalars: ClassVar[frozenset[str]] = frozenset({'Moved!'})\n",
            "{path}: scalar 'Moved!' of Mine must be of lower-case letters, digits and _",
        ),
        (
            HEAD + MINE + "    def __post_init__(self):\n        raise ValueError('no')\n",
            "method 'mine' refuses its options (ValueError: no)",
        ),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(MethodError) as caught:
        method(f"{path}:Mine")
    assert str(caught.value) == sentence.format(path=path)


def test_a_dataclass_that_is_not_frozen_fails_where_it_is_written(tmp_path: Path) -> None:
    """The line is the decorator's, or the class's before Python 3.11."""
    path = written(tmp_path, HEAD + MINE.replace("(frozen=True)", ""))
    with pytest.raises(MethodError, match=r", line [78]: import failed \(TypeError: .*frozen"):
        method(f"{path}:Mine")


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "nul.py").write_bytes(b"x = 1\0")
    for text, sentence in (
        (f"{tmp_path}/no.py:Mine", f"^{tmp_path}/no.py: there is no such file$"),
        (f"{tmp_path}/folder.py:Mine", f"^{tmp_path}/folder.py: cannot be read "),
        (f"{tmp_path}/nul.py:Mine", f"^{tmp_path}/nul.py.*null bytes"),
        ("fedavg+keepsake.py(mu=1)", r"^'keepsake.py' is a file, but .*Write keepsake.py:Name$"),
        ("./a/keepsake.py", r"^'./a/keepsake.py' is a file, but .* Write ./a/keepsake.py:Name$"),
    ):
        with pytest.raises(MethodError, match=sentence):
            method(text)


@pytest.mark.parametrize("text", ["fedprox", "FILE:Mine(mu=1)", "FILE:Mine+fedprox", "mine", ""])
def test_an_operator_allows_a_file_and_nothing_else(tmp_path: Path, text: str) -> None:
    text = text.replace("FILE", str(written(tmp_path)))
    with pytest.raises(MethodError, match=r" is not of the form path/to/file.py:Name; "):
        plugin_method(text)


# Exceptions and results of its coordinator half

LAYOUT = Layout((Entry("weight", (3,), 0, True),))
REPORT = {"examples": 8.0, "steps": 1.0, "loss": 1.0, "personal_accuracy": 0.5}
HOOKS = ("initial", "send", "weight", "sums", "step")


def failing(hook: str, given: object) -> Stack:
    """A method with state that is sent; one hook returns `given` instead, or raises it."""

    def instead(self: Method, *arguments: object) -> object:
        if isinstance(given, BaseException):
            raise given
        return given

    hooks = {
        "name": "mine",
        "sends": ("c",),
        "initial": lambda self, layout: {"c": np.zeros(layout.size, np.float32)},
        "send": lambda self, state: {"c": state["c"]},
        "step": lambda self, w, merged, state: (merged.mean, state),
        hook: instead,
    }
    kind: type[Method] = type("Mine", (Method,), hooks)
    return Stack((kind(),))


def a_round(stack: Stack) -> tuple[Vector, State]:
    """All hooks of the coordinator half once, as a coordinator calls them."""
    state = stack.initial(LAYOUT)
    stack.send(state)
    w, model = np.ones(3, np.float32), np.zeros(3, np.float32)
    return aggregate(stack, w, state, {"a": REPORT}, lambda _: model, devices=1, layout=LAYOUT)


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    "error",
    [
        ValueError("no such thing\nor other"),
        ZeroDivisionError("division by zero"),
        KeyError("x"),
        RecursionError(),
        SystemExit(3),
        WireError("not of the wire"),
        RuntimeWarning("a warning that is an error"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_hook_raises_is_one_sentence_with_its_name(
    hook: str, error: BaseException
) -> None:
    """So that a coordinator sees a failed merge, and not its own end."""
    with pytest.raises(MethodError) as caught:
        a_round(failing(hook, error))
    text = str(caught.value)
    assert text.startswith(f"mine: {hook} failed ({type(error).__name__}")
    assert "\n" not in text
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("hook", ["weight", "sums"])
def test_a_report_for_which_a_hook_fails_is_refused(hook: str) -> None:
    with pytest.raises(WireError, match=rf"mine: {hook} failed \(ValueError: no\)"):
        failing(hook, ValueError("no")).check(REPORT, Hyper())


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), MethodError("mine: my own")])
def test_an_interrupt_a_full_memory_and_a_sentence_stay_what_they_are(
    hook: str, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught:
        a_round(failing(hook, error))
    assert caught.value is error


NAN = np.array([1, math.nan, 2], np.float32)


@pytest.mark.parametrize(
    ("hook", "given", "sentence"),
    [
        *((hook, None, f"mine: {hook} failed (") for hook in ("initial", "send", "weight", "sums")),
        ("initial", {"c": None}, "mine: 'c' must be a vector, got None"),
        ("initial", {"c": np.ones((1, 3))}, "mine: 'c' must be a vector, got array([[1., 1."),
        ("initial", {"c": np.ones(2)}, "'mine.c' must have 3 numbers to be sent, got 2"),
        ("initial", {"c": NAN}, "mine: 'c' has numbers that are not finite"),
        ("initial", {"c": np.full(3, 1e300)}, "mine: 'c' has numbers that are not finite"),
        ("send", {}, "mine: `send` returns [], but `sends` declares ('c',)"),
        ("send", {"c": np.ones(2)}, "'mine.c' must have 3 numbers to be sent, got 2"),
        ("send", {"c": NAN}, "'mine.c' has numbers that are not finite and cannot be sent"),
        ("weight", "much", "mine: weight failed (ValueError: could not convert string to float"),
        ("weight", 1j, "mine: weight failed (TypeError: float() argument must be"),
        ("weight", math.nan, "mine: an update's weight must be between 0 and 1e+300, got nan"),
        ("weight", -1, "mine: an update's weight must be between 0 and 1e+300, got -1.0"),
        ("weight", 1.7e308, "mine: an update's weight must be between 0 and 1e+300, got 1.7e"),
        ("weight", 10**400, "mine: weight failed (OverflowError: int too large to convert"),
        ("sums", {"g": math.inf}, "mine: an update's factors must be finite, got {'g': inf}"),
        ("sums", {"g": None}, "mine: sums failed (TypeError: float() argument must be"),
        ("step", None, "mine: `step` must return (model, state), got None"),
        ("step", (np.ones(3), None), "mine: `step` must return (model, state), got (array("),
        ("step", (np.ones(2), {}), "mine: 'model' must have 3 numbers, got 2"),
        ("step", (np.ones((3, 1)), {}), "mine: 'model' must be a vector, got array([[1.]"),
        ("step", (np.array(["a"] * 3), {}), "mine: 'model' must be a vector, got array(['a'"),
        ("step", (NAN, {}), "mine: the next global model has numbers that are not finite"),
        ("step", (np.full(3, 1e300), {}), "mine: the next global model has numbers that are not"),
        ("step", (np.full(3, 2e15), {}), "mine: the step would move a number of the model by 2e"),
        ("step", (np.ones(3), {"c": np.ones(2)}), "'mine.c' must have 3 numbers to be sent, got 2"),
        ("step", (np.ones(3), {"m": NAN}), "mine: the next mine.m has numbers that are not finite"),
        ("step", (np.ones(3), {"m": np.full(3, -1e31)}), "mine: the next 'm' would hold the num"),
    ],
)
def test_any_result_of_a_hook_is_used_or_refused_in_one_sentence(
    hook: str, given: object, sentence: str
) -> None:
    with pytest.raises(MethodError) as caught:
        a_round(failing(hook, given))
    assert str(caught.value).startswith(sentence)


def test_the_line_of_the_file_is_in_the_sentence(tmp_path: Path) -> None:
    text = HEAD + MINE + "\n    def step(self, w, merged, state):\n        return w[merged]\n"
    path = written(tmp_path, text)
    with pytest.raises(MethodError, match=rf"^mine: step failed \({path}, line 16: IndexError: "):
        a_round(method(f"{path}:Mine"))


# The federation's announcement


def test_an_announced_method_is_made_of_the_file_that_has_its_hash(tmp_path: Path) -> None:
    """Two versions may be allowed at once; the coordinator's hash decides."""
    old, new = (
        plugin_method(f"{written(tmp_path, HEAD + MINE + more, name=name)}:Mine")
        for name, more in (("old.py", ""), ("new.py", "    nu: float = 1.0\n"))
    )
    for kind in (old, new):
        stack = announced("mine(mu=0.1)+fedprox", {"mine": sha256_of(kind)}, [old, new])
        assert [type(layer) for layer in stack.layers] == [kind, FedProx]


def test_another_version_of_the_file_is_refused_with_both_hashes(tmp_path: Path) -> None:
    ours = plugin_method(f"{written(tmp_path)}:Mine")
    with pytest.raises(MethodError) as caught:
        announced("mine(mu=0.1)", {"mine": "ab" * 32}, [ours])
    assert str(caught.value) == (
        f"the federation's method 'mine' is a plugin with SHA-256 {'ab' * 32}, but this device's "
        f"has {sha256_of(ours)}: use the same file on both"
    )


def test_a_method_that_is_not_allowed_is_refused_with_what_to_do(tmp_path: Path) -> None:
    ours = plugin_method(f"{written(tmp_path)}:Mine")
    with pytest.raises(MethodError, match=r"^the federation's method 'other' is a plugin"):
        announced("other", {"other": sha256_of(ours)}, [ours])
    with pytest.raises(MethodError, match=r"methods = \[\"path/to/file.py:Name\"\]"):
        announced("mine", {"mine": sha256_of(ours)}, [])


def test_no_file_stands_in_for_a_method_of_fededge(tmp_path: Path) -> None:
    with pytest.raises(MethodError, match="'fedprox' is a plugin"):
        announced("fedprox", {"fedprox": "ab" * 32}, [])
    ours = plugin_method(f"{written(tmp_path)}:Mine")
    with pytest.raises(MethodError, match="unknown method 'mine'"):
        announced("mine", {}, [ours])


class Watch:
    """Record Python's audit events while it is on: opened files, imports, system calls.

    Not compiled code: a class's own annotations are, when its options are read.
    """

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self.hook)  # for the rest of the process, so one is made for all tests

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.on and event.split(".")[0] in {"open", "import", "os", "subprocess"}:
            self.seen.append(f"{event} {arguments[:1]}")


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    made = Watch()
    yield made
    made.on = False


def made_of(text: str, files: dict[str, str], watch: Watch) -> str:
    """Parse an announcement; check that it touched nothing."""
    watch.seen.clear()
    watch.on = True
    try:
        announced(text, files, [])
    except MethodError as error:
        return str(error)
    finally:
        watch.on = False
        assert watch.seen == []
    return ""


def test_the_watch_sees_a_file_that_is_imported(tmp_path: Path, watch: Watch) -> None:
    path = written(tmp_path)
    watch.on = True
    method(f"{path}:Mine")
    watch.on = False
    assert any(str(path) in event for event in watch.seen)


@pytest.mark.parametrize(
    "text",
    [
        "FILE:Mine",
        "fedprox+FILE:Mine(mu=1)",
        "FILE:Mine@train+fedprox",
        "mine.py:Mine",
        "os",
        "os.system",
        "fededge.method.plugins",
        "../../etc/passwd",
        "fedbalance(weak=/etc/passwd)",
        "fedprox(mu=__import__('os'))",
        "a" * 2000,
        "a" + " " * 1998 + "!",
        "+" * 2000,
        "(" * 2000,
    ],
)
def test_a_hostile_text_leads_to_no_import_and_no_file(
    tmp_path: Path, watch: Watch, text: str
) -> None:
    path = written(tmp_path, "raise RuntimeError('imported')")
    assert made_of(text.replace("FILE", str(path)), {}, watch)


@given(st.text(max_size=60), st.sampled_from(["", ".py:", "/x.py:Mine", "(mu=1)", "+fedprox"]))
def test_no_text_leads_to_an_import(watch: Watch, text: str, more: str) -> None:
    made_of(text + more, {}, watch)
