"""Escaping of text from outside before a person reads it, against terminal and log injection.

Letters, digits and signs of every script pass. Control, format, private-use and separator
characters and lone surrogates are escaped: terminals obey them, and readers do not see them.
"""

from __future__ import annotations

import re

__all__ = ["LINE", "MAX_TEXT", "SCALAR_NAME", "plain"]

MAX_TEXT = 2000
"""Longest text from outside, in characters."""

# A fixed list: Python's own categories change with its version, and text that one machine has
# escaped must pass the schema of another.
_HIDDEN = (
    r"\x00-\x1f\x7f-\x9f\xad"  # controls, the soft hyphen
    r"\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"  # format characters of scripts
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero width, separators, bidirectional, invisible
    r"\ud800-\uf8ff"  # surrogates, private use
    r"\ufeff\ufff0-\ufffb\ufffe\uffff"  # the byte order mark, annotations, noncharacters
    r"\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e00ff\U000e01f0-\U0010ffff"  # tags, private use
)
_ODD = re.compile(f"[{_HIDDEN}]")

LINE = rf"^[^{_HIDDEN}]*\Z"
"""Pattern, for message schemas, of text that `plain` leaves unchanged."""

SCALAR_NAME = "[a-z][a-z0-9_]{0,39}"
"""Pattern of the name of a scalar that a device reports."""


def plain(text: str, most: int = MAX_TEXT) -> str:
    """Return the text as one line of at most `most` characters, with hidden characters escaped.

    The function is idempotent: escaped text comes back unchanged.
    """
    clean = _ODD.sub(_escaped, text[: most + 1])
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
