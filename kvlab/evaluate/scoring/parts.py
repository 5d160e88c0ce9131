"""Scores of a prompt's parts, such as each of several rules or questions, with the survival of each. JSON in rows."""

from __future__ import annotations

import json

from kvlab.evaluate.prepare import PreparedPrompt
from kvlab.evaluate.results.outcome import Outcome
from kvlab.evaluate.scoring.metrics import score
from kvlab.evaluate.scoring.order import of_each
from kvlab.evaluate.scoring.survival import Survival

OF_PARTS = {
    "all_rules": "rules",
    "ifeval_all": "ifeval",
    "ifeval_all_loose": "ifeval_loose",
}  # the metric of parts, for a metric that is no mean over them


def parts_json(prompt: PreparedPrompt, outcome: Outcome) -> str | None:
    """One object per part of the sample, as JSON; None if it has none.

    Each has kind, order (1 is the first in the prompt's text, of questions the first asked), position (index of its
    first token; null without a statement), tokens, answer, score, and of its tokens own, merged, unreachable and
    consensus (`Survival`; null without a statement).
    """
    sample = prompt.sample
    if not sample.parts:
        return None
    metric = OF_PARTS.get(sample.metric, sample.metric)
    scores = of_each(lambda answers: score(metric, outcome.prediction, answers), sample.answers)
    lines = []
    for index, part in enumerate(sample.parts):
        place = prompt.parts[index]
        lines.append(
            {
                "kind": part.kind,
                "order": index + 1,
                "position": place[0] if place else None,
                "tokens": len(place),
                "answer": sample.answers[index],
                "score": scores[index],
                **_left(outcome.survival.parts[index] if outcome.survival and place else None),
            }
        )
    return json.dumps(lines, ensure_ascii=False)


def _left(found: Survival | None) -> dict[str, float | None]:
    names = ("own", "merged", "unreachable", "consensus")
    return {name: getattr(found, name) if found else None for name in names}
