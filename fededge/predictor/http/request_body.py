"""Conversion of an HTTP request's body to a predictor's inputs."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np

from fededge.errors import DataError

__all__ = ["KINDS", "MAX_INPUTS", "TooManyError", "UnknownKindError", "inputs_of"]

JSON = "application/json"
KINDS = {
    "image": f"image/png, image/jpeg, application/octet-stream or {JSON}",
    "text": f"text/plain or {JSON}",
}

MAX_INPUTS = 1024
NUMBERS = {
    "image": "an array of whole numbers from 0 to 255, the pixels",
    "text": "a text, a list of texts, or an array of whole numbers, the tokens",
}


class TooManyError(DataError):
    """More inputs than one request may have."""


class UnknownKindError(DataError):
    """The content type of the request is not supported for this model."""


def inputs_of(content: str, data: bytes, kind: Literal["image", "text"]) -> Any:
    """Parse a body of this content type for a model for images or texts."""
    if content == JSON:
        return _array(_parsed(data), kind)
    if kind == "image" and (content.startswith("image/") or content == "application/octet-stream"):
        return data
    if kind == "text" and content == "text/plain":
        return _decoded(data)
    raise UnknownKindError(f"the content type {content} is not supported; send {KINDS[kind]}")


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"the text is not UTF-8 (byte {error.start})") from error


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the body is not JSON ({error})") from error


def _array(value: Any, kind: Literal["image", "text"]) -> Any:
    """Texts unchanged; tokens as an array of int64, pixels as uint8."""
    many = value if isinstance(value, list) else [value]
    if kind == "text" and all(isinstance(text, str) for text in many):
        _check_count(len(many))
        return value
    array = _whole_numbers(value, kind)
    if array.ndim == (4 if kind == "image" else 2):
        _check_count(len(array))
    if kind == "text":
        return array
    if array.size and not 0 <= array.min() <= array.max() <= 255:
        raise DataError(f"the JSON must be {NUMBERS[kind]}")
    return array.astype(np.uint8)


def _whole_numbers(value: Any, kind: Literal["image", "text"]) -> np.ndarray:
    """An int64 array, made via objects: numpy would pad every string to the longest one."""
    array = np.asarray(value, object)
    kinds = set(map(type, array.ravel()))
    if list in kinds:
        raise DataError("the JSON is not a rectangular array")
    try:
        if kinds <= {int}:
            return array.astype(np.int64)
    except OverflowError:  # larger than any token or pixel
        pass
    raise DataError(f"the JSON must be {NUMBERS[kind]}")


def _check_count(count: int) -> None:
    """Bound the inputs: a few bytes of text become a full-size input and a full-size answer."""
    if count > MAX_INPUTS:
        raise TooManyError(f"the request has {count:,} inputs, the limit is {MAX_INPUTS:,}")
