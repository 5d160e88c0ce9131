"""Safe budgets as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from kvlab.results.risk import sentences
from kvlab.results.risk.losses import ARM, ASKED, flips, overlap
from kvlab.results.risk.safe_budget import SafeBudgets

PROMPT_COLUMNS = [
    "group",
    "task",
    "index",
    "content",
    ARM,
    ASKED,
    "loss",
    "answer",
    "prediction",
    "reference_text",
    "kl",
]


def as_json(found: SafeBudgets, notes: list[str], out: str) -> str:
    """The result as one JSON object: sentences, answers, table, flips, overlap and the prompts that change."""
    frames = {
        "answers": found.answers,
        "table": found.table,
        "flips": flips(found.paired),
        "overlap": overlap(found.paired),
        "changed": found.changed[PROMPT_COLUMNS].reset_index(drop=True),
    }
    lines = {name: json.loads(frame.to_json(orient="records", double_precision=15)) for name, frame in frames.items()}
    words = {
        "sentences": sentences.headline(found),
        "methods": sentences.method_lines(found),
        "assumptions": sentences.assumptions(found),
        "notes": [*sentences.notes(found), *notes],
    }
    numbers: dict[str, object] = {"alpha": found.alpha, "families": found.families, "least_prompts": found.least}
    made = found.simulated
    safe = [{"group": group, ARM: arm, "samples": counts} for (group, arm), counts in made.safe.items()]
    numbers |= {"simulated": {"draws": made.draws, "wrong": made.wrong, "smallest_certified": safe}}
    asked = {"out": out, "model": found.model, "criterion": asdict(found.criterion)}
    return json.dumps(asked | words | numbers | lines, indent=2, ensure_ascii=False)
