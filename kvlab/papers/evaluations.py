"""Exhibits drawn from `kvlab eval`: the evaluation, the rows they read, means with intervals, and claims about arms.

An exhibit names one `Experiment`. Its evaluation puts the results in `<runs>/eval/<name>`; rows are taken from any
evaluation that asked for the same, so that one large evaluation can feed many exhibits.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pandas as pd
from pydantic import JsonValue

from kvlab.common.formatting import mean_words, model_title
from kvlab.common.intervals import Interval
from kvlab.core import FULL, format_spec, parse_spec
from kvlab.evaluation.results.rows import canonical_json
from kvlab.evaluation.scoring.metrics import higher_is_better, packages
from kvlab.models.info.names import context_length
from kvlab.papers.exhibit import Needs
from kvlab.requests.measurement import Evaluation, Measurement
from kvlab.results import score_tables
from kvlab.results.sources import EVAL_FOLDER, Sources
from kvlab.results.verdict import OPEN, Basis, Claim, Effect, Threshold, decisive
from kvlab.views import scores as figures
from kvlab.views.base.provenance import Provenance, as_published, settings_of_rows

MINI_WINDOW = 4096  # tokens
STEP = 64  # of lengths, in tokens
OWN_TASKS = ("needle", "needle_multikey", "key_value", "few_shot")


@dataclass(frozen=True)
class Arm:
    """A method with its changed options; all others are as in its paper."""

    method: str
    options: Mapping[str, JsonValue] = field(default_factory=dict)

    @staticmethod
    def parse(text: str) -> "Arm":
        """The arm as exhibits' rows and the command line write it, such as `kvmerger:sigma_mode=1`."""
        return Arm(*parse_spec(text))

    @property
    def published(self) -> dict[str, JsonValue]:
        """The options with the paper's preset, as in evaluation rows."""
        return as_published(self.method, self.options)

    @property
    def label(self) -> str:
        """As tables and findings name it: `kvmerger:sigma_mode=1`; under which settings all are is said beside."""
        return format_spec(self.method, score_tables.without_preset(self.options))

    @property
    def name(self) -> str:
        """As the command line takes it: `kvmerger:preset=paper:sigma_mode=1`."""
        return format_spec(self.method, self.published)


def arms(method: str, option: str, *values: JsonValue, **fixed: JsonValue) -> tuple[Arm, ...]:
    """One arm per value of an option, with `fixed` options."""
    return tuple(Arm(method, {option: value, **fixed}) for value in values)


@dataclass(frozen=True)
class Experiment:
    """One evaluation: arms, budgets and tasks; the full cache is always part of it.

    Rows under the papers' settings are preferred, else those of the same options under the defaults. `only_budgets`
    drops rows of other budgets; otherwise what was evaluated at others is shown too. The question is in sight when the
    prompt is compressed, unless `question_aware` is False; rows of the other kind are dropped.
    """

    name: str
    arms: tuple[Arm, ...]
    budgets: tuple[float | int, ...] = (0.1, 0.2, 0.4)
    tasks: tuple[str, ...] = OWN_TASKS
    samples: int = 20
    only_budgets: bool = False
    only_tasks: bool = False
    lengths: tuple[int, ...] = ()  # of prompts; none: each task's own
    depths: tuple[float, ...] = ()
    question_aware: bool | None = None

    def evaluation(self, sources: Sources) -> Evaluation:
        """The evaluation that makes the rows."""
        # The lengths are made for mini's window: in proportion to the window of a model with a smaller one. A model
        # whose window is not known on this machine keeps them; its evaluation says which lengths do not fit.
        window = context_length(sources.measured_model)
        lengths = self.lengths
        if window is not None and window < MINI_WINDOW:
            shorter = (max(STEP, length * window // MINI_WINDOW // STEP * STEP) for length in lengths)
            lengths = tuple(dict.fromkeys(shorter))
        return Evaluation(
            self.tasks,
            tuple(arm.name for arm in self.arms),
            self.budgets,
            self.samples,
            sources.root / EVAL_FOLDER / self.name,
            lengths,
            self.depths,
            self.question_aware,
            model=sources.measured_model,
        )

    def rows(self, sources: Sources) -> pd.DataFrame:
        """The experiment's rows of one model, `Sources.measured_model`."""
        return sources.once(f"rows of {self}", lambda: self._rows(sources))

    def _rows(self, sources: Sources) -> pd.DataFrame:
        rows = sources.model_evaluations
        if rows.empty:
            return rows
        rows = rows[rows["question_aware"] == (self.question_aware is not False)]
        # Under the published settings, or else under the arms' own.
        for options in ([arm.published for arm in self.arms], [dict(arm.options) for arm in self.arms]):
            parts = [rows_of_arm(rows, arm.method, settings) for arm, settings in zip(self.arms, options, strict=True)]
            found = pd.concat([rows[rows["method"] == FULL.method], *parts]).sort_index(kind="stable")
            if self.only_budgets:
                found = found[found["budget"].isin(self.budgets) | (found["method"] == FULL.method)]
            if self.only_tasks:
                found = found[found["task"].isin(self.tasks)]
            found = found[found["task"].isin(found.loc[found["method"] != FULL.method, "task"])]
            arms_found = found.loc[found["method"] != FULL.method, ["method", "hyper_parameters"]].drop_duplicates()
            # A single arm of several compares nothing.
            if len(found) and len(arms_found) >= min(2, len(self.arms)):
                return found
        return rows.iloc[:0]

    def scores(self, sources: Sources) -> pd.DataFrame:
        """`score_table` of the experiment's rows; empty if there are none."""
        rows = self.rows(sources)
        return (
            sources.once(f"scores of {self}", lambda: score_tables.score_table(rows)) if len(rows) else pd.DataFrame()
        )

    def needs(self, sources: Sources) -> Needs:
        """The measurement to run if `scores` is empty."""
        names = ", ".join(arm.name for arm in self.arms)
        return Needs(f"No evaluation of {names} was found.", self.evaluation(sources))

    def more_prompts(self, sources: Sources, times: int = 4) -> Evaluation:
        """The same with so many times the prompts: four times as many halve an interval."""
        return replace(self, samples=times * self.samples).evaluation(sources)

    def on_paper_data(self, sources: Sources, model: str, *data: str) -> Needs:
        """The same on the paper's own model and files, which the user has to have: `data` such as `longbench=FILE`."""
        theirs = replace(self.evaluation(sources), tasks=(), data=data, model=model, samples=200)
        files = ", ".join(name.partition("=")[2] for name in data)
        sentence = f"Scores comparable with the paper's need its model, {model}, and its data ({files})."
        return Needs(sentence, theirs)


def rows_of_arm(rows: pd.DataFrame, method: str, parameters: Mapping[str, JsonValue]) -> pd.DataFrame:
    """The rows of a method with the given options, including equivalent requests with fewer explicit options.

    An option equal to its preset's value is the same measurement; of two exhibits' evaluations in one folder it runs
    once, under the first request's text. A request with other option text is judged by its recorded settings.
    """
    text = canonical_json(parameters)
    mine = rows[rows["method"] == method]
    exact = mine[mine["hyper_parameters"] == text]
    if "settings" not in mine:
        return exact
    requests = list(zip(mine["hyper_parameters"], mine["settings"].fillna(""), strict=True))
    same = set()
    for request in set(requests) - {pair for pair in requests if pair[0] == text}:
        asked = json.loads(request[0] or "{}")
        ran = json.loads(request[1] or "{}")
        agrees = all(parameters.get(name) == value for name, value in asked.items())
        left = {name: value for name, value in parameters.items() if name not in asked}
        if agrees and all(name in ran and ran[name] == value for name, value in left.items()):
            same.add(request)
    others = mine[pd.Series([request in same for request in requests], mine.index, dtype=bool)]
    others = others[~others["key"].isin(exact["key"])]
    return pd.concat([exact, others.assign(hyper_parameters=text)])


def origin_of(rows: pd.DataFrame) -> Provenance:
    """Which evaluations, model, how many prompts, and, where the rows say so, device and versions."""
    names = ", ".join(sorted(rows["name"].unique()))
    prompts = len(rows[score_tables.PROMPT].drop_duplicates())
    model = model_title(str(rows["model"].iloc[0]))
    digest = str(rows["model_digest"].iloc[0])[:12]
    parts = [f"{model} ({digest})", f"{prompts} prompts"]
    if {"device", "versions"} <= set(rows.columns):
        parts += sorted(rows["device"].dropna().unique())
        parts += [
            ", ".join(f"{name} {version}" for name, version in json.loads(text).items())
            for text in sorted(rows["versions"].dropna().unique())
        ]
    details = (*parts, packages(rows["metric"]))
    return Provenance(f"evaluation {names}", details, settings_of_rows(rows))


def caption_by_budget(rows: pd.DataFrame, table: pd.DataFrame, panel: str = "task") -> str:
    """Caption of `figures.score_against_budget` from its rows and table."""
    means = score_tables.means_over_tasks(rows, score_tables.shared_by_all_arms(table), ["arm"])
    return figures.caption_score_against_budget(means, panel)


def gap(
    rows: pd.DataFrame, first: str, second: str, budget: float | None = None, column: str = "score"
) -> Interval | None:
    """Mean of arm `first` minus arm `second` over their common prompts and budgets, with its 95 % interval.

    `column` may be another numeric column such as `kept`. Arms are named as in the score table; only metrics where
    higher is better. Averaged over tasks as in `kvlab.evaluation.results.summary.over_tasks`: a prompt at several
    budgets is one sample. None without common prompts.
    """
    higher = score_tables.with_names(rows[rows["metric"].map(higher_is_better)])
    if budget is not None:
        higher = higher[higher["budget"] == budget]
    one, other = (higher[higher["arm"] == arm] for arm in (first, second))
    return score_tables.paired_gap(one, other, [*score_tables.PROMPT, "budget", "question_aware"], column)


def gap_text(one: Interval | None, show: Callable[[float], str] | None = None) -> str:
    """A gap as `+0.12 (+0.02 to +0.2, n = 40)`; with `show` a mean of another kind."""
    if one is None:
        return "not evaluated"
    # Rounding noise of equal scores is no difference.
    shown = show or (lambda value: f"{round(value, 9) + 0.0:+.3g}")
    return mean_words(one.mean, one.low, one.high, one.n, shown)


AHEAD = Threshold(0.0, "the difference on the same prompts is above zero with its whole interval")
ABLE = 0.1  # mean score below which a cache fails the tasks and cannot be judged
NOT_BEHIND = Threshold(-0.05, "a margin of five points of score: competitive says nothing closer")


def contest(
    says: str,
    gaps: Mapping[str, Interval | None],
    finding: str,
    settle: Measurement | None = None,
    threshold: Threshold = AHEAD,
    printed: Mapping[str, float | None] | None = None,
) -> Claim:
    """The claim that all named gaps are beyond the threshold, with the deciding interval.

    `printed` are the paper's own values of the gaps.
    """
    known = sorted(((name, one) for name, one in gaps.items() if one is not None), key=lambda pair: pair[1].low)
    missing = [None] * (len(gaps) - len(known))
    if not known:
        return Claim(says, OPEN, finding, threshold=threshold, settle=settle)
    verdict, decider, _ = decisive([(one, threshold) for one in [*(one for _, one in known), *missing]])
    part = next((name for name, one in known if one is decider), "")
    value = (printed or {}).get(part)
    # Why a difference is 0 on every prompt.
    effect: Effect = ""
    if verdict == OPEN and decider is not None and decider.samples and not any(decider.samples):
        effect = "ceiling" if decider.level == 1 else "floor" if decider.level == 0 else "equal"
    return Claim(
        says,
        verdict,
        finding,
        Basis((decider or known[0][1]).n),
        decider,
        threshold,
        settle if verdict == OPEN else None,
        part=part,
        printed=() if value is None else (value,),
        effect=effect,
    )
