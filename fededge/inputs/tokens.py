"""Hashed tokens of texts: the same on every device and in every language, without a word list.

A word is a run of characters that are neither ASCII controls, white space nor ASCII punctuation, in
lower case. Its token is 1 + FNV-1a(its UTF-8 bytes) mod (vocabulary - 1), with the 32-bit FNV-1a
hash. Short texts are padded with 0, long ones are truncated. Devices need to agree on two numbers
only; in return, some words share a token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from fededge.errors import ConfigError

__all__ = ["fnv1a", "tokenise"]

WORD = re.compile(r"[^\x00-/:-@\[-`{-\x7f]+")


def tokenise(texts: Sequence[str], length: int, vocabulary: int) -> np.ndarray:
    """Tokens int64 [N, length] from 1 to `vocabulary` - 1, padded with 0."""
    if length < 1 or vocabulary < 2:
        raise ConfigError(
            f"texts need a length of at least 1 and a vocabulary of at least 2 (padding and a "
            f"word), got {length} and {vocabulary}"
        )
    known: dict[str, int] = {}
    tokens = np.zeros((len(texts), length), np.int64)
    for row, text in zip(tokens, texts, strict=True):
        words = WORD.findall(text.lower())[:length]
        for word in words:
            if word not in known:
                known[word] = 1 + fnv1a(word.encode(errors="replace")) % (vocabulary - 1)
        row[: len(words)] = [known[word] for word in words]
    return tokens


def fnv1a(data: bytes) -> int:
    """The 32-bit FNV-1a hash, which fastText uses for its buckets too."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value
