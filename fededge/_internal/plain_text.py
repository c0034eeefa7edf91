"""Text from outside, for a person to read: it cannot move a cursor, hide, reorder or begin lines.

Letters, digits and signs of every script pass. Control, format, private-use and separator
characters and lone surrogates do not: a terminal obeys them, and a reader does not see them.
"""

from __future__ import annotations

import re

__all__ = ["LINE", "MOST", "plain"]

MOST = 2000
"""Characters of a text from outside."""

# A list, not Python's own categories: they grow with its version, and a text that one machine has
# cleaned must be one that the schema of another takes.
_HIDDEN = (
    r"\x00-\x1f\x7f-\x9f\xad"  # controls, the soft hyphen
    r"\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"  # format characters of scripts
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero width, separators, bidirectional, invisible
    r"\ud800-\uf8ff"  # surrogates, private use
    r"\ufeff\ufff0-\ufffb\ufffe\uffff"  # the byte order mark, annotations, no characters
    r"\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e00ff\U000e01f0-\U0010ffff"  # tags, private use
)
_ODD = re.compile(f"[{_HIDDEN}]")

LINE = rf"^[^{_HIDDEN}]*\Z"
"""A schema's pattern of what `plain` leaves as it is."""


def plain(text: str, most: int = MOST) -> str:
    """The text as one line of at most `most` characters; what does not pass is shown escaped.

    A line that is plain already comes back unchanged.
    """
    clean = _ODD.sub(_escaped, text[: most + 1])
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
