"""Draw docs/architecture.svg from the import table in tests/test_imports.py.

    python docs/draw_architecture.py

A box is a part of the table. An arrow goes from a part to a part that it imports. An arrow that
follows from two others is left out. Uses the standard library only.
"""

from __future__ import annotations

import ast
import sys
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

__all__ = ["drawing"]

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "architecture.svg"

Table = dict[str, list[str]]

WIDTH, MARGIN, TOP = 1000, 16, 54
BOX_WIDTH, BOX_HEIGHT, ROW_HEIGHT = 146, 28, 68
BOX_GAP, BEND_GAP = BOX_WIDTH + 12, 34
SWEEPS, PULL = 24, 0.3
FOLDERS = {"fededge_server": "server", "fededge_agent": "device_agent"}
LEGEND = [
    ("library", "fededge/: the library"),
    ("server", "server/: the coordinator"),
    ("device_agent", "device_agent/: the agent"),
    ("compiled", "compiled from csrc/"),
]

STYLE = """
  svg { --back: #ffffff; --ink: #1f2328; --line: #8c959f;
    --library: #ddf4ff; --server: #fff1c2; --device_agent: #d9f5dd; --compiled: #eaeef2; }
  @media (prefers-color-scheme: dark) {
    svg { --back: #0d1117; --ink: #e6edf3; --line: #768390;
      --library: #12395c; --server: #5a4206; --device_agent: #17492a; --compiled: #30363d; }
  }
  rect { stroke: var(--line); }
  .back { fill: var(--back); stroke: none; }
  text { font: 12.5px system-ui, sans-serif; fill: var(--ink); }
  .middle { text-anchor: middle; }
  path { fill: none; stroke: var(--line); stroke-width: 1.2; marker-end: url(#tip); }
  marker path { fill: var(--line); stroke: none; marker-end: none; }
  .library { fill: var(--library); } .server { fill: var(--server); }
  .device_agent { fill: var(--device_agent); } .compiled { fill: var(--compiled); }
"""


class Place(NamedTuple):
    """A box of the drawing, or a bend of an arrow on its way through a row."""

    row: int
    name: str
    target: str = ""

    @property
    def gap(self) -> int:
        return BEND_GAP if self.target else BOX_GAP


Arrow = list[Place]


def read_table() -> Table:
    """The parts of the table, each with the parts that it may import."""
    tree = ast.parse((ROOT / "tests" / "test_imports.py").read_text("utf-8"))
    (text,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TABLE"
    ]
    rows = (row.split(":") for row in text.strip().replace("\n    ", " ").splitlines())
    return {name: allowed.split() for name, allowed in rows}


def reduced(table: Table) -> Table:
    """The table without the imports that follow from others."""
    reach: dict[str, set[str]] = {}
    for name, allowed in table.items():
        reach[name] = set(allowed).union(*(reach[other] for other in allowed))
    return {
        name: [other for other in allowed if not any(other in reach[via] for via in allowed)]
        for name, allowed in table.items()
    }


def rows_of(table: Table) -> dict[str, int]:
    """The row of each part, counted from the top: right below the lowest of its importers."""
    rows: dict[str, int] = {}
    for name in reversed(table):
        importers = [other for other, allowed in table.items() if name in allowed]
        rows[name] = 1 + max((rows[other] for other in importers), default=-1)
    return rows


def arrows_of(table: Table, rows: dict[str, int]) -> list[Arrow]:
    """Each import as a chain of places, one in every row that it passes."""
    return [
        [
            Place(rows[name], name),
            *(Place(row, name, other) for row in range(rows[name] + 1, rows[other])),
            Place(rows[other], other),
        ]
        for name, allowed in table.items()
        for other in allowed
    ]


class Layout:
    """Place the boxes: first their order within each row, then their x."""

    def __init__(self, names: dict[str, int], arrows: list[Arrow]) -> None:
        boxes = [Place(row, name) for name, row in names.items()]
        self.places = sorted({*boxes, *(place for arrow in arrows for place in arrow)})
        self.rows = [
            [place for place in self.places if place.row == row]
            for row in range(1 + max(names.values()))
        ]
        self.near: dict[Place, list[Place]] = {place: [] for place in self.places}
        for arrow in arrows:
            for upper, lower in pairwise(arrow):
                self.near[upper].append(lower)
                self.near[lower].append(upper)
        self.x: dict[Place, float] = {}
        for row in self.rows:
            self._stand(row, [WIDTH / 2] * len(row))
        for sweep in range(2 * SWEEPS):
            for row in self.rows if sweep % 2 else reversed(self.rows):
                self._settle(row, again=sweep < SWEEPS)
        self._centre()

    def _centre(self) -> None:
        sides = [x - place.gap / 2 for place, x in self.x.items()]
        sides += [x + place.gap / 2 for place, x in self.x.items()]
        shift = (WIDTH - min(sides) - max(sides)) / 2
        self.x = {place: x + shift for place, x in self.x.items()}

    def _settle(self, row: list[Place], again: bool) -> None:
        """Move a row below and above its neighbours; `again`: the order may change too."""
        wanted = {place: self._mean(place) for place in row}
        if again:
            row.sort(key=lambda place: (wanted[place], place))
        self._stand(row, [wanted[place] for place in row])

    def _mean(self, place: Place) -> float:
        """The middle of a place's neighbours, drawn a little to the middle of the page."""
        near = self.near[place]
        return (sum(self.x[other] for other in near) + PULL * WIDTH / 2) / (len(near) + PULL)

    def _stand(self, row: list[Place], wanted: list[float]) -> None:
        """Put a row where it is wanted as far as the gaps and the margins allow."""
        gaps = [(left.gap + right.gap) / 2 for left, right in pairwise(row)]
        from_left, from_right = wanted[:1], wanted[-1:]
        for goal, gap in zip(wanted[1:], gaps, strict=True):
            from_left.append(max(goal, from_left[-1] + gap))
        for goal, gap in zip(reversed(wanted[:-1]), reversed(gaps), strict=True):
            from_right.append(min(goal, from_right[-1] - gap))
        middle = [(a + b) / 2 for a, b in zip(from_left, reversed(from_right), strict=True)]
        low, high = middle[0] - row[0].gap / 2, middle[-1] + row[-1].gap / 2
        shift = max(MARGIN - low, 0) + min(WIDTH - MARGIN - high, 0)
        self.x.update({place: x + shift for place, x in zip(row, middle, strict=True)})


def label(name: str) -> str:
    """A part as a path of the tree."""
    package, _, rest = name.partition(".")
    return "/".join(filter(None, (FOLDERS.get(package, package), rest)))


def kind(name: str) -> str:
    if name in {"_C", "_cuda", "_sums"}:
        return "compiled"
    return FOLDERS.get(name.partition(".")[0], "library")


def y_of(place: Place) -> float:
    return TOP + place.row * ROW_HEIGHT + BOX_HEIGHT / 2


def curve(arrow: Arrow, x: dict[Place, float]) -> str:
    """A smooth line from the bottom of one box to the top of another."""
    points = [(x[place], y_of(place)) for place in arrow]
    points[0] = points[0][0], points[0][1] + BOX_HEIGHT / 2
    points[-1] = points[-1][0], points[-1][1] - BOX_HEIGHT / 2 - 3
    parts = [f"M{points[0][0]:.0f} {points[0][1]:.0f}"]
    for (x1, y1), (x2, y2) in pairwise(points):
        middle = (y1 + y2) / 2
        parts.append(f"C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}")
    return f'<path d="{" ".join(parts)}"/>'


def box(left: float, top: float, kind_: str, width: int = BOX_WIDTH) -> str:
    size = f'width="{width}" height="{BOX_HEIGHT}"'
    return f'<rect x="{left:.0f}" y="{top:.0f}" {size} rx="5" class="{kind_}"/>'


def named_box(place: Place, x: float) -> str:
    frame = box(x - BOX_WIDTH / 2, y_of(place) - BOX_HEIGHT / 2, kind(place.name))
    text = f'<text x="{x:.0f}" y="{y_of(place) + 4:.0f}" class="middle">'
    return f"{frame}{text}{escape(label(place.name))}</text>"


def legend() -> list[str]:
    step = (WIDTH - 2 * MARGIN) // len(LEGEND)
    return [
        box(MARGIN + index * step, 12, kind_, width=BOX_HEIGHT)
        + f'<text x="{MARGIN + index * step + BOX_HEIGHT + 8}" y="30">{text}</text>'
        for index, (kind_, text) in enumerate(LEGEND)
    ]


def drawing() -> str:
    """The whole file."""
    table = reduced(read_table())
    rows = rows_of(table)
    arrows = arrows_of(table, rows)
    layout = Layout(rows, arrows)
    height = TOP + len(layout.rows) * ROW_HEIGHT - (ROW_HEIGHT - BOX_HEIGHT) + MARGIN
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    tip = "M0 0L8 4L0 8z"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        "<title>The parts of FedEdge: an arrow goes from a part to one that it imports</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="{tip}"/></marker></defs>',
        f'<rect class="back" width="{WIDTH}" height="{height}" rx="8"/>',
        *legend(),
        *(curve(arrow, layout.x) for arrow in arrows),
        *(named_box(place, layout.x[place]) for place in layout.places if not place.target),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(drawing(), "utf-8")
    sys.stdout.write(f"wrote {TARGET.relative_to(ROOT)}\n")
