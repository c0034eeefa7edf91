"""How an update travels: its numbers, whole or as the change, and whether it is compressed.

Written `float32`, `float16+delta`, `int8+delta+zstd`. What rounding takes from an update is its
residue; the device keeps it and adds it to the next one, so that nothing is lost for good.
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

__all__ = ["RESIDUE", "Encoding", "Inflated"]

RESIDUE = "residue"
"""Its name in private state, where those of methods have a dot."""

LEVEL = 3
MOST_WINDOW = 1 << 27
MOST_HEAD = 18
"""Bytes of a zstd frame's header."""


@dataclass(frozen=True)
class Encoding:
    """One of the ways; the same on both sides, and in a simulation."""

    numbers: Numbers = "float32"
    delta: bool = False
    zstd: bool = False

    @classmethod
    def parse(cls, text: str) -> Encoding:
        """Read `numbers[+delta][+zstd]`; anything else is a WireError."""
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
        """Whether what arrives is what was sent, to the last bit."""
        return self.numbers == "float32" and not self.delta

    def pack(
        self, layout: Layout, model: Vector, base: Vector, residue: Vector | None = None
    ) -> tuple[bytes, Vector | None]:
        """The update's bytes, and the residue to keep if it is accepted; see `write_`."""
        file = io.BytesIO()
        left = self.write_(
            residue if residue is None else residue.copy(), file, layout, model, base
        )
        return file.getvalue(), left

    def write_(
        self, residue: Vector | None, file: Sink, layout: Layout, model: Vector, base: Vector
    ) -> Vector | None:
        """Write an update, block by block; the residue to keep if it is accepted.

        Args:
            residue: what was kept of the update before; the new one takes its place.
            file: where the bytes go.
            layout: of all these vectors.
            model: what the device sends.
            base: the version it was trained from.
        """
        if self.exact:
            self.send(file, layout, {MODEL: model})
            return None
        fresh = residue is None
        left = np.zeros_like(base) if residue is None else residue

        @tensors.unwarned
        def wanted(span: slice) -> Vector:
            part = model[span] - base[span] if self.delta else model[span]
            part = part if fresh else part + left[span]
            if not finite(part):
                raise EgressError("the update has numbers that are not finite")
            return part

        def taken(span: slice, part: Vector, arrives: Vector) -> None:
            np.subtract(part, arrives, out=left[span])

        made = tensors.Made((layout.size,), wanted)
        self.send(file, layout, {MODEL: made}, self.numbers, taken)
        return left

    def send(
        self,
        file: Sink,
        layout: Layout,
        vectors: tensors.Vectors,
        numbers: Numbers = "float32",
        taken: tensors.Taken | None = None,
    ) -> None:
        """Write vectors as they travel, compressed or not."""
        if not self.zstd:
            tensors.write(file, layout, vectors, numbers, taken)
            return
        size = tensors.size_of(layout, vectors, numbers)
        squeezing = zstandard.ZstdCompressor(level=LEVEL).stream_writer(file, size, closefd=False)  # type: ignore[arg-type]
        with squeezing as squeezed:
            tensors.write(squeezed, layout, vectors, numbers, taken)

    def unpack(self, layout: Layout, source: bytes | BinaryIO, base: Vector) -> Vector:
        """The model that the device sent, as near as the encoding brings it."""
        with self.plain(source, tensors.payload_limit(layout)) as file:
            found = tensors.decode(layout, file, numbers=self.numbers)[MODEL]
        return self._onto(found, base) if self.delta else found

    def unpack_part(self, layout: Layout, file: BinaryIO, span: slice, base: Vector) -> Vector:
        """These numbers of what `unpack` gives, from a file that is not compressed (any more).

        Args:
            base: these numbers of the version that it was trained from.
        """
        found = tensors.decode_part(layout, file, span, self.numbers)
        return self._onto(found, base) if self.delta else found

    @tensors.unwarned
    def _onto(self, change: Vector, base: Vector) -> Vector:
        change += base
        if not finite(change):
            raise WireError("the model that the change leads to is not finite")
        return change

    @contextlib.contextmanager
    def plain(self, source: bytes | BinaryIO, most: int) -> Iterator[BinaryIO]:
        """What was compressed, at most so many bytes of it; what was not, as it is.

        Compressed bytes are read from one end to the other, and must have been when the block ends.
        """
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        if not self.zstd:
            yield file
            return
        inflated = Inflated(file, most)
        yield inflated  # type: ignore[misc]  # what an archive needs of a file, it can
        inflated.finish()


_ALL = ["delta", "zstd"]


class Inflated(io.RawIOBase):
    """A compressed file as if it were not, for who reads on and on: no more than it claims.

    What claims more than `most`, or does not say, is refused unread.
    """

    def __init__(self, file: BinaryIO, most: int) -> None:
        super().__init__()
        head = file.read(MOST_HEAD)
        file.seek(-len(head), io.SEEK_CUR)
        with _refused():
            self.size = zstandard.get_frame_parameters(head).content_size
        if not 0 <= self.size <= most:
            raise WireError(
                f"compressed bytes that claim to be {self.size}, where {most} can be honest"
            )
        unpacker = zstandard.ZstdDecompressor(max_window_size=MOST_WINDOW)
        self._reader = unpacker.stream_reader(file, read_across_frames=True, closefd=False)
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill the buffer, but for the end."""
        view, filled = memoryview(buffer).cast("B"), 0
        with _refused():
            while filled < len(view) and (count := self._reader.readinto(view[filled:])):
                filled += count
        self._at += filled
        return filled

    def finish(self) -> None:
        """All was read, and that is what it claimed to be."""
        self.read(1)
        if self._at != self.size:
            raise WireError(f"compressed bytes that are not the {self.size} that they claim to be")

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Tell the size, or stay: there is no way but forward."""
        if whence == io.SEEK_END:
            return self.size
        if offset != self._at:
            raise WireError("compressed bytes whose tensors do not follow each other")
        return offset


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except zstandard.ZstdError as error:
        raise WireError(f"not zstd bytes: {str(error)[:200]}") from None
