"""Fixed colour, marker and dash per method, and colour per token state, from `palette.toml`."""

import tomllib
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")

_DATA = tomllib.loads(Path(__file__).with_name("palette.toml").read_text(encoding="utf-8"))
HUES: dict[str, tuple[str, str]] = {name: tuple(pair) for name, pair in _DATA["hues"].items()}  # (on light, on dark)
# method: (hue, marker, dash)
METHODS: dict[str, tuple[str, str, str]] = {name: tuple(look) for name, look in _DATA["methods"].items()}
FALLBACK_MARKERS = ("diamond-tall", "bowtie", "octagon", "hexagram", "diamond-wide")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

STATE_COLOURS: dict[str, tuple[str, str]] = {name: tuple(pair) for name, pair in _DATA["states"].items()}
STATE_LABELS: dict[str, str] = _DATA["state_labels"]
STATE_NAMES: dict[str, str] = {state: label.split(":")[0] for state, label in STATE_LABELS.items()}
WALL_FATES: dict[str, tuple[str, str]] = {name: tuple(look) for name, look in _DATA["fates"].items()}
KIND_COLOURS: dict[str, tuple[str, str]] = {
    "evict": HUES["grey"], "merge": STATE_COLOURS["pivot"], "pool": HUES["gold"],
}  # fmt: skip
MASS_COLOURS: dict[str, tuple[str, str]] = {
    "kept": STATE_COLOURS["kept"],
    "merged": STATE_COLOURS["pivot"],
    "sag": HUES["red"],
    "regret": HUES["grey"],
}
# `analysis.attention.autopsy.FATES`: (name, state whose colour it has, pattern)
FATES: dict[str, tuple[str, str, str]] = {
    "kept": ("kept whole", "kept", ""),
    "merged": ("merged with others", "pivot", "x"),
    "dropped": ("dropped", "evicted", ""),
}
# With those of a run with sparse attention.
FATES_WITH_UNREAD = FATES | {"not read": ("held, not read", "sink", "/")}
# Sign and hue of a judged answer.
VERDICTS = {"right": ("✓", "blue"), "nearly": ("≈", "orange"), "wrong": ("✗", "wine"), "unfinished": ("–", "grey")}
SURFACES: dict[Theme, str] = {"light": "#FFFFFF", "dark": "#12151C"}

# Colour scales, from the lowest value to the highest.
SEQUENTIAL: dict[Theme, list[str]] = _DATA["sequential"]
SEQUENTIAL_STOPS: dict[Theme, list[tuple[float, str]]] = {
    theme: [(place * (1 / (len(colours) - 1)), colour) for place, colour in enumerate(colours)]
    for theme, colours in SEQUENTIAL.items()
}
LOSS: dict[Theme, list[str]] = _DATA["loss"]
DIVERGING: dict[Theme, list[str]] = _DATA["diverging"]


@dataclass(frozen=True)
class Style:
    """Style of one run in every figure."""

    colour: str
    marker: str
    dash: str


def pick(pair: tuple[str, str], theme: Theme) -> str:
    """The colour of a (light, dark) pair for the theme."""
    return pair[1] if theme == "dark" else pair[0]


def method_look(method: str) -> tuple[str, str, str]:
    """Hue (one of `HUES`), marker and dash of a method.

    Those of an unknown one are from a checksum, because Python's hash differs between processes.
    """
    if method in METHODS:
        return METHODS[method]
    number = zlib.crc32(method.encode())
    hues = [name for name in HUES if name not in ("ink", "grey")]
    marker = FALLBACK_MARKERS[number // 7 % len(FALLBACK_MARKERS)]
    return hues[number % len(hues)], marker, DASHES[number // 41 % len(DASHES)]


def method_style(method: str, theme: Theme = "light", rank: int = 0, hue: str = "") -> Style:
    """Style of a method; `rank` counts its further budgets: same hue, another dash, nearer to the text's colour.

    `hue` replaces the method's own one.
    """
    usual, marker, dash = method_look(method)
    colour = mix(pick(HUES[hue or usual], theme), pick(HUES["ink"], theme), min(0.5, 0.25 * rank))
    return Style(colour, marker, DASHES[(DASHES.index(dash) + rank) % len(DASHES)])


def run_styles(runs: Iterable[tuple[str, str]], theme: Theme = "light") -> dict[str, Style]:
    """Style of every run, by label, from (label, method) pairs in display order.

    Of methods with one hue the first of the palette has it, the others take free ones; once all are taken, a hue that
    the fewest have, nearer to the text's colour for each. The order of the runs does not matter.
    """
    runs = list(runs)
    methods = {method for _, method in runs}
    ordered = [*(method for method in METHODS if method in methods), *sorted(methods - METHODS.keys())]
    hues: dict[str, str] = {}
    for method in ordered:
        hue, *_ = method_look(method)
        if hue not in hues.values():
            hues[method] = hue
    counts = Counter(hues.values())
    free = [name for name in HUES if name not in ("ink", "grey")]
    ranks: dict[str, int] = {}
    for method in ordered:
        if method not in hues:
            hues[method] = min(free, key=lambda hue: counts[hue])
            ranks[method] = counts[hues[method]]
            counts[hues[method]] += 1
    styles: dict[str, Style] = {}
    for label, method in runs:
        if label not in styles:
            styles[label] = method_style(method, theme, ranks.get(method, 0), hues[method])
            ranks[method] = ranks.get(method, 0) + 1
    return styles


def fate_scale(fate: str, theme: Theme) -> list[tuple[float, str]]:
    """Colour scale for a share of tokens with this fate, from the background to its colour, darker at the end."""
    colour = pick(STATE_COLOURS[FATES_WITH_UNREAD[fate][1]], theme)
    end = mix(colour, pick(HUES["ink"], theme), 0.55)
    return [(0.0, mix(colour, SURFACES[theme], 0.92)), (0.5, colour), (1.0, end)]


def mix(colour: str, other: str, share: float) -> str:
    """`colour` moved towards `other` by `share` (0 to 1), both as #RRGGBB."""
    pairs = ((int(colour[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)


def stepped_scale(pairs: Iterable[tuple[str, str]], theme: Theme) -> list[tuple[float, str]]:
    """Colour scale of equal steps, as for states by code: colour k of n for [k/n, (k+1)/n)."""
    colours = [pick(pair, theme) for pair in pairs]
    return [(edge / len(colours), colour) for place, colour in enumerate(colours) for edge in (place, place + 1)]
