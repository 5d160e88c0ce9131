"""Safe budgets in sentences: the answer with its guarantee, what it assumes, and how prompts were counted."""

from typing import Any

import pandas as pd

from kvlab.common.formatting import join_words, model_title, prompts
from kvlab.core.choice import FULL
from kvlab.results.quality_tables import label_rows
from kvlab.results.risk.bounds import least_prompts, least_tolerance
from kvlab.results.risk.losses import ARM, ASKED
from kvlab.results.risk.safe_budget import ALL, Criterion, SafeBudgets, shortage

SHOWN_ERRORS = 3
USUAL = (0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # tolerances
SHOWN_SAFE = 4  # budgets of a simulation, the most frequent


def share(value: float) -> str:
    """A share in percent with three significant digits: `1.49 %`."""
    return f"{100 * value:.3g} %"


def headline(found: SafeBudgets) -> list[str]:
    """The answer: one sentence, or one per group."""
    if (few := found.too_few.get(ALL)) is not None:
        return [shortage(found.criterion, {ALL: few}, found.families)]
    confidence = share(found.criterion.confidence)
    criterion = found.criterion
    most = f"at most {share(criterion.tolerance)} of prompts like these"
    promised = {
        "answer": f"{most} lose their right answer",
        "score": f"the score falls by at most {criterion.tolerance:.3g} on average over prompts like these",
        "text": f"{most} get another text than from the full cache",
        "kl": f"{most} get a mean KL to the full cache above {criterion.kl_above:g} nats per token",
    }[criterion.by]
    lines = []
    for group in (group for group in found.groups if group not in found.too_few):
        where = "" if group == ALL else f"{group}: "
        best = found.best(group)
        if best is None:
            lines.append(
                f"{where}No budget of this ladder is certified: it cannot be said with {confidence} confidence that "
                f"{promised}."
            )
            continue
        count = int((found.answers["group"] == group).sum())
        among = f" (the fewest bytes of {count} methods)" if count > 1 else ""
        lines.append(
            f"{where}{best[ARM]} at {best['safe']} is safe{among}: with {confidence} confidence, {promised} "
            f"({observed_words(best, found.criterion)})."
        )
    return lines + [
        f"{group}: {prompts(count)}, too few: at least {found.least:,} are needed."
        for group, count in found.too_few.items()
    ]


def certifiable(found: SafeBudgets) -> str:
    """What the prompts can certify, where they are too few for the tolerance; else empty."""
    if (few := found.too_few.get(ALL)) is None:
        return ""
    least = share(proposed_tolerance(few, found.families, found.criterion.confidence))
    return f"{prompts(few).capitalize()} can certify {least}, if none changes. Below is what was counted."


def proposed_tolerance(count: int, families: int, confidence: float = 0.95) -> float:
    """The smallest usual tolerance that so many prompts can certify for so many methods, if none changes."""
    least = least_tolerance(count, (1 - confidence) / max(1, families))
    return next((one for one in USUAL if one >= least), 0.99)


def tolerance_for(rows: pd.DataFrame, confidence: float = 0.95) -> float:
    """`proposed_tolerance` for the prompts and methods of evaluation rows."""
    full = rows["method"] == FULL.method
    arms = label_rows(rows[~full])[ARM].nunique()
    return proposed_tolerance(max(1, int(full.sum())), arms, confidence)


def prompts_warning(count: int, families: int) -> str:
    """What `count` prompts can certify for so many methods, where that is less than the usual tolerance; else empty."""
    least = least_prompts(USUAL[0], 0.05 / max(1, families))
    if count >= least:
        return ""
    methods = f"{families} method{'s' * (families != 1)}"
    more = f"{share(USUAL[0])} takes {least:,}, 10 % takes {least_prompts(0.1, 0.05 / max(1, families)):,}"
    best = share(proposed_tolerance(count, families))
    return (
        f"{prompts(count).capitalize()} and {methods}: with 95 % confidence they can certify that at most {best} of "
        f"prompts change, and that only if none changes; {more}. Give more prompts, or fewer methods."
    )


def observed_words(line: Any, criterion: Criterion) -> str:
    """`3 of 200, at most 3.8 %`: what was seen at a budget and the upper bound."""
    if criterion.by == "score":
        return f"it fell by {line['risk']:.3g} on {prompts(int(line['prompts']))}, at most {line['upper']:.3g}"
    return f"{line['changed']:.0f} of {line['prompts']:,} here, upper bound {share(line['upper'])}"


def fewest_prompts() -> str:
    """How many prompts usual tolerances need, for who sets up an evaluation."""
    first, *others = ((share(one), least_prompts(one, 0.05)) for one in (0.1, 0.05, 0.02, 0.01))
    more = join_words([f"{most} takes {count:,}" for most, count in others])
    return (
        f"To certify that at most {first[0]} of prompts change, with 95 % confidence, takes at least {first[1]:,} "
        f"prompts; {more}. Several methods, and prompts that change, take more."
    )


def method_lines(found: SafeBudgets) -> list[str]:
    """One sentence per group and method: its safe budget, and what the next smaller one would need."""
    table = found.table
    lines = []
    for _, answer in found.answers.iterrows():
        where = "" if answer["group"] == ALL else f"{answer['group']}, "
        safe = answer["safe"]
        start = f"{where}{answer[ARM]}: {'none certified' if pd.isna(safe) else f'safe at {safe}'}."
        if pd.isna(answer["next"]):
            lines.append(f"{start} That is the smallest budget of the ladder: a smaller one may be safe too.")
            continue
        at = (table["group"] == answer["group"]) & (table[ARM] == answer[ARM]) & (table[ASKED] == answer["next"])
        observed = observed_words(table[at].iloc[0], found.criterion)
        needed = answer["needed"]
        number = "no number of" if pd.isna(needed) else f"about {int(needed):,}"
        lines.append(
            f"{start} Not certified at {answer['next']}: {observed}; {number} prompts would certify it if this rate "
            "held."
        )
    return lines


def assumptions(found: SafeBudgets) -> str:
    """What the guarantee rests on."""
    sampled = found.paired["difficulty"].str.contains('"temperature"').any()
    decoding = "sampled" if sampled else "greedy"
    return (
        f"Holds for future prompts drawn like these (exchangeable), for {model_title(found.model)} with the weights "
        f"and number format measured here, and for {decoding} decoding. Choose tolerance, methods and budgets "
        "before looking at results."
    )


def notes(found: SafeBudgets) -> list[str]:
    """How the level was split, what was counted, and what the reader should know of the data."""
    # What certifying samples of the measured prompts gave.
    made = found.simulated
    promised = share(1 - found.criterion.confidence)
    lines = [
        f"Simulated: {made.draws:,} samples of as many prompts, drawn from these with replacement, were certified "
        f"alike. In {share(made.wrong / made.draws)} of them (promised: at most {promised}) a budget was certified "
        "whose risk on all of these prompts is above the tolerance."
    ]
    for (group, arm), counts in made.safe.items():
        where = "" if group == ALL else f"{group}, "
        names = found.table[(found.table["group"] == group) & (found.table[ARM] == arm)][ASKED].tolist()
        often = sorted(zip(counts, [*names, "none"], strict=True), key=lambda one: -one[0])
        words = [f"{name} in {share(count / made.draws)}" for count, name in often[:SHOWN_SAFE] if count]
        lines.append(f"Smallest certified budget of {where}{arm} in these samples: {join_words(words)}.")
    # Where the observed risk is lower at a smaller budget.
    falls = []
    for _, answer in found.answers.iterrows():
        if answer["drops"]:
            where = "" if answer["group"] == ALL else f" on {answer['group']}"
            falls.append(
                f"{answer[ARM]}{where} (lower at {join_words(answer['drops'])} than at the next larger budget)"
            )
    monotone = "The observed risk never falls as the budget shrinks."
    if falls:
        monotone = f"The observed risk is not monotone for {join_words(falls)}. The guarantee does not need that."
    if found.criterion.by not in ("answer", "score"):
        return [*_split(found), monotone, *lines]
    once = found.paired.drop_duplicates("prompt")
    right = int((once["reference"] >= 1).sum())
    counted = (
        f"The full cache is right on {right:,} of {prompts(len(once))}. One that it gets wrong cannot be lost, and "
        f"counts as a prompt: shares are of all {len(once):,}."
    )
    # Prompts on which the metric raised an error.
    broken = found.paired[found.paired[["error", "reference_error"]].notna().any(axis=1)].drop_duplicates("prompt")
    if len(broken):
        named = [
            f"{line.task} {int(line.index_in_task) + 1} ({line.error or line.reference_error})"
            for line in broken.rename(columns={"index": "index_in_task"}).head(SHOWN_ERRORS).itertuples()
        ]
        more = f" and {len(broken) - SHOWN_ERRORS} more" if len(broken) > SHOWN_ERRORS else ""
        lines.append(
            f"The metric raised an error on {prompts(len(broken))}, counted as changed: {join_words(named)}{more}."
        )
    return [*_split(found), counted, monotone, *lines]


def _split(found: SafeBudgets) -> list[str]:
    test = "exact binomial tests" if found.criterion.by != "score" else "Hoeffding-Bentkus tests"
    how = f"Budgets are tested from the largest down ({test}, fixed sequence), until the first that is not certified."
    least = f"Any guarantee at this tolerance and confidence needs at least {prompts(found.least)}."
    if found.families == 1:
        return [how, least]
    groups = len({*found.groups, *found.too_few})
    among = f"{found.families // groups} methods" + (f" and {groups} groups" if groups > 1 else "")
    return [
        f"{how} Each of the {found.families} sequences ({among}) has {share(1 - found.alpha)} confidence (Bonferroni), "
        f"so that all statements hold together with {share(found.criterion.confidence)}.",
        least,
    ]
