"""Scorecard of the papers' claims: how many hold, fail or are open on each model, and claim by claim."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from kvlab.atlas.exhibit import Drawn, Exhibit, Needs
from kvlab.atlas.registry import EXHIBITS, PAPERS
from kvlab.common.formatting import model_title, prompts
from kvlab.results.shipped_folder import model_order
from kvlab.results.verdict import FAILS, HOLDS, LEAST_PROMPTS, OPEN, Claim, Verdict

VERDICTS: tuple[Verdict, ...] = (HOLDS, FAILS, OPEN)
SHAPES = "the papers' shapes"  # what benchmarks time and calculators compute, in place of a model
Lines = dict[str, dict[Verdict, list[tuple[Exhibit, Claim]]]]


@dataclass(frozen=True)
class Judged:
    """A claim with the model whose data decides it."""

    model: str
    claim: Claim


def lines(judged: Iterable[tuple[Exhibit, Iterable[Claim]]]) -> Lines:
    """One model's claims of every paper by verdict, each with its deciding exhibit.

    A claim shown by several exhibits of a paper counts once: at the exhibit made for it, else at the first.
    """
    found: Lines = {paper: {verdict: [] for verdict in VERDICTS} for paper in PAPERS}
    seen: set[tuple[str, str]] = set()
    shown = [(exhibit, claim) for exhibit, claims in judged for claim in claims]
    for exhibit, claim in sorted(shown, key=lambda one: bool(one[1].judged_at)):
        if (exhibit.paper, claim.paper) not in seen:
            seen.add((exhibit.paper, claim.paper))
            found[exhibit.paper][claim.verdict].append((exhibit, claim))
    return found


def by_model(judged: Iterable[tuple[Exhibit, Iterable[Judged]]], models: Collection[str] = ()) -> dict[str, Lines]:
    """`lines` of every model, those of `models` also without a claim: in `model_order`, what benchmarks time last."""
    shown = [(exhibit, tuple(claims)) for exhibit, claims in judged]
    names = {*models, *(one.model for _, claims in shown for one in claims)}
    return {
        name: lines((exhibit, [one.claim for one in claims if one.model == name]) for exhibit, claims in shown)
        for name in sorted(names, key=lambda name: (name == SHAPES, *model_order(name)))
    }


def counts(found: Lines) -> pd.DataFrame:
    """One row per paper: paper, title, and the numbers of claims that `holds`, `fails` and are `open`."""
    rows = [(paper, title, *(len(found[paper][verdict]) for verdict in VERDICTS)) for paper, title in PAPERS.items()]
    return pd.DataFrame(rows, columns=["paper", "title", "holds", "fails", "open"])


def verdicts_on_each(judged: Iterable[Judged], claim: str) -> str:
    """The verdicts on a paper's claim in one line, such as `holds on mini, does not hold on SmolLM2`.

    An undecided one says where prompts are too few. "" unless two models were judged.
    """
    found: dict[str, Claim] = {}
    for one in judged:
        if one.claim.paper == claim and one.model != SHAPES:
            found.setdefault(one.model, one.claim)
    if len(found) < 2:
        return ""
    return ", ".join(_verdict_on(model, found[model]) for model in sorted(found, key=model_order))


def _verdict_on(model: str, claim: Claim) -> str:
    if claim.verdict != OPEN:
        return f"{claim.verdict} on {model_title(model)}"
    count = claim.interval.n if claim.interval is not None else claim.basis.prompts
    few = f" ({prompts(count)}; a verdict needs {LEAST_PROMPTS})" if 0 < count < LEAST_PROMPTS else ""
    return f"undecided on {model_title(model)}{few}"


def claims_by_model(found: Mapping[str, Lines]) -> pd.DataFrame:
    """One row per claim: paper, exhibit (where it is judged), claim, and for every model its verdict, number of prompts
    and finding, as `mini`, `mini, n` and `mini, finding`. Verdicts of several models are never combined."""
    rows: dict[tuple[str, str], dict[str, object]] = {}
    order = {exhibit.key: place for place, exhibit in enumerate(EXHIBITS)}
    places: dict[tuple[str, str], int] = {}
    for model, of_model in found.items():
        for paper, verdicts in of_model.items():
            for exhibit, claim in (pair for pairs in verdicts.values() for pair in pairs):
                key = (paper, claim.paper)
                name = model_title(model)
                first: dict[str, object] = {
                    "paper": PAPERS[exhibit.paper],
                    "exhibit": exhibit.number,
                    "claim": claim.paper,
                }
                line = rows.setdefault(key, first)
                places.setdefault(key, order.get(exhibit.key, len(order)))
                line |= {
                    name: claim.verdict,
                    f"{name}, n": claim.basis.prompts or claim.basis.repeats,
                    f"{name}, finding": claim.finding,
                }
    columns = [f"{model_title(model)}{part}" for model in found for part in ("", ", n", ", finding")]
    frame = pd.DataFrame([rows[key] for key in sorted(rows, key=lambda key: places[key])])
    return frame.reindex(columns=["paper", "exhibit", "claim", *columns])


def exhibit_list(
    exhibits: Sequence[Exhibit], judged: Iterable[tuple[Exhibit, Iterable[Judged]]], models: Sequence[str]
) -> pd.DataFrame:
    """One row per claim of every exhibit, and one for an exhibit without a claim so far, in the order of `exhibits`.

    Columns: key, paper, number, title, claim, and for each model its verdict, number of prompts and finding, named as
    in `claims_by_model`; missing where the model was not judged.
    """
    found: dict[str, dict[str, dict[str, object]]] = {exhibit.key: {} for exhibit in exhibits}
    for exhibit, claims in judged:
        for one in claims:
            name = model_title(one.model)
            line = found[exhibit.key].setdefault(one.claim.paper, {"claim": one.claim.paper})
            line |= {
                name: one.claim.verdict,
                f"{name}, n": one.claim.basis.prompts or one.claim.basis.repeats,
                f"{name}, finding": one.claim.finding,
            }
    rows = [
        {
            "key": exhibit.key,
            "paper": PAPERS[exhibit.paper],
            "number": exhibit.number,
            "title": exhibit.short or exhibit.title,
            **line,
        }
        for exhibit in exhibits
        for line in found[exhibit.key].values() or [{"claim": ""}]
    ]
    columns = [f"{model_title(model)}{part}" for model in models for part in ("", ", n", ", finding")]
    return pd.DataFrame(rows).reindex(columns=["key", "paper", "number", "title", "claim", *columns])


def matching(exhibits: Iterable[Exhibit], words: str, claims: Callable[[Exhibit], Iterable[Claim]]) -> list[Exhibit]:
    """The exhibits whose texts, paper or claims have words that begin with each of `words`, in any case.

    All of them without words.
    """
    wanted = [re.compile(rf"(?<!\w){re.escape(word)}") for word in words.casefold().split()]
    return [exhibit for exhibit in exhibits if all(word.search(_searched(exhibit, claims)) for word in wanted)]


def _searched(exhibit: Exhibit, claims: Callable[[Exhibit], Iterable[Claim]]) -> str:
    own = (PAPERS[exhibit.paper], exhibit.number, exhibit.title, exhibit.short, exhibit.shows, exhibit.look_for)
    return " ".join([*own, *(claim.paper for claim in claims(exhibit))]).casefold()


def claims_of(exhibit: Exhibit, drawn: tuple[Drawn, ...] | Needs) -> tuple[Judged, ...]:
    """All claims of an exhibit's figures, with the models that they are judged on."""
    if isinstance(drawn, Needs):
        return ()
    return tuple(Judged(subject(exhibit, one.model), one.claim) for one in drawn if one.claim is not None)


def subject(exhibit: Exhibit, model: str) -> str:
    """The column of the scorecard that a claim of the exhibit belongs to, measured on `model`."""
    return SHAPES if exhibit.source in ("bench", "calculator") else model


def own_claims(judged: Iterable[Judged], model: str) -> tuple[Judged, ...]:
    """The claims that are judged on this model, or on no model."""
    return tuple(one for one in judged if one.model in (model, SHAPES))
