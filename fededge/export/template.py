"""A template: a traced network without weights; filled with a flat vector it is an ONNX file."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from fededge._internal.lazy_torch import Tensor, nn
from fededge.errors import ExportError, LayoutError, StoreError
from fededge.export.parity import check
from fededge.export.protobuf import header, integer, message
from fededge.flat import Entry, Layout, Vector, as_numpy
from fededge.model_spec import ModelSpec
from fededge.predictor.manifest import LARGEST_MODEL
from fededge.storage.files import replace_file

if TYPE_CHECKING:
    from fededge.export.tracing import Exporter

__all__ = ["Template"]

log = logging.getLogger(__name__)

MAGIC = b"fededge template 1\n"
# A graph without weights takes some kilobytes; a larger file is not a template.
LARGEST_FILE = 64 << 20

# Fields of ONNX's messages, as in onnx.proto.
MODEL_GRAPH, MODEL_METADATA = 7, 14
METADATA_KEY, METADATA_VALUE = 1, 2
GRAPH_INITIALIZER = 5
TENSOR_DIMS, TENSOR_TYPE, TENSOR_NAME, TENSOR_DATA = 1, 2, 8, 9
FLOAT = 1

Saved = tuple[tuple[Entry, ...], ModelSpec, bytes, bytes]


@dataclass(frozen=True)
class Template:
    """The bytes of an ONNX file without the weights and the metadata.

    Tracing needs seconds and torch's exporters. Filling needs neither them nor the onnx package:
    it puts the spans of the vector between constant bytes.
    """

    layout: Layout
    spec: ModelSpec
    head: bytes
    graph: bytes

    @classmethod
    def trace(
        cls, module: nn.Module, spec: ModelSpec, exporters: Sequence[Exporter] | None = None
    ) -> Template:
        """Trace a network with the first exporter whose result agrees with torch.

        Args:
            module: the network; it is neither changed nor moved.
            spec: the network's inputs and labels.
            exporters: torch's exporters to try, in order; by default all of them.
        """
        from fededge.export.tracing import EXPORTERS, dry_run

        dry_run(module, spec)
        errors = []
        for exporter in EXPORTERS if exporters is None else exporters:
            try:
                return cls._trace(module, spec, exporter)
            except ExportError as error:
                errors.append(str(error))
        raise ExportError("; ".join(errors))

    @classmethod
    def _trace(cls, module: nn.Module, spec: ModelSpec, exporter: Exporter) -> Template:
        from fededge.export.tracing import trace_without_weights

        model = trace_without_weights(module, spec, exporter)
        graph = model.graph.SerializeToString()
        model.ClearField("graph")
        template = cls(Layout.of(module), spec, model.SerializeToString(), graph)
        template.verify(module)
        template._check_format(module)
        return template

    def fill(self, vector: Tensor | Vector, metadata: Mapping[str, str]) -> bytes:
        """Return the ONNX file with these weights, and these entries in its `metadata_props`."""
        numbers = np.ascontiguousarray(as_numpy(vector), "<f4")
        if numbers.shape != (self.layout.size,):
            raise LayoutError(
                f"the vector must have {self.layout.size} numbers, got shape {numbers.shape}"
            )
        raw = numbers.view(np.uint8)
        weights = [part for entry in self.layout.entries for part in _initializer(entry, raw)]
        start = header(MODEL_GRAPH, len(self.graph) + sum(map(len, weights)))
        parts = [self.head, start, self.graph, *weights, *map(_entry, metadata.items())]
        size = sum(map(len, parts))
        if size > LARGEST_MODEL:
            raise ExportError(f"the model has {size:,} bytes, but an ONNX file holds at most 2 GiB")
        return b"".join(parts)

    def verify(self, module: nn.Module) -> None:
        """Check on random inputs that the filled template agrees with this module."""
        from fededge.export.tracing import examples

        check(self.fill(_vector(module), {}), module, self.spec, examples(self.spec, 4))

    def _check_format(self, module: nn.Module) -> None:
        import onnx

        try:
            onnx.checker.check_model(self.fill(_vector(module), {}), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            raise ExportError(
                f"'{self.spec.name}' gives an invalid ONNX graph ({error})"
            ) from error

    def save(self, path: Path) -> None:
        """Write the template, atomically."""
        saved: Saved = (self.layout.entries, self.spec, self.head, self.graph)
        payload = msgspec.msgpack.encode(saved)
        replace_file(path, MAGIC + hashlib.sha256(payload).digest() + payload)

    @classmethod
    def load(cls, path: Path) -> Template:
        """Read a saved template; any other file raises StoreError."""
        try:
            with path.open("rb") as file:
                data = file.read(LARGEST_FILE)
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror})") from error
        digest, payload = data[len(MAGIC) :][:32], data[len(MAGIC) + 32 :]
        if not data.startswith(MAGIC) or hashlib.sha256(payload).digest() != digest:
            raise StoreError(f"{path}: not a template, or a damaged one")
        try:
            entries, spec, head, graph = msgspec.msgpack.decode(payload, type=Saved)
        except msgspec.MsgspecError as error:
            raise StoreError(f"{path}: not a template of this version ({error})") from error
        return cls(Layout(entries), spec, head, graph)

    @classmethod
    def cached(cls, folder: Path, module: nn.Module, spec: ModelSpec) -> Template:
        """Load the template of an earlier run, or trace one and save it for the next run.

        A file that is damaged or does not fit this module is traced again. If the new one cannot
        be written (a full disk), the next run traces again.
        """
        layout = Layout.of(module)
        path = _path(folder, layout)
        if path.exists():
            try:
                return cls._fitting(path, layout, module, spec)
            except (StoreError, ExportError) as error:
                log.warning("the network is traced again: %s", error)
        template = cls.trace(module, spec)
        try:
            template.save(path)
        except StoreError as error:
            log.warning("the traced network is not saved: %s", error)
        return template

    @classmethod
    def cached_file(cls, folder: Path, module: nn.Module, spec: ModelSpec) -> Path:
        """Return the file of this network's template; trace the network if there is none.

        Whoever fills a template that was saved earlier compares the result with torch.
        """
        layout = Layout.of(module)
        path = _path(folder, layout)
        try:
            cls._of(path, layout, spec)
        except StoreError as error:
            if path.exists():
                log.warning("the network is traced again: %s", error)
            cls.trace(module, spec).save(path)
        return path

    @classmethod
    def _fitting(cls, path: Path, layout: Layout, module: nn.Module, spec: ModelSpec) -> Template:
        template = cls._of(path, layout, spec)
        template.verify(module)
        return template

    @classmethod
    def _of(cls, path: Path, layout: Layout, spec: ModelSpec) -> Template:
        template = cls.load(path)
        if template.spec != spec or template.layout != layout:
            raise StoreError(f"{path}: the template is for another network")
        return template


def _path(folder: Path, layout: Layout) -> Path:
    return folder / f"{layout.hash}.template"


def _vector(module: nn.Module) -> Tensor:
    """Return the module's tensors as a vector; the module need not be bound to one."""
    tensors = module.state_dict()
    layout = Layout.of(module)
    return layout.vector({e.name: tensors[e.name].detach().cpu() for e in layout.entries})


def _initializer(
    entry: Entry, raw: np.ndarray[tuple[int], np.dtype[np.uint8]]
) -> Iterator[bytes | memoryview]:
    """Yield a TensorProto of the graph: its header, and the weights without a copy."""
    data = raw[4 * entry.span.start : 4 * entry.span.stop]
    about = (
        b"".join(integer(TENSOR_DIMS, size) for size in entry.shape)
        + integer(TENSOR_TYPE, FLOAT)
        + message(TENSOR_NAME, entry.name.encode())
        + header(TENSOR_DATA, len(data))
    )
    yield header(GRAPH_INITIALIZER, len(about) + len(data)) + about
    yield data.data


def _entry(pair: tuple[str, str]) -> bytes:
    """Encode a StringStringEntryProto of the model's metadata."""
    key, value = pair
    return message(
        MODEL_METADATA,
        message(METADATA_KEY, key.encode()) + message(METADATA_VALUE, value.encode()),
    )
