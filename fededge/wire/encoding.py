"""How an update travels: its numbers, whole or as the change, and whether it is compressed.

Written `float32`, `float16+delta`, `int8+delta+zstd`. What rounding takes from an update is its
residue; the device keeps it and adds it to the next one, so that nothing is lost for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, get_args

import torch
import zstandard
from torch import Tensor

from fededge.errors import EgressError, WireError
from fededge.flat import Layout, finite
from fededge.wire import tensors
from fededge.wire.tensors import MODEL, Numbers

__all__ = ["RESIDUE", "Encoding", "compress", "decompress"]

RESIDUE = "residue"
"""Its name in private state, where those of methods have a dot."""

LEVEL = 3
MOST_WINDOW = 1 << 27


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
        self, layout: Layout, model: Tensor, base: Tensor, residue: Tensor | None = None
    ) -> tuple[bytes, Tensor | None]:
        """The update's bytes, and the residue to keep if it is accepted.

        Args:
            model: what the device sends.
            base: the version it was trained from.
            residue: what was kept of the update before.
        """
        if self.exact:
            payload = tensors.encode(layout, {MODEL: model})
            return self._squeezed(payload), None
        wanted = model - base if self.delta else model
        if residue is not None:
            wanted = wanted.add_(residue) if self.delta else wanted + residue
        if not finite(wanted):
            raise EgressError("the update has numbers that are not finite")
        payload = tensors.encode(layout, {MODEL: wanted}, self.numbers)
        arrives = tensors.decode(layout, payload, numbers=self.numbers)[MODEL]
        return self._squeezed(payload), torch.sub(wanted, arrives, out=arrives)

    def unpack(self, layout: Layout, source: bytes | BinaryIO, base: Tensor) -> Tensor:
        """The model that the device sent, as near as the encoding brings it."""
        plain = self.unsqueezed(source, tensors.payload_limit(layout))
        found = tensors.decode(layout, plain, numbers=self.numbers)[MODEL]
        if not self.delta:
            return found
        found += base
        if not finite(found):
            raise WireError("the model that the change leads to is not finite")
        return found

    def unsqueezed(self, source: bytes | BinaryIO, most: int) -> bytes | BinaryIO:
        """What was compressed, at most so many bytes of it; what was not, as it is."""
        if not self.zstd:
            return source
        return decompress(source if isinstance(source, bytes) else source.read(), most)

    def _squeezed(self, payload: bytes) -> bytes:
        return compress(payload) if self.zstd else payload


_ALL = ["delta", "zstd"]


def compress(payload: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=LEVEL).compress(payload)


def decompress(payload: bytes, most: int) -> bytes:
    """At most so many bytes; what claims more, or does not say, is refused unread."""
    try:
        size = zstandard.get_frame_parameters(payload).content_size
        if not 0 <= size <= most:
            raise WireError(f"compressed bytes that claim to be {size}, where {most} can be honest")
        unpacker = zstandard.ZstdDecompressor(max_window_size=MOST_WINDOW)
        return unpacker.decompress(payload, max_output_size=max(1, size), allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError(f"not zstd bytes: {str(error)[:200]}") from None
