"""Conversion of an app's texts or tokens to a model's tokens, as in training."""

from __future__ import annotations

from typing import Any

import numpy as np

from fededge.errors import DataError
from fededge.inputs.tokens import tokenise

__all__ = ["prepare_texts"]

# Far more than any model's tokens need; the rest would cost time and change nothing.
MAX_CHARACTERS = 1 << 20


def prepare_texts(inputs: Any, length: int, largest: int) -> tuple[np.ndarray, bool]:
    """Return the tokens int64 [N, length], and True if `inputs` was one input, not a batch.

    Args:
        inputs: a text, an array of tokens [length] or [N, length], or a list of texts.
        length: number of tokens that the model takes.
        largest: the largest token.
    """
    if isinstance(inputs, np.ndarray):
        return _checked(inputs, length, largest), inputs.ndim == 1
    single = not isinstance(inputs, list | tuple)
    texts = [inputs] if single else inputs
    for text in texts:
        if not isinstance(text, str):
            raise DataError(
                "this model reads texts: predict takes a str, an array of tokens, or a list of "
                f"str; this is {type(text).__module__}.{type(text).__qualname__}"
            )
    return tokenise([text[:MAX_CHARACTERS] for text in texts], length, largest + 1), single


def _checked(tokens: np.ndarray, length: int, largest: int) -> np.ndarray:
    if tokens.dtype.kind not in "iu" or tokens.ndim not in (1, 2) or tokens.shape[-1] != length:
        raise DataError(
            f"this model takes tokens, integers of shape [{length}] or [N, {length}]; "
            f"this array is {tokens.dtype} of shape {tokens.shape}"
        )
    if tokens.size and not 0 <= tokens.min() <= tokens.max() <= largest:
        raise DataError(f"tokens must be from 0 to {largest}, got {tokens.min()} to {tokens.max()}")
    return np.ascontiguousarray(np.atleast_2d(tokens), np.int64)
