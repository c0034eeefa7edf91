"""The predictor: asks the model that `current` leads to, and takes over a new one while it runs."""

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
from fededge.predictor.inputs import prepare
from fededge.predictor.manifest import MANIFEST, MODEL, Input
from fededge.predictor.model import About, Model, Signature, Wanted, signature
from fededge.predictor.prediction import Prediction
from fededge.predictor.texts import prepare_texts
from fededge.storage.files import replace_file

__all__ = ["BAD", "Predictor"]

log = logging.getLogger(__name__)

BAD = "bad.json"
LONGEST_REASON = 1000
# ONNX Runtime starts as many as it is told, and where they cannot be had the app ends.
MOST_THREADS = 256
# Looking costs as much as a very small network, so it is not done at every call of a busy app.
LOOK_SECONDS = 0.01
# After a refusal: a file that somebody is still writing changes all the time.
PAUSE_SECONDS = 1.0


class Predictor:
    """A device's model, ready to be asked from any number of threads.

    A call looks whether the model has changed (two `stat`, at most every 10 ms). A new one is
    checked and loaded by a thread of its own: no call waits for it, and the old one answers until
    it is ready. Each result comes from exactly one model, and names it. A new model that is
    damaged is refused with a line in the log, and the old one goes on.
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
            path: the link `current` of a device, or its `models` or state folder; a folder with
                `model.onnx` and `manifest.json` does as well.
            provider: `tensorrt`, `cuda`, `cpu` or another that ONNX Runtime offers; without it,
                the first of these three that starts.
            variant: `fp32`, `fp16` or `int8`; without it, the one that the agent has chosen.
            threads: of ONNX Runtime for one call; one is best for small networks.
            trusted_key: a file with a public key; models that it did not sign are refused.
            engine_cache: a folder of this app alone, where TensorRT keeps the engine of the newest
                model, so that the app's next start need not build it again.
            resize: scale images of another size than the model's; else they are refused.
        """
        if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
            raise ConfigError(f"threads: a number from 1 to {MOST_THREADS}, not {threads!r}")
        self._path = _model_folder(Path(path))
        key, cache = (None if p is None else Path(p) for p in (trusted_key, engine_cache))
        self._wanted, self._resize = Wanted(provider, variant, threads, key, cache), resize
        self._next_look = 0.0
        self._prepare_locks()
        self._seen, self._model = self._loaded(self._real())
        self._forked = False
        _ALIVE.add(self)
        log.info("%s; version %s", self._model.about.provider, self.version)

    @property
    def about(self) -> About:
        """What is known of the model that answers now."""
        return self._model.about

    @property
    def version(self) -> str:
        """The version of the model that answers now."""
        return self._model.about.version

    @overload
    def predict(self, inputs: str | os.PathLike[str] | bytes) -> Prediction: ...
    @overload
    def predict(self, inputs: list[Any] | tuple[Any, ...]) -> list[Prediction]: ...
    @overload
    def predict(self, inputs: Any) -> Any: ...
    def predict(self, inputs: Any) -> Any:
        """Ask the model: one input gives a Prediction, a list or an array of many gives a list.

        Args:
            inputs: an image file's path or bytes, a PIL image, an array of uint8 ([H, W],
                [H, W, C], [C, H, W], or many as [N, H, W, C] or [N, C, H, W]), or a list of these.
                Of a model for texts: a text, an array of tokens, or a list of texts.

        Raises:
            DataError: the input is not one of these, or cannot be read.
            ConfigError: the input is a picture, and Pillow is not installed.
        """
        self._follow()
        model = self._model
        batch, single = self._prepare(inputs, model.about.input)
        rows = model.run(batch)
        rows.flags.writeable = False
        results = [Prediction(row, model.about) for row in rows]
        return results[0] if single else results

    def refresh(self) -> bool:
        """Look for a new model, and wait until it is loaded; whether it has taken over."""
        if self._forked:
            self._load_after_fork()
        with self._loading:
            return self._take_over()

    def report_bad(self, reason: str, about: About | None = None) -> Path:
        """Note beside a model that it is bad: `bad.json`, for the agent of the device to read.

        Args:
            reason: what is wrong with it, in words; the first 1,000 characters are kept.
            about: which model, from `Prediction.about`; without it, the one that answers now.
        """
        about = about or self.about
        path = about.folder / BAD
        report = {
            "sha256": about.manifest["sha256"],
            "version": about.version,
            "reason": reason[:LONGEST_REASON],
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        with self._reporting:
            if not (about.folder / MANIFEST).exists():
                raise StoreError(f"{about.folder}: this model is gone, so nobody needs the report")
            text = json.dumps(report, ensure_ascii=False, indent=2)
            replace_file(path, text.encode(errors="backslashreplace") + b"\n")
        return path

    def _prepare(self, inputs: Any, about: Input) -> tuple[np.ndarray, bool]:
        if about.kind == "text":
            return prepare_texts(inputs, about.shape[0], about.largest)
        channels, height, width = about.shape
        return prepare(inputs, (channels, height, width), self._resize)

    def _prepare_locks(self) -> None:
        self._loading = threading.Lock()
        self._reporting = threading.Lock()

    def _after_fork(self) -> None:
        """In the child, before anything else runs there: whoever held a lock is not here."""
        self._prepare_locks()
        self._forked = True

    def _load_after_fork(self) -> None:
        """A model of this process's own: ONNX Runtime's threads do not outlive a fork.

        The parent's is known to be good; what is newer takes over as ever. Where neither can be
        loaded the call fails: a session that waits for threads of the parent would wait for ever.
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
        """If the model has changed, and nobody is at it, have it loaded."""
        if self._forked:
            self._load_after_fork()
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        if signature(self._path) == self._seen or not self._loading.acquire(blocking=False):
            return
        try:
            threading.Thread(target=self._take_over_and_release, name="fededge-model").start()
        except RuntimeError:  # no thread to be had, as when Python is ending: the old one answers
            self._loading.release()

    def _take_over_and_release(self) -> None:
        try:
            self._take_over()
        finally:
            self._loading.release()

    def _take_over(self) -> bool:
        folder = self._real()
        seen = signature(folder)
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self._model = self._load(folder)
        except (FedEdgeError, MemoryError) as error:
            self._next_look = time.monotonic() + PAUSE_SECONDS
            log.warning("the new model is refused, %s goes on: %s", self.version, error)
            return False
        log.info("%s; version %s took over", self.about.provider, self.version)
        return True

    def _real(self) -> Path:
        """Where the model is now: followed once, so that its two files belong together."""
        return Path(os.path.realpath(self._path))

    def _load(self, folder: Path) -> Model:
        return Model.load(folder, self._wanted)

    def _loaded(self, folder: Path) -> tuple[Signature | None, Model]:
        seen = signature(folder)  # before it is read: what changes meanwhile is looked at again
        return seen, self._load(folder)


_ALIVE: weakref.WeakSet[Predictor] = weakref.WeakSet()
# Of a forked process: ONNX Runtime ends a session by waiting for its threads, which are not here.
_PARENTS: list[Model] = []


def _forked() -> None:
    for predictor in list(_ALIVE):
        predictor._after_fork()


os.register_at_fork(after_in_child=_forked)


def _model_folder(path: Path) -> Path:
    """The folder or link that holds the model, given it, its file, or a folder above it."""
    if path.name == MODEL:
        path = path.parent
    for folder in (path, path / "current", path / "models" / "current"):
        try:
            os.stat(folder / MODEL)
        except PermissionError as error:
            raise StoreError(
                f"{folder}: cannot be entered ({error.strerror}); the app's user must be able to "
                "read the agent's models"
            ) from error
        except OSError:
            continue
        return folder.absolute()
    raise StoreError(
        f"{path}: there is no model here (neither {MODEL} nor current/{MODEL} nor "
        f"models/current/{MODEL}); the agent writes the first one after its first training"
    )
