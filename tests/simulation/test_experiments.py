"""Simulated experiments: the same bytes whoever takes the turns, kept results, a comparison."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fededge import methods, models
from fededge.cli import main
from fededge.cli.experiments.simulated_run import run_with_progress
from fededge.data import load, local
from fededge.errors import ConfigError
from fededge.federated.selection import choose
from fededge.federated.warm_start import WeightsOrigin, write_weights
from fededge.flat import as_numpy
from fededge.methods import Hyper, Private
from fededge.models import build_for
from fededge.simulation.cost import turn_cost
from fededge.simulation.experiment import Experiment
from fededge.simulation.loop import SimulatedRound, Simulation
from fededge.simulation.plots import plot_comparison
from fededge.simulation.presets import preset, presets
from fededge.simulation.results import (
    Result,
    as_csv,
    effort,
    final_means,
    read,
    result_name,
    summary,
    write,
)
from fededge.simulation.runs import _mean_scalars, load_setup, run
from fededge.training import Answer, Task
from tests.pages import page, write_example

SMALL: dict[str, Any] = {"limit": 400, "devices": 4, "participants": 2, "rounds": 2, "epochs": 1}
COST = {"macs": 1.0}
FLAGS = [f"--{name}={value}" for name, value in SMALL.items()]


@pytest.fixture(scope="module")
def result() -> Result:
    chosen = Experiment(**SMALL)
    return Result.of(chosen, list(run(chosen)), COST)


def test_a_run_measures_every_round(result: Result) -> None:
    assert [row["round"] for row in result.rounds] == [1, 2]
    assert result.final["global_accuracy"] == result.rounds[-1]["global_accuracy"]
    personal = [row["personal_accuracy"] or 0.0 for row in result.rounds]
    assert [row["personal_best"] for row in result.rounds] == [personal[0], max(personal)]
    assert len(result.per_class) == 10
    assert len(result.personal) <= 4
    assert result.final.keys() >= {
        *("global_accuracy", "client_accuracy", "personal_accuracy", "average_risk", "kl"),
        *("learning_present", "learning_absent", "personal_std", "personal_worst_tenth", "loss"),
        "update_norm",
    }


def test_a_turn_moves_the_model_by_its_rate() -> None:
    """One step a turn, without momentum and decay: ten times the rate, ten times the way."""
    step = {**SMALL, "rounds": 1, "batch_size": 1000, "momentum": 0.0, "weight_decay": 0.0}
    (slow,), (fast,) = (run(Experiment(**step, lr=lr)) for lr in (0.001, 0.01))
    assert fast.values["update_norm"] == pytest.approx(10 * slow.values["update_norm"], rel=1e-3)
    assert slow.values["update_norm"] > 0


def test_the_way_of_a_large_model_is_summed_exactly() -> None:
    """Four million values that move by 0.001 each: a way of 0.001 · 2000."""
    received = torch.zeros(4_000_000)
    answer = Answer(received + 1e-3, {"examples": 1.0, "steps": 1.0}, Private(), received, 0.0)
    done = SimulatedRound(Task(0, 0, Hyper(), received, {}), received, {"d": answer}, 0.0)
    assert _mean_scalars(done)["update_norm"] == pytest.approx(2.0, rel=1e-6)


def test_local_models_are_measured_in_some_rounds_and_the_last() -> None:
    first, second = run(Experiment(**SMALL, measure_every=5))
    assert "average_risk" not in first.values
    assert "global_accuracy" in first.values
    assert "average_risk" in second.values
    assert len(second.local_classes["mean"]) == len(second.local_classes["interval"]) == 10


def test_the_last_rounds_are_averaged_where_they_were_measured(result: Result) -> None:
    rows: list[dict[str, int | float | None]] = [
        {"round": 1, "a": 1.0, "b": 5.0},
        {"round": 2, "a": 2.0},
        {"round": 3, "a": 4.0, "b": None},
    ]
    made = msgspec.structs.replace(result, rounds=rows, final={"a": 4.0, "b": None})
    assert final_means(made) == {"a": 4.0}
    assert final_means(made, last=2) == {"a": 3.0}
    assert final_means(made, last=3) == {"a": pytest.approx(7 / 3), "b": 5.0}


def test_a_turn_costs_what_its_layers_multiply() -> None:
    """An MLP of 784-64-10 on one example: forward 784·64 + 64·10 products; backward as many for
    the weights, and 64·10 more for the hidden layer, as nobody asks for the input's gradient.
    """
    setup = load_setup(Experiment(**SMALL, model="mlpnet"))
    widths = [m for m in build_for(setup.spec, 0).modules() if isinstance(m, nn.Linear)]
    products = [layer.in_features * layer.out_features for layer in widths]
    cost = turn_cost(setup)
    assert cost["macs"] == 2 * sum(products) + sum(products[1:])
    assert cost["numbers_up"] == cost["numbers_down"]
    double = turn_cost(dataclasses.replace(setup, method="scaffold"))
    assert double["numbers_down"] == 2 * cost["numbers_down"]


def test_a_turn_costs_what_a_method_adds_once_it_has_a_history() -> None:
    """LfD passes all examples through two fixed models in a turn; one epoch, so twice forward."""
    setup = load_setup(Experiment(**SMALL, model="mlpnet", head="cosine"))
    widths = [m for m in build_for(setup.spec, 0).modules() if isinstance(m, nn.Linear)]
    body = sum(layer.in_features * layer.out_features for layer in widths)
    head = 10 * widths[-1].out_features
    bare, full = (
        turn_cost(dataclasses.replace(setup, method=text))["macs"]
        for text in ("lfd(reg=false)", "lfd")
    )
    assert full - bare == 2 * (body + head)


def test_an_experiment_reads_its_source_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = mock.Mock(side_effect=load)
    monkeypatch.setattr(local, "load", read)
    setup = load_setup(Experiment(**SMALL))
    assert sum(len(data.y) + len(data.held_y) for data in setup.devices.values()) == 400
    assert read.call_count == 1


def test_a_cost_is_counted_without_loading_the_compiler() -> None:
    """`torch._dynamo` is 800 modules and seconds, after the last round of every run."""
    program = (
        "import sys\n"
        "from fededge.simulation.cost import turn_cost\n"
        "from fededge.simulation.experiment import Experiment\n"
        "from fededge.simulation.runs import load_setup\n"
        "assert turn_cost(load_setup(Experiment(limit=200, devices=4)))['macs'] > 0\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("method", ["fedavg", "fedala", "moon"])
def test_operations_are_counted_as_torch_counts_them(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TorchCounter(FlopCounterMode):
        def __init__(self) -> None:
            super().__init__(display=False)

        @property
        def flops(self) -> int:
            return self.get_total_flops()

    setup = load_setup(Experiment(**SMALL, method=method))
    ours = turn_cost(setup)
    monkeypatch.setattr("fededge.simulation.cost.OperationCounter", TorchCounter)
    assert turn_cost(setup) == ours


def test_devices_that_sit_out_are_measured_anew_where_the_method_says_so() -> None:
    """Two of four devices take part a round; the others' scores move under FedALA only."""
    settings: dict[str, Any] = {**SMALL, "rounds": 6, "epochs": 3, "lr": 0.05, "measure_every": 9}
    for method, moves in (("fedala", True), ("fedavg", False)):
        rounds = list(run(Experiment(**settings, method=method)))
        changed = set()
        for before, after in pairwise(rounds):
            chosen = choose([f"device-{i}" for i in range(4)], 2, 0, after.round - 1)
            sitting = before.personal.keys() - set(chosen)
            changed |= {after.personal[d] != before.personal[d] for d in sitting}
        assert changed == {True, False} if moves else changed == {False}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedala"])
def test_workers_change_nothing(method: str) -> None:
    chosen = Experiment(**{**SMALL, "rounds": 3}, method=method)
    alone, together = (Result.of(chosen, list(run(chosen, n)), COST) for n in (1, 2))
    assert together.model_sha256 == alone.model_sha256
    assert together.rounds == alone.rounds


def test_another_seed_is_another_run(result: Result) -> None:
    *_, last = run(Experiment(**SMALL, seed=1))
    assert last.model_sha256 != result.model_sha256


def test_a_kept_result_is_found_by_exactly_its_settings(tmp_path: Path, result: Result) -> None:
    path = write(tmp_path, result)
    kept = read(tmp_path, result.experiment)
    assert kept is not None
    assert kept == result
    assert as_csv([kept]) == as_csv([result])
    assert read(tmp_path, Experiment(**SMALL, lr=0.02)) is None
    path.write_bytes(path.read_bytes()[:200])
    assert read(tmp_path, result.experiment) is None


def test_a_summary_is_the_mean_and_deviation_over_runs(result: Result) -> None:
    """Two runs with a value of 1 and 3: mean 2, sample deviation √2."""
    runs = [
        msgspec.structs.replace(result, rounds=[{"a": value}], final={"a": value, "b": None})
        for value in (1.0, 3.0)
    ]
    mean, std = summary(runs)
    assert mean == {"a": 2.0}
    assert std == {"a": pytest.approx(2**0.5)}


def test_effort_is_counted_against_the_first_method(result: Result) -> None:
    """It ends with 0.5. The other one is there in round 2 with one seed and never with the next,
    and its rounds take 3 s and 5 s where the first one's take 2 s.
    """

    def made(accuracies: list[float], seconds: float) -> Result:
        rounds: list[dict[str, int | float | None]] = [
            {"round": number, "global_accuracy": value}
            for number, value in enumerate(accuracies, 1)
        ]
        cost = {"macs": 7.0, "seconds_a_round": seconds}
        final: dict[str, float | None] = {"global_accuracy": accuracies[-1]}
        return msgspec.structs.replace(result, rounds=rounds, final=final, cost=cost)

    first = [made([0.1, 0.6, 0.5], 2.0), made([0.1, 0.2, 0.5], 2.0)]
    other = [made([0.4, 0.5, 0.1], 3.0), made([0.4, 0.4, 0.1], 5.0)]
    assert effort(other, first) == {"rounds_to_first": [2, None], "macs": 7.0, "time_ratio": 2.0}
    assert effort(first, first)["rounds_to_first"] == [2, 3]
    assert effort(other, first, last=3)["rounds_to_first"] == [1, 1]


def test_no_change_is_in_the_middle_of_the_fairness_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: Result
) -> None:
    figures: dict[str, Any] = {}

    def keep(figure: Any, path: Path) -> Path:
        figures[path.stem] = figure
        return path

    monkeypatch.setattr("fededge.simulation.plots.save_figure", keep)
    plot_comparison({"one": [result], "other": [result]}, tuple("abcdefghij"), tmp_path)
    (bar,) = [bar for bar in figures["fairness"].axes[0].patches if bar.get_height()]
    assert bar.get_x() + bar.get_width() / 2 == pytest.approx(0)


def test_the_csv_has_a_row_a_round(result: Result) -> None:
    rows = list(csv.DictReader(as_csv([result, result]).splitlines()))
    assert [row["round"] for row in rows] == ["1", "2", "1", "2"]
    assert [*rows[0]][:3] == ["method", "seed", "round"]
    assert rows[0]["method"] == "fedavg"
    assert float(rows[1]["global_accuracy"]) == result.rounds[1]["global_accuracy"]


def test_simulate_writes_what_it_promises(tmp_path: Path, result: Result) -> None:
    path = tmp_path / "out.json"
    assert main(["simulate", *FLAGS, "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    assert written.keys() >= {"method", "seed", "model_sha256", "rounds", "final"}
    assert written["model_sha256"] == result.model_sha256


def test_a_simulation_begins_with_the_weights_of_a_file(
    tmp_path: Path, result: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first model is the file's; the result is named by the file's content."""
    setup = load_setup(result.experiment)
    made = Simulation(setup)
    spec, first = setup.spec, as_numpy(made.first) * np.float32(0.5)
    origin = WeightsOrigin(
        federation="f",
        version="000007-0123456789abcdef",
        sha256=made.layout.sha256(first),
        labels=spec.labels,
        mean=spec.mean,
        std=spec.std,
    )
    weights, path = tmp_path / "start.safetensors", tmp_path / "out.json"
    write_weights(weights, made.layout, first, origin)
    assert np.array_equal(as_numpy(Simulation(setup, weights=weights).first), first)
    flags = ["--rounds", "1", "--weights", str(weights), "--json", str(path)]
    assert main(["simulate", *FLAGS, *flags]) == 0
    written = json.loads(path.read_text())
    assert written["model_sha256"] != result.model_sha256
    used = written["experiment"]["weights_sha256"]
    assert used == hashlib.sha256(weights.read_bytes()).hexdigest()
    other = msgspec.structs.replace(result.experiment, weights=str(weights), weights_sha256=used)
    assert result_name(other) != result_name(result.experiment)
    capsys.readouterr()
    assert main(["simulate", *FLAGS, "--model", "mlpnet", "--weights", str(weights)]) == 2
    assert "do not fit the network of [model]: " in capsys.readouterr().err


@pytest.mark.skipif(torch.accelerator.is_available(), reason="auto takes the accelerator")
def test_auto_takes_float32_where_a_precision_is_not_to_be_had(
    tmp_path: Path, result: Result
) -> None:
    """And the settings say what was used."""
    path = tmp_path / "result.json"
    flags = ["--device", "auto", "--precision", "float16", "--json", str(path)]
    assert main(["simulate", *FLAGS, *flags]) == 0
    written = json.loads(path.read_text())
    used = written["experiment"]
    assert (used["device"], used["precision"]) == ("cpu", "float32")
    assert written["model_sha256"] == result.model_sha256


def test_an_interrupted_comparison_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first of two methods is done when the second one fails; the next call runs only that."""
    out = tmp_path / "results"
    flags = [*FLAGS, "--methods", "fedavg", "fedprox(mu=1)", "--seeds", "0", "--out", str(out)]
    ran: list[str] = []

    def failing(chosen: Experiment, workers: int, *progress: Any) -> Result:
        ran.append(chosen.method)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return run_with_progress(chosen, workers, *progress)

    monkeypatch.setattr("fededge.cli.experiments.comparison.run_with_progress", failing)
    assert main(["compare", *flags]) == 130
    assert main(["compare", *flags, "--json", str(tmp_path / "all.json")]) == 0
    assert ran == ["fedavg", "fedprox(mu=1)", "fedprox(mu=1)"]
    rows = json.loads((tmp_path / "all.json").read_text())
    assert [row["method"] for row in rows] == ["fedavg", "fedprox(mu=1)"]
    assert rows[0]["mean"]["global_accuracy"] == rows[0]["runs"][0]["final"]["global_accuracy"]
    assert {path.suffix for path in out.iterdir()} == {".json", ".png"}
    assert main(["compare", *flags, "--no-plots", "--json", str(tmp_path / "again.json")]) == 0
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "all.json").read_bytes()
    assert "fedprox" in capsys.readouterr().out


def test_a_method_that_diverges_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*FLAGS, "--methods", "fedavg", "fedprox(mu=1e30)", "--seeds", "0"]
    assert main(["compare", *flags, "--no-plots", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "left out: fedprox(mu=1e30), seed 0: device" in said
    assert "the training diverged: lower the learning rate (0.01)" in said
    assert "│ fedavg" in said
    flags = [*FLAGS, "--methods", "fedprox(mu=1e30)", "--seeds", "0"]
    assert main(["compare", *flags, "--no-plots", "--out", str(tmp_path)]) == 2
    assert "all methods failed: fedprox" in capsys.readouterr().err


def test_every_preset_is_an_experiment() -> None:
    for name in presets():
        chosen = Experiment(**preset(name))
        net = models.probe_network(chosen.model, chosen.head)
        methods.method(chosen.method).needs(net)
        assert models.takes_texts(net) == (chosen.source == "agnews")
        assert chosen.rounds >= 20


def test_fedalas_presets_learn_as_fast_as_its_authors_have_it() -> None:
    chosen = [preset(name) for name in presets() if name.startswith("fedala-")]
    rates = {(each["source"], each["model"]): each["lr"] for each in chosen}
    slow = [(source, "cnn4") for source in ("cifar10", "cifar100", "tiny-imagenet")]
    fast = [("mnist", "cnn4"), ("agnews", "fasttext"), ("tiny-imagenet", "resnet18")]
    assert rates == dict.fromkeys(slow, 0.005) | dict.fromkeys(fast, 0.1)


def test_maps_presets_clip_as_its_authors_do() -> None:
    clipping = {name for name in presets() if preset(name).get("clip_norm") == 100}
    assert clipping == {name for name in presets() if name.startswith("map-")} != set()


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(ConfigError, match="no preset 'fedacd-cifar10'; did you mean"):
        preset("fedacd-cifar10")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["simulate", "--devices", "0"], "devices = 0: expected int >= 1"),
        (["simulate", "--seed", "9" * 20], f"seed = {'9' * 20}: expected int <= {2**53}"),
        (["simulate", "--lr", "inf"], "lr = inf: expected float <= 1000000.0"),
        (["simulate", "--json", "/dev/null/run.json"], "/dev/null/run.json: cannot be written"),
        (["simulate", "--json", "/tmp"], "/tmp: cannot be written (it is a folder)"),
        (["simulate", "--csv", "/tmp"], "/tmp: cannot be written (it is a folder)"),
        (["simulate", "--encoding", "x"], "fededge: unknown encoding 'x'; allowed: float32"),
        (["compare", "--methods", "fedavg", "fedavg()"], "--methods names a method twice"),
        (["compare", "--methods", "fedavg", "--last", "0"], "last = 0: expected int >= 1"),
        (["compare", "--preset", "table-cifar10"], "no method is named: give --methods"),
        (["compare"], "no method is named: give --methods, or `methods` in the file of --config"),
        (["compare", "--methods", "fedavg", "--seeds", "1", "1"], "--seeds names a seed twice"),
        (["compare", "--methods", "fedavg", "--out", "/dev/null/x"], "cannot be written"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(
    flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags) == 2
    said, shown = capsys.readouterr().err, capsys.readouterr().out
    assert sentence in said
    assert said.count("\n") == 1
    assert not shown


@pytest.mark.parametrize(
    ("command", "text", "sentence"),
    [
        ("simulate", "round = 3", "file.toml: no setting 'round'; did you mean 'rounds'? (known: "),
        ("simulate", 'methods = ["fedavg"]', "file.toml: no setting 'methods'; did you mean"),
        ("simulate", 'method_files = {a = "b"}', "file.toml: no setting 'method_files'"),
        ("simulate", 'rounds = "many"', "rounds = many: expected int, got str"),
        ("compare", "methods = 3", "methods = 3: expected array, got int"),
        ("compare", 'methods = ["fedavg"]\nseeds = [-1]', "seed = -1: expected int >= 0"),
        ("compare", "seeds = [1]", "no method is named"),
        ("compare", 'methods = ["fedavgg"]', "unknown method 'fedavgg'; did you mean 'fedavg'?"),
    ],
)
def test_a_mistake_in_a_file_of_settings_names_its_key(
    command: str, text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.toml"
    path.write_text(text)
    assert main([command, "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_comparison_may_be_a_file_and_flags_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths in it are relative to it: of data as of methods of one's own."""
    (tmp_path / "there").mkdir()
    write_example(tmp_path / "there")
    grey, labels = np.zeros((60, 16, 16), np.uint8), np.arange(60) % 3
    np.savez(tmp_path / "there" / "own.npz", x=grey, y=labels)
    (tmp_path / "there" / "file.toml").write_text(
        'methods = ["fedavg", "keepsake.py:Keepsake"]\nseeds = [4, 5]\nlast = 2\nsource = "npz"\n'
        'root = "own.npz"\ndevices = 2\nsplit = "uniform"\nrounds = 1\nepochs = 1\n'
    )
    monkeypatch.chdir(tmp_path)
    command = ["compare", "--config", "there/file.toml", "--no-plots", "--out", "out"]
    assert main([*command, "--json", "all.json"]) == 0
    rows = json.loads(Path("all.json").read_text())
    assert [row["method"] for row in rows] == [
        "fedavg",
        f"{tmp_path / 'there' / 'keepsake.py'}:Keepsake",
    ]
    assert [run["seed"] for run in rows[0]["runs"]] == [4, 5]
    assert rows[0]["runs"][0]["experiment"]["root"] == str(tmp_path / "there" / "own.npz")
    flags = ["--methods", "fedavg", "--seeds", "4", "--json", "one.json"]
    assert main([*command, *flags]) == 0
    (row,) = json.loads(Path("one.json").read_text())
    assert [run["seed"] for run in row["runs"]] == [4]


def test_the_range_of_what_a_method_reports_is_there_beside_its_mean() -> None:
    """FedACD's V_m saturates at a half, and nobody would see it in a mean."""
    *_, last = run(Experiment(**SMALL, method="fedacd"))
    low, mean, high = (last.values[name] for name in ("v_m_min", "v_m", "v_m_max"))
    assert 0.5 <= low < mean < high <= 1
    assert "loss_min" not in last.values


def test_classes_that_are_not_tested_are_left_blank(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    grey = np.random.default_rng(0).integers(0, 255, (60, 16, 16)).astype(np.uint8)
    labels = np.arange(60) % 2 * 2
    np.savez(tmp_path / "own.npz", x=grey, y=labels, x_test=grey[:8], y_test=labels[:8])
    command = ["compare", "--data", f"npz:{tmp_path / 'own.npz'}", "--split", "uniform"]
    flags = ["--devices=2", "--rounds=1", "--epochs=1", "--seeds=0", "--out", str(tmp_path / "out")]
    assert main([*command, *flags, "--methods", "fedavg", "fedacd"]) == 0
    assert not [str(warning.message) for warning in recwarn]
    assert not any("nan" in line for line in capsys.readouterr().out.splitlines())


def test_a_preset_alone_is_fedavg_against_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = planning(monkeypatch)
    assert main(["compare", "--preset", "map-cifar10-small", "--seeds", "3"]) == 130
    assert [(each.method, each.model) for each in planned] == [
        ("fedavg", "tfcnn"),
        ("map", "tfcnn"),
    ]


def planning(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """Collect the experiments that comparisons would run, without running them."""
    planned: list[Experiment] = []

    def plan(options: Any, experiments: list[Experiment]) -> tuple[dict[str, Any], list[str]]:
        planned.extend(experiments)
        raise KeyboardInterrupt

    monkeypatch.setattr("fededge.cli.experiments.comparison._run_all", plan)
    monkeypatch.setattr("fededge.cli.experiments.comparison.check_writable", lambda *paths: None)
    return planned


@pytest.mark.parametrize("name", ["results.md", "experiments.md"])
def test_the_commands_of_the_pages_are_ones_that_can_be_given(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Presets, flags, methods and networks exist and go together; nothing is run."""
    planned = planning(monkeypatch)
    lines = page(name).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("fededge compare")]
    assert [main(command) for command in commands] == [130] * len(commands) != []
    assert len(planned) > len(commands)
