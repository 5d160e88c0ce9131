"""RULER's needles and its chain of assignments."""

from __future__ import annotations

import string
from collections.abc import Sequence
from random import Random
from uuid import UUID

from kvlab.models.mini.words import ADJECTIVES, NAMES
from kvlab.tasks.draft import Draft, Task, drafted, spread
from kvlab.tasks.haystack import hide
from kvlab.tasks.ruler.template import NEEDLE, NIAH, NOISE, VT, Wording, draw_letters, filled_with, sample_of
from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import text_ids


def _draw(random: Random, kind: str) -> str:
    if kind == "numbers":
        return str(random.randint(10**6, 10**7 - 1))
    if kind == "uuids":
        return str(UUID(int=random.getrandbits(128), version=4))
    return f"{random.choice(ADJECTIVES)}-{random.choice(NAMES)}"


def _draw_all(random: Random, kind: str, count: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[_draw(random, kind)] = None
    return list(found)


def niah(
    name: str,
    haystack: str,
    key_kind: str = "words",
    kind: str = "numbers",
    keys: int = 1,
    values: int = 1,
    asked: int = 1,
) -> Task:
    """A needle task of RULER: `haystack` is noise, essay or needle (every line is one)."""
    keys = max(keys, asked)

    def generate(draft: Draft) -> Sample:
        random = draft.random
        names = _draw_all(random, key_kind, keys)
        numbers = _draw_all(random, kind, keys * values)
        facts = [NEEDLE.format(kind=kind, key=names[i // values], value=one) for i, one in enumerate(numbers)]
        chosen = random.sample(range(keys), asked)
        answers = [numbers[one * values + i] for one in chosen for i in range(values)]
        queries = [names[one] for one in chosen]
        query = ", ".join(queries[:-1]) + f", and {queries[-1]}" if asked > 1 else queries[0]
        single = asked * values == 1
        wording = Wording.of(NIAH, single, kind=kind.removesuffix("s") if single else kind, query=query)
        placed = random.sample(facts, len(facts))
        text = _around(draft, wording, haystack, placed, spread(random, len(facts)), (key_kind, kind), names)
        return sample_of(draft, wording, text, answers, 128, "string_match_all", placed)

    return drafted(f"ruler_{name}", f"RULER's {name}, in its own wording", name)(generate)


def _around(
    draft: Draft,
    wording: Wording,
    haystack: str,
    facts: Sequence[str],
    depths: Sequence[float],
    kinds: tuple[str, str],
    taken: Sequence[str],
) -> str:
    """The facts at their depths of a haystack that fills the prompt."""
    if haystack == "essay":
        return draft.filled(lambda window: wording.before + hide(window, facts, depths).strip(), wording.query)
    random = draft.random
    lines = []
    if haystack == "needle":
        names = [key for key in _draw_all(random, kinds[0], draft.length // 4 + len(taken)) if key not in taken]
        lines = [NEEDLE.format(kind=kinds[1], key=key, value=_draw(random, kinds[1])) for key in names]

    def render(count: int) -> str:
        text = lines[:count] if lines else [NOISE] * count
        for depth, fact in zip(reversed(depths), reversed(facts), strict=True):
            text.insert(round(depth * count), fact)
        return wording.before + "\n".join(text)

    return filled_with(draft, wording, render, len(lines) or draft.length // 8)


def vt(draft: Draft, *, hops: int = 4) -> Sample:
    """RULER's vt: a chain of assignments in noise; the score is the share of its variables named."""
    draft.check_range("hops", hops, 1, 100)
    random = draft.random
    names = draw_letters(random, hops + 1, 5, string.ascii_uppercase)
    value = str(random.randint(10_000, 99_999))
    sources = [value, *(f"VAR {name}" for name in names[:-1])]
    facts = [f"VAR {name} = {source}" for name, source in zip(names, sources, strict=True)]
    wording = Wording.of(VT, query=value, count=hops + 1)
    text = _around(draft, wording, "noise", facts, spread(random, len(facts)), ("", ""), ())
    room = len(text_ids(draft.tokenizer, ", ".join(names))) + 4  # RULER has 30, too few for some small vocabularies
    return sample_of(draft, wording, text, names, max(30, room), "string_match_all", facts)
