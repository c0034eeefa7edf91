"""Encodings of updates: the dtype, whole model or delta, compressed or not.

They are written `float32`, `float16+delta`, `int8+delta+zstd`. The residue is the rounding error of
an update; the device keeps it and adds it to the next one (error feedback).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, get_args

import numpy as np
import zstandard

from fededge.errors import EgressError, WireError
from fededge.flat import Layout, Vector, finite
from fededge.wire import tensors
from fededge.wire.container import Sink
from fededge.wire.tensors import MODEL, Numbers

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["RESIDUE", "Encoding", "ZstdReader"]

RESIDUE = "residue"
"""The residue's name in private state; names of methods' state have a dot."""

LEVEL = 3
MAX_WINDOW = 1 << 27
MAX_FRAME_HEADER = 18
"""Longest header of a zstd frame, in bytes."""


@dataclass(frozen=True)
class Encoding:
    """One encoding; coordinator, device and simulation use the same code."""

    numbers: Numbers = "float32"
    delta: bool = False
    zstd: bool = False

    @classmethod
    def parse(cls, text: str) -> Encoding:
        """Parse `numbers[+delta][+zstd]`; WireError for anything else."""
        first, *more = text.split("+")
        if first not in get_args(Numbers) or more not in ([], ["delta"], ["zstd"], _ALL):
            raise WireError(
                f"unknown encoding '{text[:80]}'; allowed: {', '.join(get_args(Numbers))}, each "
                "also with +delta, +zstd or +delta+zstd"
            )
        encoding = cls(first, "delta" in more, "zstd" in more)  # type: ignore[arg-type]
        if encoding.numbers == "int8" and not encoding.delta:
            raise WireError("encoding 'int8' is too coarse for whole models: write int8+delta")
        return encoding

    def __str__(self) -> str:
        return "+".join((self.numbers, *["delta"] * self.delta, *["zstd"] * self.zstd))

    @property
    def exact(self) -> bool:
        """True if the received model equals the sent one bit by bit."""
        return self.numbers == "float32" and not self.delta

    def pack(
        self, layout: Layout, model: Vector, base: Vector, residue: Vector | None = None
    ) -> tuple[bytes, Vector | None]:
        """Return the update's bytes, and the residue to keep if it is accepted; see `write_`."""
        file = io.BytesIO()
        left = self.write_(
            residue if residue is None else residue.copy(), file, layout, model, base
        )
        return file.getvalue(), left

    def write_(
        self, residue: Vector | None, file: Sink, layout: Layout, model: Vector, base: Vector
    ) -> Vector | None:
        """Write an update block by block; return the residue to keep if it is accepted.

        Args:
            residue: the residue of the last update; overwritten with the new one.
            file: the destination of the bytes.
            layout: the layout of all these vectors.
            model: the model that the device sends.
            base: the version that it was trained from.
        """
        if self.exact:
            self.send(file, layout, {MODEL: model})
            return None
        fresh = residue is None
        left = np.zeros_like(base) if residue is None else residue

        @tensors.quiet
        def wanted(span: slice) -> Vector:
            part = model[span] - base[span] if self.delta else model[span]
            part = part if fresh else part + left[span]
            if not finite(part):
                raise EgressError("the update has numbers that are not finite")
            return part

        def on_written(span: slice, part: Vector, arrives: Vector) -> None:
            np.subtract(part, arrives, out=left[span])

        update = tensors.LazyVector((layout.size,), wanted)
        self.send(file, layout, {MODEL: update}, self.numbers, on_written)
        return left

    def send(
        self,
        file: Sink,
        layout: Layout,
        vectors: tensors.Vectors,
        numbers: Numbers = "float32",
        on_written: tensors.OnWritten | None = None,
    ) -> None:
        """Write vectors, compressed if the encoding says so."""
        if not self.zstd:
            tensors.write(file, layout, vectors, numbers, on_written)
            return
        size = tensors.size_of(layout, vectors, numbers)
        writer = zstandard.ZstdCompressor(level=LEVEL).stream_writer(file, size, closefd=False)  # type: ignore[arg-type]
        with writer as compressed:
            tensors.write(compressed, layout, vectors, numbers, on_written)

    def unpack(self, layout: Layout, source: bytes | BinaryIO, base: Vector) -> Vector:
        """Decode the model that the device sent, up to the encoding's rounding."""
        with self.decompressed(source, tensors.payload_limit(layout)) as file:
            found = tensors.decode(layout, file, numbers=self.numbers)[MODEL]
        return self._onto(found, base) if self.delta else found

    def unpack_part(self, layout: Layout, file: BinaryIO, span: slice, base: Vector) -> Vector:
        """Decode a span of the model from a file that is not compressed, or no longer.

        Args:
            base: the same span of the version that it was trained from.
        """
        found = tensors.decode_part(layout, file, span, self.numbers)
        return self._onto(found, base) if self.delta else found

    @tensors.quiet
    def _onto(self, change: Vector, base: Vector) -> Vector:
        change += base
        if not finite(change):
            raise WireError("base plus delta is not finite")
        return change

    @contextlib.contextmanager
    def decompressed(self, source: bytes | BinaryIO, most: int) -> Iterator[BinaryIO]:
        """A file of the decompressed bytes, at most `most` of them.

        Compressed bytes can only be read forward, and the block must read all of them.
        """
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        if not self.zstd:
            yield file
            return
        reader = ZstdReader(file, most)
        yield reader  # type: ignore[misc]  # it has all the methods that an archive uses
        reader.finish()


_ALL = ["delta", "zstd"]


class ZstdReader(io.RawIOBase):
    """A decompressing reader that only moves forward, bounded by the size in the frame's header.

    A header that gives no size, or more than `most`, is refused before anything is decompressed.
    """

    def __init__(self, file: BinaryIO, most: int) -> None:
        super().__init__()
        head = file.read(MAX_FRAME_HEADER)
        file.seek(-len(head), io.SEEK_CUR)
        with _refused():
            self.size = zstandard.get_frame_parameters(head).content_size
        if not 0 <= self.size <= most:
            raise WireError(f"the zstd header announces {self.size} bytes, the limit is {most}")
        unpacker = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
        self._reader = unpacker.stream_reader(file, read_across_frames=True, closefd=False)
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill the whole buffer; less only at the end."""
        view, filled = memoryview(buffer).cast("B"), 0
        with _refused():
            while filled < len(view) and (count := self._reader.readinto(view[filled:])):
                filled += count
        self._at += filled
        return filled

    def finish(self) -> None:
        """Check that the data had the size in the header; WireError if not."""
        self.read(1)
        if self._at != self.size:
            raise WireError(f"the compressed data is not the {self.size} bytes of its zstd header")

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Return the size for SEEK_END; otherwise only the current position is allowed."""
        if whence == io.SEEK_END:
            return self.size
        if offset != self._at:
            raise WireError("compressed tensors must be in file order")
        return offset


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except zstandard.ZstdError as error:
        raise WireError(f"not zstd bytes: {str(error)[:200]}") from None
