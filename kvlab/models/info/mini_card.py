"""What mini was trained on and what it cannot do, as data for forms, from its phrasings and its card. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.core.assets import asset_path
from kvlab.models.info import mini_phrasing

CARD = "mini/README.md"
CANNOT = "## What it cannot do"


@dataclass(frozen=True)
class Taught:
    """One way of stating something and asking for it; "…" is a placeholder."""

    kind: str
    statement: str
    question: str


def taught() -> list[Taught]:
    """The ways of asking used in training, as in a prompt."""
    needles = [
        Taught(
            "a number", mini_phrasing.needle_statement(one, "…", "…"), mini_phrasing.needle_query(one, "…", "…").prompt
        )
        for one in mini_phrasing.NEEDLE_PHRASINGS
    ]
    pairs = mini_phrasing.key_value_list([("…", "…")])
    labels = "Labels:\n" + mini_phrasing.few_shot_example("…", "…", "…")
    chain = " ".join(mini_phrasing.variable_chain(["…", "…"], "…"))
    return [
        *needles,
        Taught("a list of records", pairs, mini_phrasing.key_value_query("…", "…").prompt),
        Taught("a chain of variables", chain, mini_phrasing.variable_query(["…"], "…").prompt),
        Taught("labels by example", labels, mini_phrasing.few_shot_query("…", "…", "…").prompt),
    ]


def cannot_do() -> str:
    """The section of the card on what mini cannot do, on one line."""
    text = asset_path(CARD).read_text(encoding="utf-8")
    return " ".join(text.split(CANNOT, 1)[1].split("\n## ")[0].split())
