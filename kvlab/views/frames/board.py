"""The board: whether each method at each budget still gets the answer, and the fate of the fact behind it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvlab.common.answer_match import find_answer
from kvlab.common.thoughts import declared_tags, hide_in, open_tag
from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.trace.user_labels import Labels
from kvlab.views.frames.compare import at_same_bytes, headline, rivals_at_same_bytes
from kvlab.views.frames.facts import FATES, fact_fates, fact_positions, fate_shares, reading_heads
from kvlab.views.frames.labels import differing_parts, parse_label
from kvlab.views.frames.verdict import KINDS, Verdict, answer_tokens, judge

OWN_BUDGET = "its own budget"
TAIL_TOKENS = 32  # of a prompt, which hold a tag that its template ends with


@dataclass(frozen=True)
class ExpectedAnswer:
    """The expected answer and its facts; `assumed` if they are only where the prompt contains the answer."""

    answer: str
    facts: tuple[tuple[int, int], ...]
    assumed: bool
    others: tuple[str, ...] = ()  # also correct

    @property
    def answers(self) -> tuple[str, ...]:
        """All correct answers."""
        return (self.answer, *self.others)

    @property
    def words(self) -> str:
        """All correct answers, joined by "or"."""
        return " or ".join(self.answers)


@dataclass(frozen=True)
class AnswerCheck:
    """A comparison checked against its expected answer.

    Attributes:
        expected: the answer and its facts.
        reference: the verdict on the full cache's own continuation.
        answer: (first, last) token of the continuation that spell the answer; None if it is missing.
        step: step after which fates are evaluated: the last step the query of the answer's last token could attend to,
            or the end of the prompt if the full cache does not answer.
        positions: prompt tokens of the facts.
        problem: why the fact's tokens are unknown, or "".
    """

    expected: ExpectedAnswer
    reference: Verdict
    answer: tuple[int, int] | None
    step: int
    positions: np.ndarray
    problem: str = ""

    @property
    def moment(self) -> str:
        """Description of `step`."""
        when = "at the end of the prompt" if self.answer is None else "when the answer was written"
        return f"{when} (after step {self.step})"


def expected_answer(runs: Sequence[Run], labels: Labels) -> ExpectedAnswer | None:
    """The answer and facts from the user's labels, else those recorded; None if there is no answer."""
    record = runs[0].record
    answer = labels.answer or record.answer
    if answer is None:
        return None
    others = record.other_answers if answer == record.answer else ()
    facts = labels.facts or record.facts
    if facts:
        return ExpectedAnswer(answer, facts, False, others)
    found = next(filter(None, (find_answer(record.prompt, one) for one in (answer, *others))), None)
    return ExpectedAnswer(answer, (found,) if found else (), True, others)


def check_answer(runs: Sequence[Run], expected: ExpectedAnswer) -> AnswerCheck:
    """Check a comparison against the expected answer; all runs follow the full cache's text."""
    texts = reference_texts(runs)
    spelled = filter(None, (answer_tokens(texts, one) for one in expected.answers))
    answer = next(spelled, None)
    positions = np.zeros(0, np.int64)
    problem = ""
    try:
        positions = fact_positions(runs[0].tokens, runs[0].record.prompt, expected.facts)
    except UserError as error:
        problem = str(error)
    step = max(answer[1] - 1, 0) if answer else 0
    return AnswerCheck(expected, judge_any(texts, expected.answers, texts), answer, step, positions, problem)


def judge_any(texts: Sequence[str], answers: Sequence[str], reference: Sequence[str] = ()) -> Verdict:
    """The best verdict over several correct answers, the first on ties."""
    return min((judge(texts, one, reference) for one in answers), key=lambda verdict: KINDS.index(verdict.kind))


def reference_texts(runs: Sequence[Run]) -> list[str]:
    """Token texts of the full cache's answer (`answer_texts`); empty if no run recorded it."""
    full = [run for run in runs if run.record.method == "full"]
    for phase, among in (("forced", runs), ("free", full)):
        for run in among:
            if texts := answer_texts(run, phase):
                return texts
    return []


def answer_texts(run: Run, phase: str) -> list[str]:
    """`phase_texts` with line breaks in place of thinking, also of what a chat template opened at the prompt's end."""
    return hide_in(phase_texts(run, phase), ends_in_thinking(run), declared_tags(run.record.chat))


def ends_in_thinking(run: Run) -> bool:
    """Whether the run's prompt ends with a tag that opens thinking."""
    prompt = run.tokens[run.tokens["phase"] == "prompt"].nlargest(TAIL_TOKENS, "position").sort_values("position")
    return bool(open_tag("".join(prompt["text"].fillna("")), declared_tags(run.record.chat)))


def phase_texts(run: Run, phase: str) -> list[str]:
    """The text added by each token of phase `forced` or `free`, in order; "" for special and end tokens."""
    tokens = run.tokens[run.tokens["phase"] == phase].sort_values("position")
    return tokens["text"].fillna("").mask(tokens["special"], "").tolist()


def verdicts(runs: Sequence[Run], check: AnswerCheck) -> pd.DataFrame:
    """`headline` with verdict columns, one row per run.

    Columns: row and column (position on the board), verdict, at, wrote, wrong, expected (as in `Verdict`), late (right,
    but later than in the full cache's text) and kl_answer (mean KL from the full cache over the tokens that spell the
    answer, nats per token; none without an answer).
    """
    texts = reference_texts(runs)
    judged = [judge_any(answer_texts(run, "free"), check.expected.answers, texts) for run in runs]
    kl_answer: list[float | None] = []
    for run in runs:
        forced = run.tokens[run.tokens["phase"] == "forced"].sort_values("position")["kl"].to_numpy(np.float64)
        first, last = check.answer or (0, -1)
        here = forced[first : last + 1]
        is_known = len(here) == last + 1 - first > 0 and np.isfinite(here).all()
        kl_answer.append(float(here.mean()) if is_known else None)
    rows, columns = zip(*places(runs), strict=True)
    return headline(runs).assign(
        row=rows,
        column=columns,
        verdict=[one.kind for one in judged],
        at=pd.array([one.at for one in judged], "Int32"),
        late=[one.kind == "right" and check.answer is not None and (one.at or 0) > check.answer[0] for one in judged],
        wrote=[one.wrote for one in judged],
        wrong=[one.wrong for one in judged],
        expected=[one.expected for one in judged],
        kl_answer=kl_answer,
    )


def places(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Row (method with settings) and column (budget) of every run; each position is unique."""
    columns = [parse_label(run.record).budget or OWN_BUDGET for run in runs]
    found: list[tuple[str, str]] = []
    for row, column in zip(differing_parts([run.record for run in runs], budget=False), columns, strict=True):
        count = sum(there == column and (name == row or name.startswith(f"{row} #")) for name, there in found)
        found.append((f"{row} #{count + 1}" if count else row, column))
    return found


def runs_at(runs: Sequence[Run], budget: str) -> list[Run]:
    """The runs at one budget (a column of the board), and those without one, such as the full cache."""
    columns = [parse_label(run.record).budget or OWN_BUDGET for run in runs]
    return [run for run, column in zip(runs, columns, strict=True) if column in (budget, OWN_BUDGET)]


def board(runs: Sequence[Run], check: AnswerCheck, table: pd.DataFrame) -> pd.DataFrame:
    """The board's table: columns of `table` (`verdicts`), one row per compressed run and token of the fact.

    Token columns: position, text, moment (`Asked.moment`), and the shares of heads in which it is `kept`, `merged`,
    `dropped` (empty for a run without events, which has one row). Budgets ascend, methods keep their order.
    """
    parts = []
    for run, (_, line) in zip(runs, table.iterrows(), strict=True):
        if run.record.method == "full":
            continue
        strip = fact_strip(run, check)
        parts.append(pd.DataFrame([line] * len(strip)).reset_index(drop=True).join(strip).assign(moment=check.moment))
    if not parts:
        return table.head(0).assign(position=[], text=[], moment=[], **{fate: [] for fate in FATES})
    return pd.concat(parts, ignore_index=True)


def fact_strip(run: Run, check: AnswerCheck) -> pd.DataFrame:
    """Position, text and fate shares of each token of the fact; one empty row if unknown."""
    nothing = pd.DataFrame({"position": pd.array([None], "Int64"), "text": [""], **{fate: [np.nan] for fate in FATES}})
    if run.record.level != "full" or not len(check.positions) or run.record.status == "running":
        return nothing
    shares = fate_shares(fact_fates(run, check.positions, check.step), "token").rename(columns={"token": "position"})
    read = run.tokens[run.tokens["phase"] == "prompt"].set_index("position")["text"]
    texts = read.reindex(shares["position"]).fillna("").tolist()
    return shares.assign(position=shares["position"].astype("Int64"), text=texts)[["position", "text", *FATES]]


def readers(runs: Sequence[Run], check: AnswerCheck) -> pd.DataFrame:
    """`reading_heads` of the full cache's run; empty if it was not recorded or does not answer."""
    full = next((run for run in runs if run.record.method == "full" and run.record.level == "full"), None)
    if full is None or check.answer is None or not len(check.positions):
        return pd.DataFrame(columns=["layer", "head", "mass"])
    return reading_heads(full, check.positions, check.answer)


def rank_runs(table: pd.DataFrame) -> tuple[list[tuple[str, list[pd.DataFrame]]], list[tuple[str, str]]]:
    """The ranking, and (label, reason) of every run left out.

    With verdicts (`verdicts`): each kind of answer, best first, with its runs grouped by about equal bytes, closest to
    the full cache first. Without (`headline`): one entry named "" with the groups of rivals.
    """
    ranking: list[tuple[str, list[pd.DataFrame]]]
    if "verdict" in table:
        judged = [(kind, table[(table["method"] != "full") & (table["verdict"] == kind)]) for kind in KINDS[:3]]
        ranking = [(kind, at_same_bytes(here)) for kind, here in judged if here["live_bytes"].notna().any()]
    else:
        groups = rivals_at_same_bytes(table)
        ranking = [("", groups)] if groups else []
    inside = {label for _, groups in ranking for group in groups for label in group["label"]}
    left = []
    for _, line in table[~table["label"].isin(inside)].iterrows():
        unfinished = line["verdict"] == "unfinished" if "verdict" in line else pd.isna(line["mean_kl"])
        if line["method"] == "full":
            why = "what the others are compared with"
        elif line["status"] != "complete" and unfinished:
            why = "not finished" if line["status"] == "running" else str(line["status"])
        elif pd.isna(line["live_bytes"]):
            why = "its bytes were not recorded"
        elif "verdict" in line:
            why = "its own text was not recorded"
        elif pd.isna(line["mean_kl"]):
            why = "its KL was not recorded"
        else:
            why = "no other run has about as many bytes"
        left.append((line["label"], why))
    return ranking, left


def most_interesting_run(cells: pd.DataFrame) -> str:
    """The run to look at first: one that nearly got the answer, else a wrong one, else the first."""
    order = ["nearly", "wrong"]
    found = [cells.loc[cells["verdict"] == kind, "run_id"] for kind in order]
    return str(next((ids.iloc[0] for ids in found if len(ids)), cells["run_id"].iloc[0]))


def correct_runs(table: pd.DataFrame) -> pd.DataFrame:
    """The compressed runs that got the answer, fewest bytes first."""
    return table[(table["method"] != "full") & (table["verdict"] == "right")].sort_values("live_bytes")
