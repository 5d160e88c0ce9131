"""Glossary: the terms of all pages in plain words, the main ones with a short animation. `?term=` chooses one."""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import streamlit as st

from app.base.text import TERMS
from app.base.theme import theme
from app.navigation import page
from app.session.url_state import drop_stale_option, in_url
from kvlab.browser import read_static
from kvlab.views.base import FONT, HUES, INK, STATE_COLOURS, Theme, pick

WIDTH = 320
HEIGHT = 132
CELL = 30
GAP = 6
FLOOR = 92  # y of the foot of bars, above the cells' labels
UNIT = 110.0  # pixels of a share of 100 %
WORDS = ("The", "code", "is", "4", "1", "7", "so", "open")
SCORES = (0.5, 0.42, 0.08, 0.6, 0.34, 0.55, 0.12, 0.2)
EVEN = (0.0, 0.0, 0.0, 0.0)  # logits of four slots that a query likes equally
# probabilities of the next token
FULL_CACHE = (0.7, 0.2, 0.1)
THIS_CACHE = (0.3, 0.5, 0.2)
ATTENTION = (0.40, 0.15, 0.25, 0.08, 0.12)


class Scene(NamedTuple):
    """What an animation says, for those who do not see it, and what draws it."""

    alt_text: str
    draw: Callable[[Theme], str]


SCENES: dict[str, Scene] = {}  # in the order of the page


def scene(term: str, alt_text: str) -> Callable[[Callable[[Theme], str]], Callable[[Theme], str]]:
    """Decorate the function that draws the animation of a term."""

    def register(draw: Callable[[Theme], str]) -> Callable[[Theme], str]:
        SCENES[term] = Scene(alt_text, draw)
        return draw

    return register


def softmax(logits: Sequence[float]) -> list[float]:
    """Shares of attention of slots with these logits."""
    powers = [math.exp(one) for one in logits]
    return [one / sum(powers) for one in powers]


def divergence(full: Sequence[float], other: Sequence[float]) -> float:
    """The KL divergence of `other` from `full` in nats."""
    return sum(one * math.log(one / two) for one, two in zip(full, other, strict=True) if one)


APART = softmax(EVEN)  # four tokens in four slots
MERGED = softmax(EVEN[:3])  # two of them in one slot, without log mass
WEIGHTED = softmax((math.log(2), 0.0, 0.0))  # with the log mass of two tokens
SAG = APART[0] + APART[1] - MERGED[0]


def svg(term: str, theme: Theme, plays: bool = True) -> str:
    """The animation of one of `SCENES`, or a picture of its end."""
    scene = SCENES[term]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{html.escape(scene.alt_text)}" class="scene {theme}{"" if plays else " still"}" '
        f'style="color:{INK[theme]};font-family:{html.escape(FONT)}"><style>{read_static("glossary.css")}</style>'
        f"{scene.draw(theme)}</svg>"
    )


def _cell(place: int, word: str, colour: str, look: str = "", **by: float | str) -> str:
    """A slot with its word in the row at the foot of the bars."""
    x = 16 + place * (CELL + GAP)
    return (
        f'<g class="{look}"{_by(by)}><rect x="{x}" y="{FLOOR + 4}" width="{CELL}" height="24" rx="4" fill="{colour}"/>'
        f'<text x="{x + CELL / 2}" y="{FLOOR + 20}" class="in">{word}</text></g>'
    )


def _bar(place: int, share: float, colour: str, look: str = "", **by: float | str) -> str:
    """A bar of a share above a slot; `before` is its height at the beginning, relative to the end's."""
    x = 16 + place * (CELL + GAP) + 5
    height = UNIT * share
    return (
        f'<rect x="{x}" y="{FLOOR - height:.1f}" width="{CELL - 10}" height="{height:.1f}" fill="{colour}" '
        f'class="{look}"{_by(by)}/>'
    )


def _words(x: float, y: float, words: str, look: str = "") -> str:
    return f'<text x="{x}" y="{y}" class="{look}">{html.escape(words)}</text>'


def _by(properties: Mapping[str, float | str]) -> str:
    styles = ";".join(f"--{name}:{value}" for name, value in properties.items())
    return f' style="{styles}"' if styles else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _hues(theme: Theme) -> tuple[str, str, str, str]:
    """Colours of a kept slot, a merged one, attention, and what is lost."""
    kept, merged = (pick(STATE_COLOURS[name], theme) for name in ("kept", "pivot"))
    return kept, merged, pick(HUES["purple"], theme), pick(HUES["red"], theme)


@scene(
    "eviction",
    "Eight slots with bars for their scores; the three with the lowest scores fade away.",
)
def _eviction(theme: Theme) -> str:
    kept, _, attention, _ = _hues(theme)
    leaves = sorted(range(len(SCORES)), key=SCORES.__getitem__)[:3]
    parts = []
    for place, (word, score) in enumerate(zip(WORDS, SCORES, strict=True)):
        look = "leave" if place in leaves else ""
        parts += [_bar(place, score, attention, look), _cell(place, word, kept, look)]
    return (
        "".join(parts) + _words(16, 16, "scores of slots", "quiet") + _words(304, 16, "the lowest leave", "end after")
    )


@scene(
    "merging",
    "The slot of the token 1 slides into that of the token 4. The bar of attention grows to the sum of both, and "
    "the arrow of the key turns to the direction between both keys.",
)
def _merging(theme: Theme) -> str:
    kept, merged, attention, _ = _hues(theme)
    # The key of the slot turns towards the key that joins it: two keys of equal weight give the direction between them.
    arrow = '<line x1="{x}" y1="62" x2="{x}" y2="26" class="key {look}" style="--from:{start}deg;--to:{end}deg"/>'
    return (
        arrow.format(x=103, look="turn", start=-50, end=-10)
        + arrow.format(x=175, look="tilt fade", start=30, end=30)
        + _bar(2, 0.5 * 0.42, attention, "grow", start=0.5)
        + _bar(4, 0.21 / 2, attention, "fade")
        + _cell(2, "4 1", merged, "after")
        + _cell(2, "4", kept, "before")
        + _cell(4, "1", kept, "slide", by=f"{-2 * (CELL + GAP)}px")
        + _words(16, 16, "keys", "quiet")
        + _words(16, 84, "attention", "quiet")
        + _words(304, 16, "one slot with both", "end after")
    )


@scene(
    "vote",
    "Two tokens slide into a slot, one after the other; its count rises from 1 to 2 and 3.",
)
def _votes(theme: Theme) -> str:
    kept, merged, *_ = _hues(theme)
    counts = "".join(
        _words(172, 62, f"{count} vote{'s' if count > 1 else ''}", f"big step{count}") for count in (1, 2, 3)
    )
    return (
        _cell(4, "4", merged)
        + _cell(5, "1", kept, "slide", by=f"{-(CELL + GAP)}px")
        + _cell(6, "7", kept, "slide late", by=f"{-2 * (CELL + GAP)}px")
        + counts
        + _words(16, 16, "tokens that one slot stands for", "quiet")
    )


@scene(
    "log mass",
    f"Of three equal slots, one with two tokens gets {_percent(MERGED[0])} of the attention. With log mass log 2, "
    f"it gets {_percent(WEIGHTED[0])}, as its two tokens had apart.",
)
def _log_mass(theme: Theme) -> str:
    kept, merged, attention, _ = _hues(theme)
    weights = WEIGHTED[0]
    others = WEIGHTED[1]
    return (
        _bar(1, weights, attention, "grow", start=f"{MERGED[0] / weights:.4f}")
        + _cell(1, "4 1", merged)
        + "".join(
            _bar(place, others, attention, "grow", start=f"{MERGED[1] / others:.4f}") + _cell(place, word, kept)
            for place, word in ((3, "7"), (5, "so"))
        )
        + _words(16, 16, f"two tokens in one slot: {_percent(MERGED[0])}", "before")
        + _words(16, 16, f"with log mass log 2: {_percent(weights)}, as both had apart", "after")
    )


@scene(
    "sag",
    f"Two tokens have {_percent(2 * APART[0])} of the attention apart; their merged slot has "
    f"{_percent(MERGED[0])}. A dashed box shows the sag of {_percent(SAG)}.",
)
def _sag(theme: Theme) -> str:
    kept, merged, attention, lost = _hues(theme)
    gap = SAG * UNIT
    top = FLOOR - UNIT * (MERGED[0] + SAG)
    start = f"{APART[2] / MERGED[1]:.4f}"
    return (
        _bar(1, MERGED[0], attention, "after")
        + _bar(1, APART[0], attention, "before")
        + _bar(2, APART[1], attention, "before")
        + f'<rect x="57" y="{top:.1f}" width="20" height="{gap:.1f}" stroke="{lost}" class="gap after"/>'
        + _cell(1, "4 1", merged, "after")
        + _cell(1, "4", kept, "before")
        + _cell(2, "1", kept, "before")
        + "".join(
            _bar(place, MERGED[1], attention, "grow", start=start) + _cell(place, word, kept)
            for place, word in ((4, "7"), (6, "so"))
        )
        + _words(16, 16, f"apart: {_percent(APART[0])} + {_percent(APART[1])} = {_percent(2 * APART[0])}", "before")
        + _words(16, 16, f"merged: {_percent(MERGED[0])}, so sag is {_percent(SAG)}", "after")
    )


@scene(
    "regret",
    "Bars of the attention on five tokens with nothing dropped. Two are dropped; their attention is the regret.",
)
def _regret(theme: Theme) -> str:
    kept, _, attention, lost = _hues(theme)
    gone = (1, 4)
    parts = []
    for place, share in enumerate(ATTENTION):
        look = "leave" if place in gone else ""
        colour = lost if place in gone else attention
        parts += [_bar(place, share * 1.4, colour), _cell(place, WORDS[place + 1], kept, look)]
    total = _percent(sum(ATTENTION[place] for place in gone))
    return (
        "".join(parts)
        + _words(16, 16, "attention with nothing dropped", "quiet")
        + _words(206, 62, "dropped tokens", "after")
        + _words(206, 80, f"had {total}: regret", "after")
    )


@scene(
    "KL",
    "Bars of the probabilities of three next tokens, of the full cache and of this cache. First they are equal and "
    f"KL is 0; as they differ, KL rises to {divergence(FULL_CACHE, THIS_CACHE):.2f} nats.",
)
def _kl(theme: Theme) -> str:
    kept, merged, *_ = _hues(theme)
    parts = []
    for place, (full, other, word) in enumerate(zip(FULL_CACHE, THIS_CACHE, ("“7”", "“4”", "“1”"), strict=True)):
        x = 24 + 66 * place
        for offset, share, colour, look, by in (
            (0, full, kept, "", {}),
            (22, other, merged, "grow", {"start": f"{full / other:.4f}"}),
        ):
            height = 0.85 * UNIT * share
            parts.append(
                f'<rect x="{x + offset}" y="{FLOOR + 8 - height:.1f}" width="20" height="{height:.1f}" fill="{colour}" '
                f'class="{look}"{_by(by)}/>'
            )
        parts.append(_words(x + 21, FLOOR + 26, word, "middle"))
    found = f"KL {divergence(FULL_CACHE, THIS_CACHE):.2f} nats"
    return (
        "".join(parts)
        + _words(16, 14, "next token:  left full cache, right this cache", "quiet")
        + _words(304, 60, "KL 0: the same", "end before")
        + _words(304, 60, found, "end after")
    )


@scene(
    "budget",
    "Of eight tokens that were read, a budget of 50 % leaves four slots.",
)
def _budget(theme: Theme) -> str:
    kept, *_ = _hues(theme)
    keep = sorted(sorted(range(len(SCORES)), key=SCORES.__getitem__)[4:])
    cells = [_cell(place, word, kept, "" if place in keep else "leave") for place, word in enumerate(WORDS)]
    return (
        "".join(cells)
        + _words(16, 50, f"{len(WORDS)} tokens read", "quiet before")
        + _words(16, 50, f"budget 50 %: {len(keep)} of {len(WORDS)} slots stay", "after")
    )


@scene(
    "sink",
    "Two queries in turn: the first token has the tallest bar of attention with both.",
)
def _sink(theme: Theme) -> str:
    kept, _, attention, _ = _hues(theme)
    first = (0.55, 0.1, 0.2, 0.05, 0.1)
    then = (0.5, 0.05, 0.08, 0.25, 0.12)
    bars = [
        _bar(place, end * 1.2, attention, "grow", start=f"{start / end:.4f}")
        for place, (start, end) in enumerate(zip(first, then, strict=True))
    ]
    cells = [_cell(place, word, kept) for place, word in enumerate(WORDS[:5])]
    return (
        "".join([*bars, *cells])
        + _words(206, 36, "one query", "before")
        + _words(206, 36, "another query", "after")
        + _words(206, 56, "the first token", "")
        + _words(206, 72, "always gets much", "")
    )


@scene(
    "recent window",
    "A frame around the last three tokens moves on as two new ones arrive.",
)
def _recent_window(theme: Theme) -> str:
    kept, merged, *_ = _hues(theme)
    cells = [_cell(place, word, kept, "arrive" if place > 5 else "") for place, word in enumerate(WORDS)]
    frame = f'<rect x="{13 + 5 * (CELL + GAP)}" y="{FLOOR}" width="{3 * (CELL + GAP)}" height="32" rx="6" '
    return (
        "".join(cells)
        + f'{frame}stroke="{merged}" class="gap slide back" style="--by:{-2 * (CELL + GAP)}px"/>'
        + _words(16, 50, "the last three tokens stay, whatever their scores", "quiet")
    )


@scene(
    "heavy hitter",
    "Bars of summed attention grow; one token's is the tallest, and it is kept.",
)
def _heavy_hitter(theme: Theme) -> str:
    kept, merged, attention, _ = _hues(theme)
    sums = (0.12, 0.75, 0.1, 0.2, 0.08)
    return (
        "".join(_bar(place, share, attention, "grow", start=0.15) for place, share in enumerate(sums))
        + "".join(_cell(place, word, merged if place == 1 else kept) for place, word in enumerate(WORDS[:5]))
        + _words(206, 36, "attention of all", "quiet")
        + _words(206, 52, "queries, summed", "quiet")
        + _words(206, 76, "the largest sum stays", "after")
    )


@scene(
    "pooling",
    "Three neighbouring tokens in a window slide together into one slot, their mean.",
)
def _pooling(theme: Theme) -> str:
    kept, merged, *_ = _hues(theme)
    sides = [_cell(place, WORDS[place], kept) for place in (0, 1, 2, 6, 7)]
    window = [_cell(3, "4", kept, "slide", by=f"{CELL + GAP}px"), _cell(5, "7", kept, "slide", by=f"{-(CELL + GAP)}px")]
    return (
        "".join([*sides, *window])
        + _cell(4, "mean", merged, "after")
        + _cell(4, "1", kept, "before")
        + _words(16, 50, "neighbours in one window", "quiet before")
        + _words(16, 50, "one slot: their mean", "after")
    )


EVERY = "all terms"
PER_ROW = 2


def glossary_page() -> None:
    page.heading("Glossary", "The terms of the pages in plain words. The animations repeat every five seconds.")
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    with left:
        term = st.selectbox("Term", [EVERY, *TERMS], **in_url("term"))
    drop_stale_option("play", (True, False))  # the timeline has a choice of this name
    with right:
        plays = st.toggle("Play the animations", value=True, **in_url("play"))
    if term != EVERY:
        card(term, plays)
        return
    scenes = list(SCENES)
    for start in range(0, len(scenes), PER_ROW):
        for column, name in zip(st.columns(PER_ROW, gap="medium"), scenes[start : start + PER_ROW], strict=False):
            with column:
                card(name, plays)
    st.header("More terms")
    for name, words in TERMS.items():
        if name not in SCENES:
            st.markdown(f"**{name}**: {words}")


def card(term: str, plays: bool) -> None:
    """A term with its animation, if it has one, and its meaning."""
    with st.container(border=True, key=f"glossary-{term.replace(' ', '-')}"):
        st.markdown(f"**{term}**")
        if term in SCENES:
            st.image(svg(term, theme(), plays), width="stretch", alt=SCENES[term].alt_text)
        st.markdown(TERMS[term])
