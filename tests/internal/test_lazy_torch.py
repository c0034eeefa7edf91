"""A coordinator runs every method without torch; a plugin method may use torch.

This module imports no torch: another process plays the coordinator with what is in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fededge.errors import MethodError
from fededge.federated.aggregation import aggregate
from fededge.flat import Entry, Layout
from fededge.method.base import State
from fededge.methods import METHODS, Hyper, Stack, method
from tests.method.test_plugins import HEAD, written
from tests.pages import write_example

ROOT = Path(__file__).resolve().parents[2]
LAYOUT = Layout((Entry("weight", (3,), 0, True), Entry("running_mean", (1,), 3, False)))
START = np.array([0.5, -0.25, 2.0, 1.0], np.float32)
UPLOADS = {
    "a": np.array([1.0, 0.125, -2.0, 3.0], np.float32),
    "b": np.array([-3.0, 0.7, 0.0, 4.0], np.float32),
}

CHECK = "\nassert 'torch' not in sys.modules, 'torch is loaded'"
PLAYED = """
import json, sys
from tests.internal.test_lazy_torch import played
found = {}
for text in sys.argv[1:]:
    found[text] = played(text)
    assert 'torch' not in sys.modules, f'torch is loaded by {text}'
print(json.dumps(found))
"""


def ran(code: str, *arguments: str) -> str:
    """Run code in a new process and return its output."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def alone(code: str, *arguments: str) -> str:
    """As `ran`, for code that must not load torch."""
    return ran(f"{code}{CHECK}", *arguments)


def reports(stack: Stack) -> dict[str, dict[str, float]]:
    """1 and 3 examples; beside them 1 is an honest number for every scalar of every method."""
    others = dict.fromkeys(stack.scalars, 1.0)
    return {"a": {**others, "examples": 1.0}, "b": {**others, "examples": 3.0}}


def rounds(stack: Stack, count: int = 2) -> tuple[list[float], State]:
    """The coordinator's rounds under a method: every hook of its half is called."""
    model, state = START, stack.initial(LAYOUT)
    for _ in range(count):
        for report in reports(stack).values():
            stack.check(report, Hyper())
        assert tuple(stack.send(state)) == stack.sends
        model, state = aggregate(
            stack, model, state, reports(stack), UPLOADS.__getitem__, devices=4, layout=LAYOUT
        )
    return model.tolist(), state


def played(text: str) -> list[object]:
    """Model and memory after some rounds."""
    model, state = rounds(method(text))
    return [model, {name: vector.tolist() for name, vector in state.items()}]


@pytest.mark.parametrize("module", ["fededge.methods", "fededge.config", "fededge_server.shell"])
def test_the_imports_of_a_coordinator_do_not_load_torch(module: str) -> None:
    alone(f"import sys, {module}")


def test_every_method_is_read_without_torch() -> None:
    code = "import sys; from fededge.methods import METHODS, method; print(*map(method, METHODS))"
    assert alone(code).count("(") >= 10  # with their options


def test_the_coordinators_half_of_every_method_runs_without_torch_and_gives_the_same_bits() -> None:
    """Floats survive JSON as they are. fednova remembers something only with momentum."""
    texts = [*METHODS, "fednova(gmf=0.5)", "fedprox+scaffold+map", "fedacd+fedadam"]
    assert json.loads(alone(PLAYED, *texts)) == {text: played(text) for text in texts}


def test_the_example_of_the_page_needs_no_torch_at_the_coordinator(tmp_path: Path) -> None:
    text = f"{write_example(tmp_path)}:Keepsake"
    found = json.loads(alone(PLAYED, text))
    assert found == {text: played(text)}
    assert any(found[text][1]["keepsake.velocity"])


LATE = """
import importlib, pkgutil, sys, types
package = importlib.import_module(sys.argv[1])
for module in pkgutil.iter_modules(package.__path__):
    importlib.import_module(f"{package.__name__}.{module.name}")
found = {name: getattr(package, name) for name in package.__all__}
print(*(name for name, thing in found.items() if isinstance(thing, types.ModuleType)))
"""


@pytest.mark.parametrize("package", ["fededge.models", "fededge.ops"])
def test_a_lazy_name_is_never_the_module_of_the_same_name(package: str) -> None:
    """Importing a module sets its name in its package, so that `__getattr__` is not called."""
    assert ran(LATE, package).split() == []


# A user's own method

OWN = HEAD + "import numpy as np\nimport torch\n"
METHOD = """
@dataclass(frozen=True)
class Mine(Method):
    name: ClassVar[str] = "mine"

    def initial(self, layout):
        return {INITIAL}

    def step(self, w, merged, state):
        v = torch.from_numpy(state["v"]) + torch.from_numpy(merged.mean - w)
        return RETURNED
"""


def own(folder: Path, returned: str, initial: str = '{"v": torch.zeros(layout.size)}') -> Stack:
    text = METHOD.replace("{INITIAL}", initial).replace("RETURNED", returned)
    return method(f"{written(folder, OWN + text)}:Mine")


@pytest.mark.parametrize(
    "returned",
    [
        'torch.from_numpy(w) + 2 * v, {"v": v}',
        '(torch.from_numpy(w) + 2 * v).double(), {"v": v.double()}',
        '(torch.from_numpy(w) + 2 * v).requires_grad_(), {"v": v.numpy()}',
        'torch.stack([torch.from_numpy(w) + 2 * v, v], 1)[:, 0], {"v": v}',
        'w + 2 * v.numpy(), {"v": v}',
        'w.astype(np.float64) + 2 * v.numpy(), {"v": v.numpy().astype(np.float64)}',
    ],
    ids=["tensors", "double", "gradient", "strided", "array", "double-array"],
)
def test_the_tensors_of_a_users_own_method_become_arrays(tmp_path: Path, returned: str) -> None:
    """By hand: the mean is (-2, 0.55625, -0.5, 3.75). v = mean - w = (-2.5, 0.80625, -2.5, 2.75)
    and w + 2v is (-4.5, 1.3625, -3, …), whose running statistic is the mean's. From there the same
    updates undo v: mean - w is -v, and nothing for the statistic.
    """
    stack = own(tmp_path, returned)
    model, state = rounds(stack, 1)
    assert model == pytest.approx([-4.5, 1.3625, -3.0, 3.75], rel=1e-6)
    assert state["mine.v"].tolist() == pytest.approx([-2.5, 0.80625, -2.5, 2.75], rel=1e-6)
    again, after = rounds(stack, 2)
    assert again == pytest.approx(model, rel=1e-6)
    assert after["mine.v"].tolist() == pytest.approx([0.0, 0.0, 0.0, 2.75], abs=1e-6)
    for vector in (*state.values(), *after.values()):
        assert isinstance(vector, np.ndarray)
        assert vector.dtype == np.float32
        assert vector.flags.c_contiguous
    assert START.tolist() == [0.5, -0.25, 2.0, 1.0]


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        ("None, state", "mine: 'model' must be a vector, got None"),
        ("w.tolist(), state", r"mine: 'model' must be a vector, got \[0\.5, -0\.25, 2\.0, 1.*"),
        ('v, {"v": 3.5}', r"mine: 'v' must be a vector, got 3\.5"),
        ('v, {"v": {"x": v}}', "mine: 'v' must be a vector, got .{,80}"),
    ],
)
def test_an_argument_that_is_not_a_vector_is_refused_in_one_sentence(
    tmp_path: Path, returned: str, sentence: str
) -> None:
    with pytest.raises(MethodError, match=f"^{sentence}$"):
        rounds(own(tmp_path, returned))


def test_a_first_memory_that_is_no_vector_is_one_sentence(tmp_path: Path) -> None:
    stack = own(tmp_path, "w, state", initial='{"v": [0.0] * layout.size}')
    with pytest.raises(MethodError, match=r"^mine: 'v' must be a vector, got \[0\.0, 0\.0,.*$"):
        stack.initial(LAYOUT)
