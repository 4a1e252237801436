"""Where the marks of the charts and of the tree go. Geometry only; a template draws them, and escapes what they say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_searcher.report.data import Point, Row, Step

__all__ = ["Chart", "Tree", "progress_chart", "strip_chart", "tree_chart"]

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 72
FAILED_LANE = 22
"""Height of the lane below the axis in which failures are marked."""
_LOG_ABOVE = 12.0
"""Ratio of the largest to the smallest speedup from which the axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A candidate on a chart. `low` and `high` are the ends of its interval; absent for a failure."""

    x: float
    y: float
    action: str
    title: str
    failed: bool
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of speedup over something."""

    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    best_path: str
    one_y: float | None
    """Where the baseline stands."""
    logarithmic: bool
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM
    lane: float = HEIGHT - BOTTOM + FAILED_LANE / 2 + 10


def progress_chart(points: Sequence[Point], steps: Sequence[Step], *, over_tokens: bool) -> Chart:
    """Speedup over evaluations, or over tokens: a mark for each candidate and the best so far as a staircase."""

    def x_of(item: Point | Step) -> int:
        return item.tokens if over_tokens else item.evaluations

    x_max = max([x_of(point) for point in points] + [x_of(step) for step in steps] + [1])
    values = [point.speedup.value for point in points if point.speedup is not None] + [step.speedup for step in steps]
    values = [value for value in values if value > 0 and math.isfinite(value)]
    highest, lowest = max([*values, 1.0]), min([*values, 1.0])
    logarithmic = highest / lowest > _LOG_ABOVE
    bottom, top = HEIGHT - BOTTOM, TOP
    if logarithmic:
        floor, ceiling = math.log10(lowest) - 0.05, math.log10(highest) + 0.08
        ticks = _log_ticks(lowest, highest)
    else:
        step = _nice_step(highest * 1.08, 6)
        floor, ceiling = 0.0, highest * 1.08
        ticks = [step * number for number in range(int(ceiling / step) + 1)]

    def y(value: float) -> float:
        scaled: float = math.log10(max(value, 1e-9)) if logarithmic else value
        return min(bottom, max(top, bottom - (scaled - floor) / (ceiling - floor) * (bottom - top)))

    def x(value: float) -> float:
        return LEFT + value / x_max * (WIDTH - RIGHT - LEFT)

    marks = [
        Mark(
            x=round(x(x_of(point)), 1),
            y=round(y(point.speedup.value) if point.speedup is not None else bottom, 1),
            action=point.action,
            title=_title(point),
            failed=point.speedup is None,
            low=round(y(point.speedup.low), 1) if point.speedup is not None else None,
            high=round(y(point.speedup.high), 1) if point.speedup is not None else None,
        )
        for point in points
    ]
    path = ""
    for number, step_at in enumerate(steps):
        at = f"{x(x_of(step_at)):.1f}"
        path += f"M{at},{y(step_at.speedup):.1f}" if number == 0 else f"H{at}V{y(step_at.speedup):.1f}"
    if steps:
        path += f"H{x(x_max):.1f}"
    x_step = max(1.0, _nice_step(x_max, 6))
    return Chart(
        x_ticks=tuple(Tick(round(x(x_step * n), 1), _short(x_step * n)) for n in range(int(x_max / x_step) + 1)),
        y_ticks=tuple(Tick(round(y(value), 1), f"{value:g}x") for value in ticks),
        marks=tuple(marks),
        best_path=path,
        one_y=round(y(1.0), 1),
        logarithmic=logarithmic,
    )


def _title(point: Point) -> str:
    idea = f": {point.idea}" if point.idea else ""
    return f"{point.candidate_id}, {point.action}{idea} -> {point.outcome}"


def _nice_step(span: float, wanted: int) -> float:
    """A step of 1, 2 or 5 times a power of ten that divides `span` into about `wanted` parts."""
    raw = max(span, 1e-9) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= raw * 0.999)


def _log_ticks(lowest: float, highest: float) -> list[float]:
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in (1.0, 2.0, 5.0)]
    return [tick for tick in ticks if lowest * 0.95 <= tick <= highest * 1.05]


def _short(value: float) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


@dataclass(frozen=True, slots=True)
class Strip:
    """One row of raw samples."""

    name: str
    y: float
    xs: tuple[float, ...]
    median_x: float


@dataclass(frozen=True, slots=True)
class Strips:
    """Raw samples of baseline and candidate on one axis of microseconds."""

    strips: tuple[Strip, ...]
    ticks: tuple[Tick, ...]
    width: int = WIDTH
    height: int = 118
    left: int = 84
    axis_y: int = 88


def strip_chart(samples: Sequence[tuple[str, Sequence[float]]]) -> Strips | None:
    """The samples of each named side; absent where there are none."""
    kept = [(name, [value for value in values if math.isfinite(value) and value > 0][:400]) for name, values in samples]
    kept = [(name, values) for name, values in kept if values]
    if not kept:
        return None
    highest = max(max(values) for _, values in kept) * 1.05
    step = _nice_step(highest, 6)

    def x(value: float) -> float:
        return round(84 + value / highest * (WIDTH - RIGHT - 84), 1)

    strips = tuple(
        Strip(name, 26 + 36 * row, tuple(x(value) for value in values), x(sorted(values)[len(values) // 2]))
        for row, (name, values) in enumerate(kept)
    )
    return Strips(strips, tuple(Tick(x(step * n), f"{step * n:g}") for n in range(int(highest / step) + 1)))


@dataclass(frozen=True, slots=True)
class Node:
    """A candidate in the tree."""

    x: float
    y: float
    id: str
    action: str
    title: str
    label: str
    passed: bool
    best: bool
    on_path: bool


@dataclass(frozen=True, slots=True)
class Edge:
    """From a parent to its child."""

    path: str
    on_path: bool


@dataclass(frozen=True, slots=True)
class Tree:
    """The lineage, left to right."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    width: int
    height: int


def tree_chart(rows: Sequence[Row], ancestry: Sequence[Row], best_id: str | None) -> Tree:
    """A tree with generations from left to right and one line for each leaf."""
    known = {row.id for row in rows}
    children: dict[str | None, list[Row]] = {}
    for row in rows:
        children.setdefault(row.parent_id if row.parent_id in known else None, []).append(row)
    path = {row.id for row in ancestry}
    for siblings in children.values():
        # The line of the best on top, where a long tree is looked at first.
        siblings.sort(key=lambda row: row.id not in path)
    place: dict[str, tuple[int, float]] = {}
    leaf = 0
    # Depth first without recursion: a chain of tunings can be longer than Python's stack.
    todo: list[tuple[Row, int, bool]] = [(row, 0, False) for row in reversed(children.get(None, []))]
    while todo:
        row, depth, expanded = todo.pop()
        below = children.get(row.id, [])
        if not below:
            place[row.id] = (depth, float(leaf))
            leaf += 1
        elif expanded:
            place[row.id] = (depth, (place[below[0].id][1] + place[below[-1].id][1]) / 2)
        else:
            todo.append((row, depth, True))
            todo.extend((child, depth + 1, False) for child in reversed(below))
    deepest = max((depth for depth, _ in place.values()), default=0)
    gap = max(34, min(130, (WIDTH * 1.6 - 160) / max(deepest, 1)))

    def at(id_: str) -> tuple[float, float]:
        depth, line = place[id_]
        return round(24 + depth * gap, 1), round(18 + line * 19, 1)

    nodes = tuple(
        Node(
            *at(row.id),
            id=row.id,
            action=row.action,
            title=f"{row.id}, {row.action}{': ' + row.idea if row.idea else ''} -> {row.outcome}",
            label=f"{row.speedup.value:.2f}x" if row.speedup is not None and (row.id in path) else "",
            passed=row.passed,
            best=row.id == best_id,
            on_path=row.id in path,
        )
        for row in rows
        if row.id in place
    )
    edges: list[Edge] = []
    for row in rows:
        if row.parent_id in place and row.id in place and row.parent_id is not None:
            (x1, y1), (x2, y2) = at(row.parent_id), at(row.id)
            middle = round((x1 + x2) / 2, 1)
            edges.append(Edge(f"M{x1},{y1}C{middle},{y1} {middle},{y2} {x2},{y2}", row.id in path))
    edges.sort(key=lambda edge: edge.on_path)
    return Tree(nodes, tuple(edges), round(24 + deepest * gap + 90), round(18 + max(leaf, 1) * 19 + 8))
