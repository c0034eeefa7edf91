"""The predictor: runs the model that `current` links to, and switches to a new one by itself."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import weakref
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, overload

import numpy as np

from fededge.errors import ConfigError, FedEdgeError, StoreError
from fededge.predictor.images import prepare_images
from fededge.predictor.manifest import BAD, CURRENT, MANIFEST, MODEL, ModelInput
from fededge.predictor.model import About, Fingerprint, LoadOptions, Model, fingerprint
from fededge.predictor.prediction import Prediction
from fededge.predictor.texts import prepare_texts
from fededge.storage.files import replace_file

__all__ = ["Predictor"]

log = logging.getLogger(__name__)

MAX_REASON = 1000
# ONNX Runtime starts as many threads as it is told, and aborts the app if it cannot.
MAX_THREADS = 256
# A check costs as much as a very small network, so a busy app does not make one on every call.
CHECK_SECONDS = 0.01
# Pause after a refusal, because a file that is still being written changes all the time.
PAUSE_SECONDS = 1.0


class Predictor:
    """A device's model, safe to use from any number of threads.

    A call checks whether the model has changed (two `stat`, at most every 10 ms). A background
    thread verifies and loads a new model; until it is ready, calls use the old one. Each result
    comes from exactly one model, and names it. A damaged new model is refused with a log line, and
    the old one stays in use.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        provider: str | None = None,
        variant: str | None = None,
        threads: int = 1,
        trusted_key: str | os.PathLike[str] | None = None,
        engine_cache: str | os.PathLike[str] | None = None,
        resize: bool = True,
    ) -> None:
        """Load the model.

        Args:
            path: the link `current` of a device, or its `models` or state folder, or a folder with
                `model.onnx` and `manifest.json`.
            provider: `tensorrt`, `cuda`, `cpu` or another that ONNX Runtime offers; by default the
                first of these three that starts.
            variant: `fp32`, `fp16` or `int8`; by default the agent's choice.
            threads: ONNX Runtime's threads for one call; one is best for small networks.
            trusted_key: a file with a public key; models without its signature are refused.
            engine_cache: a folder for this app only, where TensorRT keeps the engine of the newest
                model, so that the next start does not build it again.
            resize: scale images of another size than the model's; else they are refused.
        """
        if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
            raise ConfigError(f"threads must be a number from 1 to {MAX_THREADS}, got {threads!r}")
        self._path = _model_folder(Path(path))
        key, cache = (None if p is None else Path(p) for p in (trusted_key, engine_cache))
        self._options, self._resize = LoadOptions(provider, variant, threads, key, cache), resize
        self._next_check = 0.0
        self._prepare_locks()
        self._seen, self._model = self._loaded(self._real())
        self._forked = False
        _ALIVE.add(self)
        log.info("%s; version %s", self._model.about.provider, self.version)

    @property
    def about(self) -> About:
        """Facts about the model in use."""
        return self._model.about

    @property
    def version(self) -> str:
        """The version of the model in use."""
        return self._model.about.version

    @overload
    def predict(self, inputs: str | os.PathLike[str] | bytes) -> Prediction: ...
    @overload
    def predict(self, inputs: list[Any] | tuple[Any, ...]) -> list[Prediction]: ...
    @overload
    def predict(self, inputs: Any) -> Any: ...
    def predict(self, inputs: Any) -> Any:
        """Run the model: one input gives a Prediction, a list or a batch array gives a list.

        Args:
            inputs: an image file's path or bytes, a PIL image, an array of uint8 ([H, W],
                [H, W, C], [C, H, W], or many as [N, H, W, C] or [N, C, H, W]), or a list of these.
                For a model for texts: a text, an array of tokens, or a list of texts.

        Raises:
            DataError: the input is not one of these, or cannot be read.
            ConfigError: the input is an image file, and Pillow is not installed.
        """
        self._follow()
        model = self._model
        batch, single = self._prepare(inputs, model.about.input)
        rows = model.run(batch)
        rows.flags.writeable = False
        results = [Prediction(row, model.about) for row in rows]
        return results[0] if single else results

    def refresh(self) -> bool:
        """Check for a new model and load it now; return True if it is in use."""
        if self._forked:
            self._load_after_fork()
        with self._loading:
            return self._take_over()

    def report_bad(self, reason: str, about: About | None = None) -> Path:
        """Report a bad model: write `bad.json` beside it, which the device's agent reads.

        Args:
            reason: the problem, in words; the first 1,000 characters are kept.
            about: the model, from `Prediction.about`; by default the one in use.
        """
        about = about or self.about
        path = about.folder / BAD
        report = {
            "sha256": about.manifest["sha256"],
            "version": about.version,
            "reason": reason[:MAX_REASON],
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        with self._reporting:
            if not (about.folder / MANIFEST).exists():
                raise StoreError(f"{about.folder}: this model was removed, no report is needed")
            text = json.dumps(report, ensure_ascii=False, indent=2)
            replace_file(path, text.encode(errors="backslashreplace") + b"\n")
        return path

    def _prepare(self, inputs: Any, about: ModelInput) -> tuple[np.ndarray, bool]:
        if about.kind == "text":
            return prepare_texts(inputs, about.shape[0], about.largest)
        channels, height, width = about.shape
        return prepare_images(inputs, (channels, height, width), self._resize)

    def _prepare_locks(self) -> None:
        self._loading = threading.Lock()
        self._reporting = threading.Lock()

    def _after_fork(self) -> None:
        """Renew the locks in the child process: the thread that held one does not exist there."""
        self._prepare_locks()
        self._forked = True

    def _load_after_fork(self) -> None:
        """Load a model for this process, because ONNX Runtime's threads do not survive a fork.

        The parent's model is known to be good, so it is tried first; a newer one follows as usual.
        If neither loads, the call fails: the parent's session would wait for its threads for ever.
        """
        with self._loading:
            if self._forked:
                _PARENTS.append(self._model)
                try:
                    self._seen, self._model = self._loaded(self._model.about.folder)
                except FedEdgeError:
                    self._seen, self._model = self._loaded(self._real())
                self._forked = False

    def _follow(self) -> None:
        """Start loading if the model has changed and no other thread is loading."""
        if self._forked:
            self._load_after_fork()
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS
        if fingerprint(self._path) == self._seen or not self._loading.acquire(blocking=False):
            return
        try:
            threading.Thread(target=self._take_over_and_release, name="fededge-model").start()
        except RuntimeError:  # no new threads, as at Python's shutdown: keep the old model
            self._loading.release()

    def _take_over_and_release(self) -> None:
        try:
            self._take_over()
        finally:
            self._loading.release()

    def _take_over(self) -> bool:
        folder = self._real()
        seen = fingerprint(folder)
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self._model = self._load(folder)
        except (FedEdgeError, MemoryError) as error:
            self._next_check = time.monotonic() + PAUSE_SECONDS
            log.warning("the new model is refused, %s stays in use: %s", self.version, error)
            return False
        log.info("%s; version %s is now in use", self.about.provider, self.version)
        return True

    def _real(self) -> Path:
        """The model's folder, with the link resolved once, so that both files belong together."""
        return Path(os.path.realpath(self._path))

    def _load(self, folder: Path) -> Model:
        return Model.load(folder, self._options)

    def _loaded(self, folder: Path) -> tuple[Fingerprint | None, Model]:
        seen = fingerprint(folder)  # taken before reading, so that a change meanwhile is noticed
        return seen, self._load(folder)


_ALIVE: weakref.WeakSet[Predictor] = weakref.WeakSet()
# Sessions of the parent process are never freed: ONNX Runtime would wait for threads that are gone.
_PARENTS: list[Model] = []


def _forked() -> None:
    for predictor in list(_ALIVE):
        predictor._after_fork()


os.register_at_fork(after_in_child=_forked)


def _model_folder(path: Path) -> Path:
    """The folder or link that holds the model, from itself, its file, or a folder above it."""
    if path.name == MODEL:
        path = path.parent
    for folder in (path, path / CURRENT, path / "models" / CURRENT):
        try:
            os.stat(folder / MODEL)
        except PermissionError as error:
            raise StoreError(
                f"{folder}: cannot be read ({error.strerror}); the app's user must be able to "
                "read the agent's models"
            ) from error
        except OSError:
            continue
        return folder.absolute()
    raise StoreError(
        f"{path}: there is no model here (neither {MODEL} nor {CURRENT}/{MODEL} nor "
        f"models/{CURRENT}/{MODEL}); the agent writes the first one after its first training"
    )
