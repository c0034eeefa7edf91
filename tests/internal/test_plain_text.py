"""Text from outside: control and invisible characters become visible escapes."""

from __future__ import annotations

import ast
import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fededge._internal.plain_text import LINE, MAX_TEXT, plain
from fededge.errors import WireError

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
"""Unicode's own categories: control, format, surrogate, private use, line, paragraph."""

ANY = st.text(st.characters(), max_size=200)
"""All of Unicode, lone surrogates too."""


def test_every_character_of_unicode_passes_or_is_escaped_by_its_category() -> None:
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        category = unicodedata.category(character)
        if category in HIDDEN:
            escaped = plain(character)
            assert re.fullmatch(r"\\([nrt]|x\w\w|u\w{4}|U\w{8})", escaped), hex(number)
            assert ast.literal_eval(f"'{escaped}'") == character
        elif category != "Cn":
            assert plain(character) == character, hex(number)


@given(ANY)
def test_the_result_is_one_visible_line(text: str) -> None:
    out = plain(text)
    assert not {unicodedata.category(character) for character in out} & HIDDEN
    assert len(out.splitlines()) <= 1
    assert len(out) <= MAX_TEXT
    out.encode()


@given(ANY, st.integers(1, 50))
def test_it_is_bounded_and_says_where_it_was_cut(text: str, most: int) -> None:
    out, whole = plain(text, most), plain(text)
    assert len(out) <= most
    assert out == whole or (out.endswith("…") and whole.startswith(out[:-1]))


@given(ANY)
def test_plain_text_is_unchanged_and_fits_the_schema(text: str) -> None:
    out = plain(text)
    assert plain(out) == out
    assert re.search(LINE, out)
    assert bool(re.search(LINE, text)) == (out == text)


@given(ANY)
def test_an_error_about_bytes_from_outside_is_plain(text: str) -> None:
    said = str(WireError(f"not a tensor: '{text}'"))
    assert plain(said) == said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Füße 猫 ❤️ קו", "Füße 猫 ❤️ קו"),
        ("\x1b[2J\x1b]0;owned\x07", r"\x1b[2J\x1b]0;owned\x07"),
        ("ready\n12:00:00 I coordinator: done", r"ready\n12:00:00 I coordinator: done"),
        ("txt.\u202egpj", r"txt.\u202egpj"),
        ("a\u2028b\u2066c\u200bd\ufeff", r"a\u2028b\u2066c\u200bd\ufeff"),
        ("\ud800\U000e0041\x9b1m", r"\ud800\U000e0041\x9b1m"),
    ],
)
def test_examples(text: str, shown: str) -> None:
    assert plain(text) == shown
