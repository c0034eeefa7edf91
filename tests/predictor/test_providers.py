"""The choice of an execution provider, and its reason."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest

from fededge import Predictor
from fededge.errors import ConfigError, StoreError
from fededge.predictor import providers

TENSORRT, CUDA, CPU = providers.PREFERRED
OPENVINO = "OpenVINOExecutionProvider"


@dataclass
class FakeRuntime:
    """An ONNX Runtime on a machine with other providers: which it has, and which of them fail.

    A provider whose libraries are missing raises or, in some versions, is passed over in silence.
    """

    offered: list[str]
    raising: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    tried: list[list[str]] = field(default_factory=list)
    given: list[dict[str, dict[str, str]]] = field(default_factory=list)
    __version__ = "9.9"

    def get_all_providers(self) -> list[str]:
        return [TENSORRT, CUDA, OPENVINO, CPU]

    def get_available_providers(self) -> list[str]:
        return self.offered

    def SessionOptions(self) -> Any:  # noqa: N802 - its name
        return SimpleNamespace()

    def InferenceSession(  # noqa: N802 - its name
        self,
        model: bytes,
        options: Any,
        providers: list[str],
        provider_options: list[dict[str, str]],
        enable_fallback: int,
    ) -> Any:
        assert enable_fallback == 0
        self.tried.append(providers)
        self.given.append(dict(zip(providers, provider_options, strict=True)))
        if providers[0] in self.raising:
            raise RuntimeError(f"no library for {providers[0]}\nand more")
        running = [name for name in providers if name not in self.silent]
        return SimpleNamespace(get_providers=lambda: running)


def started(
    monkeypatch: pytest.MonkeyPatch, runtime: FakeRuntime, wanted: str | None = None
) -> providers.Provider:
    monkeypatch.setattr(providers, "_onnxruntime", lambda: runtime)
    return providers.start(b"", wanted)[1]


def test_this_machine_says_why_the_cpu_runs_the_model(
    models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The real ONNX Runtime of the tests has neither TensorRT nor CUDA."""
    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has a GPU")
    with caplog.at_level(logging.INFO):
        predictor = Predictor(models)
    sentence = (
        f"CPU runs the model: ONNX Runtime {onnxruntime.__version__} offers no TensorRT and no "
        "CUDA here"
    )
    assert str(predictor.about.provider) == sentence
    assert f"{sentence}; version {predictor.version}" in caplog.messages
    with pytest.raises(ConfigError, match=r"provider 'cuda': .*install one that has it \(NVIDIA"):
        Predictor(models, provider="cuda")


@pytest.mark.parametrize("name", ["cpu", "CPU", "CPUExecutionProvider"])
def test_a_provider_may_be_asked_for_by_any_of_its_names(models: Path, name: str) -> None:
    provider = Predictor(models, provider=name).about.provider
    assert str(provider) == "CPU runs the model: it was requested"


def test_the_fastest_that_is_offered_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others follow it, for layers that it does not support."""
    runtime = FakeRuntime([TENSORRT, CUDA, CPU])
    provider = started(monkeypatch, runtime)
    assert provider.name == TENSORRT
    assert (
        str(provider)
        == "TensorRT runs the model: it is the fastest that ONNX Runtime 9.9 offers here"
    )
    assert runtime.tried == [[TENSORRT, CUDA, CPU]]


def test_without_tensorrt_cuda_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = started(monkeypatch, FakeRuntime([CUDA, CPU]))
    assert str(provider) == "CUDA runs the model: ONNX Runtime 9.9 offers no TensorRT here"


def test_a_provider_that_does_not_start_is_skipped_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = FakeRuntime([TENSORRT, CUDA, CPU], raising=(TENSORRT,), silent=(CUDA,))
    provider = started(monkeypatch, runtime)
    assert provider.name == CPU
    assert provider.reason == (
        f"TensorRT cannot load it (no library for {TENSORRT}); "
        "CUDA is offered but does not start here"
    )
    assert runtime.tried == [[TENSORRT, CUDA, CPU], [CUDA, CPU], [CPU]]


def test_another_provider_of_onnx_runtime_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime([OPENVINO, CPU])
    assert started(monkeypatch, runtime, "openvino").name == OPENVINO
    assert runtime.tried == [[OPENVINO, CPU]]


@pytest.mark.parametrize("how", ["raising", "silent"])
def test_a_requested_provider_is_not_replaced(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime([CUDA, CPU], **{how: (CUDA,)})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"provider 'cuda': CUDA .*; leave the choice"):
        started(monkeypatch, runtime, "cuda")


def test_an_unknown_provider_gets_a_guess(models: Path) -> None:
    with pytest.raises(ConfigError, match=r"no provider 'cudaa'; did you mean 'cuda'\?"):
        Predictor(models, provider="cudaa")


def test_a_model_that_no_provider_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime([CUDA, CPU], raising=(CUDA, CPU))
    with pytest.raises(StoreError, match=r"does not accept the model: CUDA cannot .*; CPU cannot"):
        started(monkeypatch, runtime)


def test_tensorrt_keeps_no_engine_unless_it_has_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the environment could make it use the engine of another version of the model."""
    runtime = FakeRuntime([TENSORRT, CUDA, CPU])
    started(monkeypatch, runtime)
    assert runtime.given == [{TENSORRT: {"trt_engine_cache_enable": "False"}, CUDA: {}, CPU: {}}]


def test_each_model_has_an_engine_folder_of_its_own_and_the_newest_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Other files in the folder are not touched."""
    runtime = FakeRuntime([TENSORRT, CPU])
    monkeypatch.setattr(providers, "_onnxruntime", lambda: runtime)
    (tmp_path / "cache" / "mine").mkdir(parents=True)
    for model in (b"\x08\x01", b"\x08\x02"):
        providers.start(model, cache=tmp_path / "cache")
    old, new = (Path(given[TENSORRT]["trt_engine_cache_path"]) for given in runtime.given)
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"mine", new.name}
    assert old.parent == new.parent == tmp_path / "cache"
    assert runtime.given[1][TENSORRT]["trt_engine_cache_enable"] == "True"
    assert runtime.given[1][CPU] == {}


def test_without_onnx_runtime_a_sentence_says_what_to_install(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"needs ONNX Runtime.*pip install onnxruntime"):
        Predictor(models)


@pytest.mark.parametrize("threads", [0, -1, 100_000, True, 1.5, "2"])
def test_a_count_of_threads_that_cannot_be_had_is_refused(models: Path, threads: Any) -> None:
    """ONNX Runtime would try: a hundred thousand threads end the app."""
    with pytest.raises(
        ConfigError, match=f"threads must be a number from 1 to 256, got {threads!r}"
    ):
        Predictor(models, threads=threads)
