"""Check the links of the Markdown pages: each file exists, and each `#anchor` is a heading there.

    python docs/check_links.py

Links to other sites are not followed. Uses the standard library only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["anchors", "broken_links", "pages"]

ROOT = Path(__file__).resolve().parents[1]
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)")
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
ELSEWHERE = ("http://", "https://", "mailto:")


def pages(root: Path = ROOT) -> list[Path]:
    return sorted([*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("examples/*.md")])


def broken_links(page: Path) -> Iterator[str]:
    """A sentence about each link of a page that leads nowhere."""
    for link in LINK.findall(CODE.sub("", page.read_text("utf-8"))):
        if link.startswith(ELSEWHERE):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists():
            yield f"{page.name}: there is no file '{name}'"
        elif anchor and anchor not in anchors(target):
            yield f"{page.name}: {target.name} has no heading for '#{anchor}'"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, by GitHub's rule; a repeated one gets a number."""
    found: dict[str, int] = {}
    for heading in HEADING.findall(_without_blocks(page.read_text("utf-8"))):
        name = re.sub(r"[^\w\- ]", "", _plain(heading).lower()).replace(" ", "-")
        count = found[name] = found.get(name, -1) + 1
        if count:
            found[f"{name}-{count}"] = 0
    return set(found)


def _without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def _plain(heading: str) -> str:
    """A heading without its links' targets."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)


def main() -> int:
    broken = [sentence for page in pages() for sentence in broken_links(page)]
    sys.stderr.write("".join(f"{sentence}\n" for sentence in broken))
    return min(len(broken), 1)


if __name__ == "__main__":
    sys.exit(main())
