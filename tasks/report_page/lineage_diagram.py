"""Lineage diagram of a report: a box for each step, from the raw files down, and an arrow from each parent."""

import dataclasses
from collections.abc import Iterator, Sequence

_WIDTH = 336
"""Width of the diagram in SVG units, which are about pixels on a phone."""
_TITLE, _LINE, _PADDING, _GAP, _LANE = 26, 17, 8, 30, 16
"""Heights of a title and of a line, space below the lines and between boxes, and between parallel arrows."""
_MAX_NAME, _MAX_VALUE, _MAX_LINES = 27, 16, 6
"""Characters of a name and of a value, and lines, that fit into a box."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineageStep:
    """One step of the lineage, from the raw files, which have no stage, URI and fingerprint, to the report."""

    title: str
    stage: str = ""
    uri: str = ""
    fingerprint: str = ""
    parents: tuple[str, ...] = ()
    """Titles of the steps that it was made from."""
    facts: tuple[tuple[str, str], ...] = ()
    """Names and values: row counts, quarantined rows with reasons, a file's SHA-256; a value may have several lines."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Box:
    """The box of one step, with its position."""

    step: LineageStep
    top: int
    height: int
    lines: tuple[tuple[int, str, str], ...]
    """Baseline, name and value of each line below the title."""

    @property
    def bottom(self) -> int:
        """Vertical position of the lower edge, where the arrow to the next box starts."""
        return self.top + self.height


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diagram:
    """Boxes and arrows in one coordinate system, for the SVG template."""

    width: int
    height: int
    box_width: int
    boxes: tuple[Box, ...]
    arrows: tuple[str, ...]
    """Arrows from parent to child, as the `d` of SVG paths."""
    label: str
    """Text alternative to the diagram."""


def draw(steps: Sequence[LineageStep]) -> Diagram:
    """Lay out the boxes in a column; arrows go straight down to the next box and pass others on the right."""
    boxes: list[Box] = []
    for step in steps:
        boxes.append(_box(step, top=boxes[-1].bottom + _GAP if boxes else 1))
    lanes = _lanes(steps)
    box_width = _WIDTH - 2 - _LANE * (max(lanes.values(), default=-1) + 1)
    return Diagram(
        width=_WIDTH,
        height=boxes[-1].bottom + 1 if boxes else 0,
        box_width=box_width,
        boxes=tuple(boxes),
        arrows=tuple(_arrows(steps, boxes, lanes, box_width)),
        label="Lineage: " + "; ".join(_describe_step(step) for step in steps),
    )


def _box(step: LineageStep, *, top: int) -> Box:
    facts = step.facts[:_MAX_LINES]
    if len(step.facts) > _MAX_LINES:
        facts = (*facts[:-1], (f"and {len(step.facts) - _MAX_LINES + 1} more", ""))
    lines = tuple(
        (top + _TITLE + _LINE * index + 12, _short(name, _MAX_NAME), _short(value, _MAX_VALUE))
        for index, (name, value) in enumerate(facts)
    )
    return Box(step=step, top=top, height=_TITLE + _LINE * len(lines) + _PADDING, lines=lines)


def _short(text: str, limit: int) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _edges(steps: Sequence[LineageStep]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of parent and child for every arrow."""
    numbers = {step.title: number for number, step in enumerate(steps)}
    for child, step in enumerate(steps):
        yield from ((numbers[parent], child) for parent in step.parents)


def _lanes(steps: Sequence[LineageStep]) -> dict[tuple[int, int], int]:
    """Assign each edge that passes a box a lane, from 0, that no overlapping edge uses."""
    lanes: dict[tuple[int, int], int] = {}
    for parent, child in sorted(_edges(steps)):
        if child - parent > 1:
            taken = {lane for (first, last), lane in lanes.items() if first < child and parent < last}
            lanes[parent, child] = next(lane for lane in range(len(lanes) + 1) if lane not in taken)
    return lanes


def _arrows(
    steps: Sequence[LineageStep], boxes: Sequence[Box], lanes: dict[tuple[int, int], int], box_width: int
) -> Iterator[str]:
    arrived = [0] * len(boxes)
    for edge in sorted(_edges(steps)):
        parent, child = boxes[edge[0]], boxes[edge[1]]
        if edge not in lanes:
            yield f"M24 {parent.bottom}V{child.top - 2}"
            continue
        start, end = parent.bottom - _PADDING - 3, child.top + 11 + 10 * arrived[edge[1]]
        arrived[edge[1]] += 1
        reach = _LANE * (lanes[edge] + 1) - 3
        yield f"M{box_width + 1} {start}h{reach - 5}q5 0 5 5V{end - 5}q0 5 -5 5H{box_width + 3}"


def _describe_step(step: LineageStep) -> str:
    return f"{step.title} from {' and '.join(step.parents)}" if step.parents else step.title
