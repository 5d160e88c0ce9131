"""Labels next to the points of a scatter plot that do not cover each other or a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# pixels: height of a label, and width of a character at size 12
LINE = 16.0
CHARACTER = 6.7
# pixels: half a marker, and its distance from its label
POINT = 7.0
GAP = 5.0
ROWS = 12  # offsets that are tried above and below a point


@dataclass(frozen=True)
class Label:
    """A label: its anchor relative to its point in pixels (right and down), and the edge of it that the anchor is.

    `leads` is whether it is so far that a line to the point is needed.
    """

    across: float
    down: float
    anchor: Literal["left", "center", "right"]
    width: float
    leads: bool = False

    def box(self, point: tuple[float, float]) -> tuple[float, float, float, float]:
        """Left, top, right and bottom in pixels, for a point at (x, y) from the top left."""
        left = point[0] + self.across - {"left": 0.0, "center": 0.5, "right": 1.0}[self.anchor] * self.width
        top = point[1] + self.down - LINE / 2
        return left, top, left + self.width, top + LINE


def place_labels(
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    size: tuple[float, float],
    bars: Sequence[tuple[float, float, float, float]] = (),
) -> list[Label]:
    """A label per point (pixels from the top left of a plot of `size`), each as near to its point as is free.

    A label that finds no free place within the plot lies where it covers least. `bars` are further boxes to avoid.
    """
    taken = [*((x - POINT, y - POINT, x + POINT, y + POINT) for x, y in points), *bars]
    placed: list[Label | None] = [None] * len(points)
    # From top to bottom, so that the labels of points on one spot form a list in their order.
    for index in sorted(range(len(points)), key=lambda index: (points[index][1], index)):
        width = CHARACTER * len(texts[index]) + 4
        found = [(_cost(label, points[index], taken, size), label) for label in _candidates(width)]
        label = min(found, key=lambda pair: pair[0])[1]
        placed[index] = label
        taken.append(label.box(points[index]))
    return [label for label in placed if label is not None]


def overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> float:
    """Area that two boxes (left, top, right, bottom) share."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0.0) * max(height, 0.0)


def _candidates(width: float) -> list[Label]:
    near = POINT + GAP
    found = [Label(near, 0.0, "left", width), Label(-near, 0.0, "right", width)]
    found += [Label(0.0, row * (LINE + 1), "center", width) for row in (-1, 1)]
    for row in range(1, ROWS + 1):
        for sign in (-1, 1):
            found += [
                Label(near + 8, sign * row * LINE, "left", width, leads=True),
                Label(-near - 8, sign * row * LINE, "right", width, leads=True),
            ]
    return found


def _cost(
    label: Label,
    point: tuple[float, float],
    taken: Sequence[tuple[float, float, float, float]],
    size: tuple[float, float],
) -> float:
    """Covered area, which outweighs the distance."""
    box = label.box(point)
    area = (box[2] - box[0]) * (box[3] - box[1])
    outside = area - overlap(box, (0.0, 0.0, *size))
    covered = sum(overlap(box, other) for other in taken)
    return 1000 * (covered + outside) + abs(label.down) + abs(label.across) / 10 + (LINE if label.leads else 0.0)
