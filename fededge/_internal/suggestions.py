"""Error text for an unknown name: the closest known name, and all known names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["unknown"]


def unknown(kind: str, name: str, allowed: Iterable[str]) -> str:
    """`no network 'lenett'; did you mean 'lenet'? (known: lenet, mlpnet, tfcnn)`."""
    known = sorted(allowed)
    by_lower = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    guess = f"; did you mean {by_lower[close[0]]!r}?" if close else ""
    return f"no {kind} {name!r}{guess} (known: {', '.join(known)})"
