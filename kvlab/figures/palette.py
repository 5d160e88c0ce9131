"""One colour, marker and dash for each method everywhere, and one colour for each state of a token.

Hues follow Okabe and Ito (readable with the common colour blindnesses), darkened for the light theme and lightened for
the dark one; methods that share a hue differ in marker and dash.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Theme = Literal["light", "dark"]

HUES: dict[str, tuple[str, str]] = {  # (on light, on dark)
    "ink": ("#1F2430", "#F2F4F8"),
    "grey": ("#6B7280", "#A3ABB8"),
    "blue": ("#0068A8", "#5AB0F0"),
    "sky": ("#2E9BD6", "#93D5FF"),
    "green": ("#00835F", "#35CFA0"),
    "orange": ("#C97700", "#F5B041"),
    "red": ("#C8500A", "#FF8A4C"),
    "purple": ("#A8528F", "#E79BCB"),
    "gold": ("#8A7400", "#E8D44D"),
    "wine": ("#8C1D40", "#FF6F91"),
}
METHODS: dict[str, tuple[str, str, str]] = {  # method: (hue, marker, dash)
    "full": ("ink", "circle", "solid"),
    "packed": ("ink", "diamond", "dash"),
    "window": ("grey", "square", "dash"),
    "streaming-llm": ("sky", "triangle-up", "dot"),
    "h2o": ("orange", "diamond", "solid"),
    "snapkv": ("green", "square", "dash"),
    "pyramidkv": ("green", "triangle-down", "dashdot"),
    "adakv": ("purple", "pentagon", "dash"),
    "pyramidinfer": ("wine", "triangle-left", "dashdot"),
    "cam": ("purple", "hexagon", "dash"),
    "d2o": ("red", "triangle-right", "dash"),
    "less": ("sky", "star", "dashdot"),
    "zsmerge": ("purple", "cross", "solid"),
    "kvmerger": ("red", "x", "solid"),
    "pyramid-pool": ("wine", "hourglass", "solid"),
    "keepkv": ("blue", "circle", "solid"),
    "gvote": ("gold", "star-diamond", "solid"),
    "tova": ("orange", "triangle-up", "dot"),
    "keydiff": ("gold", "diamond", "dash"),
    "lagkv": ("red", "square", "dot"),
    "expected-attention": ("gold", "triangle-up", "dashdot"),
    "criticalkv": ("green", "cross", "dot"),
    "rkv": ("wine", "diamond", "dash"),
    "chunkkv": ("sky", "square", "dash"),
    "simcalkv": ("purple", "triangle-down", "dot"),
    "grkv": ("blue", "x", "dash"),
    "asymkv": ("orange", "hexagon", "dashdot"),
    "kvslimmer": ("gold", "hourglass", "dot"),
    "duoattention": ("grey", "triangle-up", "dashdot"),
    "attention-matching": ("blue", "star", "dash"),
    "kvzip": ("wine", "x", "dot"),
    "kvzap": ("wine", "star", "dash"),
    "kvzap-threshold": ("wine", "star-diamond", "dashdot"),
    "semanticache": ("red", "pentagon", "dashdot"),
    "exactmerge2": ("ink", "star-diamond", "solid"),
    "exactmerge": ("sky", "circle", "solid"),
}
FALLBACK_MARKERS = ("diamond-tall", "bowtie", "octagon", "hexagram", "diamond-wide")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

STATE_COLOURS: dict[str, tuple[str, str]] = {
    "unseen": ("#FFFFFF", "#12151C"),
    "sink": ("#E0A100", "#F2C14E"),
    "recent": ("#56B4E9", "#6BC1F2"),
    "kept": ("#0068A8", "#2F86CC"),
    "pivot": ("#B5338A", "#E673BC"),
    "absorbed": ("#E3B4D2", "#7A3D66"),
    "evicted": ("#C9CDD4", "#3B414D"),
}
STATE_LABELS: dict[str, str] = {
    "unseen": "not yet read",
    "sink": "sink: own slot at the start",
    "recent": "recent: own slot at the end",
    "kept": "kept: own slot in between",
    "pivot": "merged slot: stands for several tokens",
    "absorbed": "absorbed: lives in a merged slot",
    "evicted": "evicted: gone",
}
STATE_NAMES: dict[str, str] = {state: label.split(":")[0] for state, label in STATE_LABELS.items()}
KIND_COLOURS: dict[str, tuple[str, str]] = {
    "evict": HUES["grey"],
    "merge": STATE_COLOURS["pivot"],
    "pool": HUES["gold"],
}
MASS_COLOURS: dict[str, tuple[str, str]] = {
    "kept": STATE_COLOURS["kept"],
    "merged": STATE_COLOURS["pivot"],
    "sag": HUES["red"],
    "regret": HUES["grey"],
}
SURFACES: dict[Theme, str] = {"light": "#FFFFFF", "dark": "#12151C"}

SEQUENTIAL: dict[Theme, list[str]] = {
    "light": ["#F5F8FB", "#C6DDEF", "#86B8DD", "#4289C2", "#115B99", "#06335F"],
    "dark": ["#161B24", "#163A5C", "#1F619A", "#3E90CF", "#85C1EC", "#E3F3FF"],
}
LOSS: dict[Theme, list[str]] = {
    "light": ["#FDF7F2", "#F8D9BF", "#EFAE7C", "#DD7A3A", "#B34A0C", "#6B2A03"],
    "dark": ["#1C1814", "#4C2A14", "#8A481B", "#C96F2C", "#F3A766", "#FFE6CF"],
}
DIVERGING: dict[Theme, list[str]] = {
    "light": ["#7F3B08", "#D98A3D", "#F7E3CB", "#F6F7F9", "#C6DDEF", "#3F8AC4", "#06335F"],
    "dark": ["#FFC48A", "#C96F2C", "#4C2A14", "#171B23", "#163A5C", "#3E90CF", "#CDE9FF"],
}


@dataclass(frozen=True)
class Style:
    """How one run is drawn wherever it appears."""

    colour: str
    marker: str
    dash: str


def pick(pair: tuple[str, str], theme: Theme) -> str:
    """The colour of a (light, dark) pair for the theme."""
    return pair[1] if theme == "dark" else pair[0]


def method_hue(method: str) -> str:
    """The name of the hue that a method has everywhere, one of `HUES`."""
    return (METHODS.get(method) or _fallback(method))[0]


def method_style(method: str, theme: Theme = "light", rank: int = 0) -> Style:
    """The fixed style of a method; `rank` counts further budgets of it: same hue, another dash, fainter."""
    hue, marker, dash = METHODS.get(method) or _fallback(method)
    colour = mix(pick(HUES[hue], theme), SURFACES[theme], min(0.6, 0.28 * rank))
    return Style(colour, marker, DASHES[(DASHES.index(dash) + rank) % len(DASHES)])


def run_styles(runs: Iterable[tuple[str, str]], theme: Theme = "light") -> dict[str, Style]:
    """The style of every run, by label, from (label, method) pairs in the order they are shown."""
    styles: dict[str, Style] = {}
    ranks: dict[str, int] = {}
    for label, method in runs:
        if label not in styles:
            styles[label] = method_style(method, theme, ranks.get(method, 0))
            ranks[method] = ranks.get(method, 0) + 1
    return styles


def _fallback(method: str) -> tuple[str, str, str]:
    """The same style for the same unknown name in every process: from a checksum, not from Python's salted hash."""
    number = zlib.crc32(method.encode())
    hues = [name for name in HUES if name not in ("ink", "grey")]
    return (
        hues[number % len(hues)],
        FALLBACK_MARKERS[number // 7 % len(FALLBACK_MARKERS)],
        DASHES[number // 41 % len(DASHES)],
    )


def mix(colour: str, other: str, share: float) -> str:
    """`colour` moved towards `other` by `share` (0 to 1), both as #RRGGBB."""
    pairs = ((int(colour[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)


def state_scale(theme: Theme) -> list[tuple[float, str]]:
    """A stepped colour scale for heat maps of states: code k of n states takes [k/n, (k+1)/n)."""
    colours = [pick(pair, theme) for pair in STATE_COLOURS.values()]
    count = len(colours)
    return [(edge / count, colour) for index, colour in enumerate(colours) for edge in (index, index + 1)]
