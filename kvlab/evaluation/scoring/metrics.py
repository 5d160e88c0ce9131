"""Metrics: scores in [0, 1] of a prediction against the right answers.

RULER's string matches, LongBench's metrics and similar ones. Each takes (prediction, answers, classes) and returns a
float; of several right answers the best match counts (LongBench's rule).
"""

import json
import re
import string
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

import pandas as pd
from rapidfuzz import fuzz
from rouge_score import rouge_scorer

from kvlab.common.answer_match import find_answer
from kvlab.common.formatting import shared_prefix
from kvlab.common.thoughts import Tags, answer_of, declared_tags
from kvlab.core import UserError, read_json
from kvlab.core.plugins.load import Registry
from kvlab.evaluation.scoring.order import each_line, last_line, line_results, no_loop, walk
from kvlab.tasks.rules import rule_score
from kvlab.tasks.sample import UNSCORED


def instruction_score(
    prediction: str, answers: Sequence[str], classes: Sequence[str] = (), *, loosely: bool, wholly: bool
) -> float:
    """The share of the instructions that the prediction follows (of one prompt; IFEval's instruction level).

    `wholly`: 1 if it follows every instruction (IFEval's prompt level). `answers` are as `load_ifeval` writes them.
    """
    from lm_eval.tasks.ifeval import utils

    asked: list[dict[str, Any]] = [read_json(answer) for answer in answers]
    example = utils.InputExample(
        key=0,
        instruction_id_list=[one["id"] for one in asked],
        prompt=asked[0]["prompt"],
        kwargs=[one["kwargs"] for one in asked],
    )
    check = utils.test_instruction_following_loose if loosely else utils.test_instruction_following_strict
    found = list(check(example, prediction).follow_instruction_list)
    return float(all(found)) if wholly else sum(found) / len(found)


BOX = "\\boxed"
SECONDS = 5


def boxed(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """1 if the content of the prediction's last box is one of the answers; 0 without a box."""
    held = last_box(prediction)
    if held is None:
        return 0.0
    from math_verify import parse, verify

    # Outside the main thread math-verify cannot set its alarm: no timeout.
    seconds = SECONDS if threading.current_thread() is threading.main_thread() else None
    for answer in answers:
        if len({"".join(text.split()).strip("$") for text in (answer, held)}) == 1:
            return 1.0
        gold, target = (parse(f"{BOX}{{{text}}}", parsing_timeout=seconds) for text in (answer, held))
        if gold and target and verify(gold, target, timeout_seconds=seconds):
            return 1.0
    return 0.0


def last_box(text: str) -> str | None:
    """Content of the last outermost \\boxed{...}, with matched braces, nested boxes opened; None without one."""
    place = 0
    found = None
    while (start := text.find(f"{BOX}{{", place)) >= 0:
        # The brace that closes this one; a backslash takes the next character with it.
        begun = start + len(BOX) + 1
        place = begun
        depth = 1
        while place < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            place += 2 if text[place] == "\\" else 1
        if depth:
            break
        found = text[begun : place - 1]
    if found is None:
        return None
    return last_box(found) if found.strip().startswith(f"{BOX}{{") else found


Metric = Callable[[str, Sequence[str], Sequence[str]], float]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def string_match_all(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The share of the answers that occur in the prediction, ignoring case (RULER, all tasks but QA)."""
    return sum(answer.lower() in prediction.lower() for answer in answers) / len(answers)


def string_match_part(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """1 if any answer occurs in the prediction, ignoring case (RULER, QA)."""
    return float(any(answer.lower() in prediction.lower() for answer in answers))


def whole_match_all(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The share of the answers that the prediction contains, by the rule of `kvlab.common.answer_match`.

    Unlike RULER's own string_match_all it does not find "ring" in "spring", nor 3 in 3.14, and finds 48213 in 48,213.
    """
    return sum(find_answer(prediction, answer) is not None for answer in answers) / len(answers)


def normalize(text: str) -> str:
    """The text in lower case without punctuation, articles or doubled spaces (SQuAD's rule)."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """1 if the normalized prediction is one of the normalized answers."""
    return float(normalize(prediction) in {normalize(answer) for answer in answers})


def word_prefix(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The share of the answer's words that the prediction repeats before its first mistake (copying).

    A full stop at a word's end does not count: an answer may end with one that the passage lacks.
    """
    words, *wanted = ([word.rstrip(".") for word in text.split()] for text in (prediction, *answers))
    return max(shared_prefix(words, expected) / max(len(expected), 1) for expected in wanted)


def f1(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The F1 of normalized words (SQuAD; LongBench's question answering)."""
    words = normalize(prediction).split()
    scores = []
    for answer in answers:
        expected = normalize(answer).split()
        common = sum((Counter(words) & Counter(expected)).values())
        scores.append(2 * common / (len(words) + len(expected)) if common else 0.0)
    return max(scores)


def rouge(prediction: str, answers: Sequence[str], classes: Sequence[str] = (), *, kind: str) -> float:
    """A ROUGE F measure from rouge-score, no stemming, best over the answers."""
    scorer = rouge_scorer.RougeScorer([kind], use_stemmer=False)
    return max(scorer.score(answer, prediction)[kind].fmeasure for answer in answers)


def rouge_longbench(prediction: str, answers: Sequence[str], classes: Sequence[str] = (), *, kind: str) -> float:
    """A ROUGE F measure from the package `rouge`, best over the answers, as LongBench, H2O, LESS and CaM use it.

    The package splits sentences at every full stop and does not normalise words, so its values differ from
    rouge-score's. An empty prediction, or one with a sentence too long for its recursion, scores 0, as in LongBench.
    """

    from rouge import Rouge

    scorer = Rouge(metrics=[kind], stats=["f"])
    best = 0.0
    for answer in answers:
        with suppress(ValueError, RecursionError):
            best = max(best, float(scorer.get_scores(prediction, answer)[0][kind]["f"]))
    return best


def edit_similarity(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The indel similarity of the first line of code and the answer (LongBench's code tasks; rapidfuzz)."""
    lines = prediction.lstrip("\n").split("\n")
    code = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    return max(fuzz.ratio(code, answer) for answer in answers) / 100


def count(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The share of the prediction's numbers that are the right one (LongBench's passage count)."""
    numbers = re.findall(r"\d+", prediction)
    return max(numbers.count(answer) / len(numbers) if numbers else 0.0 for answer in answers)


def retrieval(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The share of the prediction's numbers that name the right paragraph (LongBench's retrieval)."""
    numbers = [match.group() for answer in answers if (match := re.search(r"\d+", answer))]
    return count(prediction, numbers) if numbers else 0.0


def classification(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """1/n where the right class is among the n classes named by the prediction, else 0 (LongBench).

    A class that is only part of the right class's name does not count as named.
    """
    scores = []
    for answer in answers:
        named = [name for name in classes or (answer,) if name in prediction]
        named = [name for name in named if name == answer or name not in answer]
        scores.append(1 / len(named) if answer in named else 0.0)
    return max(scores)


_LETTERS = (re.compile(r"The correct answer is \(([A-D])\)"), re.compile(r"The correct answer is ([A-D])"))


def letter_choice(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """1 if the letter after "The correct answer is", in brackets or else without, is right (LongBench v2).

    Asterisks are left out first, as its scorer does.
    """
    text = prediction.replace("*", "")
    found = next((match.group(1) for pattern in _LETTERS if (match := pattern.search(text))), None)
    return float(found in answers)


def final_number(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """1 if the prediction's result is the answer's (GSM8K): the number after "####", else the last number."""
    results: list[float | None] = []
    for text in (prediction, *answers):
        numbers = _NUMBER.findall(text.split("####")[-1])
        number = numbers[0 if "####" in text else -1] if numbers else None
        results.append(None if number is None else float(number.replace(",", "")))
    return float(results[0] is not None and results[0] in results[1:])


METRICS: Registry[Metric] = Registry(
    "metric",
    {
        "string_match_all": string_match_all,
        "string_match_part": string_match_part,
        "whole_match_all": whole_match_all,
        "each_line": each_line,
        "line_results": line_results,
        "walk": walk,
        "last_line": last_line,
        "no_loop": no_loop,
        "rules": rule_score,
        "all_rules": partial(rule_score, wholly=True),
        "ifeval": partial(instruction_score, loosely=False, wholly=False),
        "ifeval_all": partial(instruction_score, loosely=False, wholly=True),
        "ifeval_loose": partial(instruction_score, loosely=True, wholly=False),
        "ifeval_all_loose": partial(instruction_score, loosely=True, wholly=True),
        "exact_match": exact_match,
        "word_prefix": word_prefix,
        "f1": f1,
        "rouge_1": partial(rouge, kind="rouge1"),
        "rouge_2": partial(rouge, kind="rouge2"),
        "rouge_l": partial(rouge, kind="rougeL"),
        "rouge_1_longbench": partial(rouge_longbench, kind="rouge-1"),
        "rouge_2_longbench": partial(rouge_longbench, kind="rouge-2"),
        "rouge_l_longbench": partial(rouge_longbench, kind="rouge-l"),
        "letter_choice": letter_choice,
        "boxed": boxed,
        "edit_similarity": edit_similarity,
        "count": count,
        "retrieval": retrieval,
        "classification": classification,
        "final_number": final_number,
    },
)

# Function decorator: registers a metric of (prediction, answers, classes) that samples may name.
register_metric = METRICS.registering

OF_LINES = ("each_line", "no_loop")  # metrics of answers to several questions, which are lines

# Measured on logits, not on text (kvlab.evaluation.scoring.likelihood); lower is better.
LIKELIHOOD_METRICS = ("bits_per_byte", "kl")


def higher_is_better(metric: str) -> bool:
    """Whether a larger value of this metric means a better cache."""
    return metric not in LIKELIHOOD_METRICS


# The package that computes a metric, and the extra of kvlab that installs it; no extra: always installed.
PACKAGES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("rouge_1", "rouge_2", "rouge_l"), ("rouge-score", "")),
    **dict.fromkeys(("rouge_1_longbench", "rouge_2_longbench", "rouge_l_longbench"), ("rouge", "rouge")),
    "edit_similarity": ("rapidfuzz", ""),
    "boxed": ("math-verify", "math"),
    **dict.fromkeys(("ifeval", "ifeval_all", "ifeval_loose", "ifeval_all_loose"), ("lm-eval", "lm-eval")),
}


def packages(metrics: Iterable[str]) -> str:
    """Which package computes each metric that has one, such as `rouge_l by rouge-score`."""
    return ", ".join(f"{metric} by {PACKAGES[metric][0]}" for metric in dict.fromkeys(metrics) if metric in PACKAGES)


def is_installed(metric: str) -> bool:
    """Whether the package that a metric needs is installed."""
    return metric not in PACKAGES or find_spec(PACKAGES[metric][0].replace("-", "_")) is not None


def check_metric(metric: str) -> str:
    """The name; raises UserError for an unknown metric or a missing package."""
    if metric not in METRICS and metric not in (*LIKELIHOOD_METRICS, UNSCORED):
        raise METRICS.unknown(metric)
    if not is_installed(metric):
        package, extra = PACKAGES[metric]
        raise UserError(f"The metric '{metric}' needs the package {package}: pip install 'kvlab[{extra}]'.")
    return metric


def score(
    metric: str, prediction: str, answers: Sequence[str], classes: Sequence[str] = (), tags: Tags | None = None
) -> float:
    """Score a prediction with a metric, without the thinking in it (`kvlab.common.thoughts`).

    `tags`: those of thinking that only the chat template declares. Raises UserError for an unknown metric or a missing
    package.
    """
    lines = prediction.split("\n")
    each_alone = metric in OF_LINES and len(lines) == len(answers)  # a line answers a question, and may begin anew
    answer = "\n".join(answer_of(one, tags=tags) for one in (lines if each_alone else [prediction]))
    return METRICS[check_metric(metric)](answer, answers, classes)


def tags_of_rows(rows: pd.DataFrame) -> list[Tags | None]:
    """Each row's tags of thinking that only its chat template declares."""
    chats = rows["chat"] if "chat" in rows else [None] * len(rows)
    return [declared_tags(read_json(chat)) if isinstance(chat, str) else None for chat in chats]


def rescore(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows with `metric` and its score in place of theirs, from `prediction` and `answer`.

    Raises UserError for an unknown metric, and for rows without a generated answer.
    """
    check_metric(metric)
    if metric in LIKELIHOOD_METRICS or rows["metric"].isin([*LIKELIHOOD_METRICS, UNSCORED]).any():
        raise UserError(
            f"{metric} cannot be computed from these rows: only generated answers with right ones can be scored again."
        )
    if rows[["prediction", "answer"]].isna().any(axis=None):
        raise UserError("Some of these rows were shipped without their texts: evaluate them again to score them anew.")
    texts = zip(rows["prediction"], rows["answer"], tags_of_rows(rows), strict=True)
    scores = [score(metric, prediction, json.loads(answers), tags=tags) for prediction, answers, tags in texts]
    return rows.assign(metric=metric, score=scores)
