"""The choice of ONNX Runtime's execution provider for a model, with the reason for it."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fededge._internal.suggestions import unknown
from fededge.errors import ConfigError, StoreError
from fededge.predictor.external_data import names_other_files
from fededge.predictor.runtime import import_onnx_runtime

__all__ = ["Provider", "first_line", "start"]

SUFFIX = "ExecutionProvider"
ENGINE = "fededge-engine-"
# The fastest first. The CPU also runs the layers that another provider does not support.
PREFERRED = (f"Tensorrt{SUFFIX}", f"CUDA{SUFFIX}", f"CPU{SUFFIX}")


@dataclass(frozen=True)
class Provider:
    """The execution provider that runs a model, by ONNX Runtime's name, and the reason for it."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{short(self.name)} runs the model: {self.reason}"


def start(
    model: bytes, wanted: str | None = None, threads: int = 1, cache: Path | None = None
) -> tuple[Any, Provider]:
    """Load a model into ONNX Runtime, on the wanted provider or on the fastest.

    Args:
        model: the bytes of the ONNX file.
        wanted: the provider's name, or None.
        threads: ONNX Runtime's threads for one call.
        cache: a folder for TensorRT's engines, or None.

    Raises:
        ConfigError: the wanted provider does not exist, is not offered, or does not start.
        StoreError: ONNX Runtime cannot load the model, or the model refers to other files.
    """
    if wrong := names_other_files(model):
        raise StoreError(wrong)
    runtime = _onnxruntime()
    offered = runtime.get_available_providers()
    best = [name for name in PREFERRED if name in offered]
    names = best if wanted is None else [_named(wanted, runtime)]
    failures: list[str] = []
    for name in names:
        try:
            session = _session(runtime, model, _with_helpers(name, offered), threads, cache)
        except Exception as error:  # noqa: BLE001 - its exceptions have no common base
            failures.append(f"{short(name)} cannot load it ({first_line(error)})")
            continue
        if session.get_providers()[0] == name:
            return session, Provider(name, _reason(name, wanted, runtime, failures))
        failures.append(f"{short(name)} is offered but does not start here")
    if wanted is not None and short(names[0]) != "CPU":
        raise ConfigError(f"provider '{wanted}': {failures[0]}; leave the choice to FedEdge")
    raise StoreError(f"ONNX Runtime does not accept the model: {'; '.join(failures)}")


def short(name: str) -> str:
    return "TensorRT" if name == PREFERRED[0] else name.removesuffix(SUFFIX)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _onnxruntime() -> Any:
    try:
        return import_onnx_runtime()
    except ImportError as error:
        raise ConfigError(
            f"running a model needs ONNX Runtime, which cannot be imported ({error}); "
            "pip install onnxruntime"
        ) from error


def _named(wanted: str, runtime: Any) -> str:
    """ONNX Runtime's name of a provider: `cuda`, `CUDA`, `CUDAExecutionProvider` are the same."""
    known: dict[str, str] = {short(name).lower(): name for name in runtime.get_all_providers()}
    word = wanted.lower().removesuffix(SUFFIX.lower())
    if word not in known:
        raise ConfigError(unknown("provider", wanted, known))
    offered = runtime.get_available_providers()
    if known[word] not in offered:
        raise ConfigError(
            f"provider '{wanted}': ONNX Runtime {runtime.__version__} offers only "
            f"{', '.join(map(short, offered))} here; install one that has it (NVIDIA: "
            "onnxruntime-gpu), or leave the choice to FedEdge"
        )
    return known[word]


def _with_helpers(name: str, offered: list[str]) -> list[str]:
    """The provider, then those that run the layers it does not support."""
    after = PREFERRED[PREFERRED.index(name) + 1 :] if name in PREFERRED else PREFERRED[-1:]
    return [name, *(helper for helper in after if helper in offered)]


def _session(
    runtime: Any, model: bytes, providers: list[str], threads: int, cache: Path | None
) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return runtime.InferenceSession(
        model,
        options,
        providers=providers,
        provider_options=[_options(name, model, cache) for name in providers],
        # ONNX Runtime's own fallback prints to standard output and hides the reason.
        enable_fallback=0,
    )


def _options(provider: str, model: bytes, cache: Path | None) -> dict[str, str]:
    """Options for TensorRT's engine cache, one folder per model; other providers have none.

    TensorRT's provider looks up an engine by the graph, which is the same for all versions of a
    model: in a shared folder it would find the engine with the old weights. So without `cache` it
    is told not to cache at all, whatever the environment says.
    """
    if provider != PREFERRED[0]:
        return {}
    if cache is None:
        return {"trt_engine_cache_enable": "False"}
    folder = cache / f"{ENGINE}{hashlib.sha256(model).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    for old in set(cache.glob(f"{ENGINE}*")) - {folder}:
        shutil.rmtree(old, ignore_errors=True)
    return {
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "True",  # per layer, independent of the weights
        "trt_timing_cache_path": str(cache),
    }


def _reason(name: str, wanted: str | None, runtime: Any, failures: list[str]) -> str:
    if wanted is not None:
        return "it was requested"
    before = PREFERRED[: PREFERRED.index(name)]
    missing = [short(b) for b in before if b not in runtime.get_available_providers()]
    absent = f"ONNX Runtime {runtime.__version__} offers no {' and no '.join(missing)} here"
    reasons = [*([absent] if missing else []), *failures]
    best = f"it is the fastest that ONNX Runtime {runtime.__version__} offers here"
    return "; ".join(reasons) or best
