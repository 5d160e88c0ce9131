"""`kvlab safe-budget`: the smallest budget that is safe on one's own prompts, with a statistical guarantee."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import pandas as pd
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvlab.cli.options.model import ModelOptions
from kvlab.cli.options.plan_check import Force, check_fits
from kvlab.cli.options.signature import Setting, group_parameters
from kvlab.common.atomic_write import replace_text
from kvlab.common.terminal import print_wide, standard_error
from kvlab.core import FULL, Budget, UserError, split_list
from kvlab.evaluation.request import EvalJob

if TYPE_CHECKING:
    from kvlab.results.risk.losses import Measure
    from kvlab.results.risk.safe_budget import Criterion, SafeBudgets


ALL_SAVED = "all"


@dataclass(frozen=True)
class OwnPrompts:
    """The prompts, wherever they are."""

    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="your prompts: a text, PDF, DOCX, HTML, notebook, JSONL, CSV or Parquet file, or a folder of such; "
            "repeatable"
        ),
    ] = None
    tasks: Annotated[str, typer.Option(help="kvlab's tasks, such as needle,key_value:pairs=64")] = ""
    data: Annotated[list[str] | None, typer.Option(help="a benchmark's file, as for kvlab eval")] = None
    saved: Annotated[str, typer.Option(help="saved prompts with these words in name or text; 'all' for every one")] = ""
    new_tokens: Annotated[int | None, Setting("tokens per answer for prompts of files")] = None
    runs: Annotated[Path, typer.Option(help="the folder of runs, next to which prompts are saved")] = Path("runs")

    def files(self) -> list[str]:
        """The files as `kvlab eval --data` takes them; saved prompts become one. Raises UserError for missing ones."""
        option = "" if self.new_tokens is None else f":max_new_tokens={self.new_tokens}"
        paths = self.prompts or []
        for path in paths:
            if not path.exists():
                raise UserError(
                    f"There is no file or folder {path}: give a text, a document, a table of prompts, or a folder of "
                    "these."
                )
        tables = [f"prompts={path.absolute()}{option}" for path in paths]
        tables += self.data or []
        if not self.saved:
            return tables
        # Saved prompts as a file of rows, which an evaluation can find again.
        from kvlab.library.prompts import FOLDER, saved_prompts

        found = saved_prompts(self.runs, "" if self.saved == ALL_SAVED else self.saved)
        if not found:
            raise UserError(f"No saved prompt matches {self.saved!r}: `kvlab prompts ls` lists them.")
        lines = []
        for one in found:
            answers = [answer for answer in (one.answer, *one.other_answers) if answer]
            turns = [turn.model_dump(mode="json") for turn in one.turns]
            text = {"messages": turns} if turns else {"prompt": one.prompt}
            lines.append(json.dumps(text | {"answer": answers, "name": one.name}, ensure_ascii=False))
        content = "\n".join(lines) + "\n"
        file = self.runs / FOLDER / "sets" / f"saved-{hashlib.sha256(content.encode()).hexdigest()[:8]}.jsonl"
        replace_text(file, content)
        return [*tables, f"prompts={file.absolute()}{option}"]


LADDER = "90%,70%,50%,40%,30%,20%,15%,10%,5%"
DEFAULT_METHODS = "snapkv,keepkv"
MARGIN = 2  # prompts of a task: this many times the fewest that any guarantee needs


@group_parameters
def safe_budget(
    *,
    prompts: OwnPrompts,
    from_rows: Annotated[
        Path | None, typer.Option("--from", help="certify from the rows of this evaluation; nothing is measured")
    ] = None,
    methods: Annotated[
        str, typer.Option(help=f"such as h2o,keepkv:preset=paper; default: {DEFAULT_METHODS}, with --from all")
    ] = "",
    budgets: Annotated[str, typer.Option(help="the ladder of budgets, in one unit")] = LADDER,
    by: Annotated[
        str,
        typer.Option(help="answer (right answers lost), score (mean fall), text (differs), or kl (above 0.1 nats)"),
    ] = "answer",
    tolerance: Annotated[str, typer.Option(help="at most this share may change, such as 2% or 0.02")] = "2%",
    confidence: Annotated[str, typer.Option(help="of the whole answer, such as 95%")] = "95%",
    kl_above: Annotated[float, Setting("with --by kl, nats per token above which a text has changed")] = 0.1,
    groups: Annotated[
        bool, typer.Option("--groups", help="certify each group (column group, or task) on its own")
    ] = False,
    samples: Annotated[
        int | None, typer.Option(help="prompts of each task or file; default: all of files, enough of tasks")
    ] = None,
    lengths: Annotated[str | None, typer.Option(help="tokens per prompt of tasks; default: each task's own")] = None,
    seed: Annotated[int, typer.Option(help="of the tasks' prompts")] = 0,
    question_aware: Annotated[str, typer.Option(help="compress with the question visible: yes or no")] = "yes",
    out: Annotated[
        Path | None, typer.Option(help="folder of results, which a stopped run resumes; default: runs/eval/safe-NAME")
    ] = None,
    loading: ModelOptions,
    force: Force = False,
    csv: Annotated[Path | None, typer.Option(help="write the table of budgets to FILE.csv")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the whole result as JSON")] = False,
) -> None:
    """Find the smallest KV budget that is safe on your prompts, with a statistical guarantee."""
    # Imported here so that `kvlab --help` does not wait for pandas' readers and torch.
    from kvlab.evaluation.request_parser import parse_yes_no
    from kvlab.evaluation.results.rows import read_results
    from kvlab.results.risk.export import as_json as to_json
    from kvlab.results.risk.safe_budget import Criterion, find_safe_budgets

    shares = parse_share(tolerance, "--tolerance"), parse_share(confidence, "--confidence")
    criterion = Criterion(cast("Measure", by), *shares, kl_above, groups)
    if csv is not None and csv.suffix != ".csv":
        raise UserError(f"--csv takes a file that ends in .csv, not {csv}.")
    if from_rows is not None:
        if prompts.prompts or prompts.tasks or prompts.data or prompts.saved:
            raise UserError("--from takes an evaluation that exists: leave out --prompts, --tasks, --data and --saved.")
        if not from_rows.is_dir():
            raise UserError(f"There is no folder {from_rows}: name one that `kvlab eval --out` wrote.")
        rows = read_results(from_rows)
        # Of several models, or question-aware and not, those that the options name.
        aware = parse_yes_no(question_aware, "--question-aware")
        for column, value in (("model", loading.model), ("question_aware", aware)):
            if rows[column].nunique() > 1 and (rows[column] == value).any():
                rows = rows[rows[column] == value]
        notes = list[str]()
        place = from_rows
        chosen = split_list(methods)
    else:
        rows, notes, place = _measured(
            prompts,
            methods or DEFAULT_METHODS,
            budgets,
            samples,
            criterion,
            loading,
            out,
            force,
            lengths=lengths,
            seed=seed,
            question_aware=question_aware,
        )
        chosen = []
    found = find_safe_budgets(rows, criterion, chosen)
    if csv is not None:
        replace_text(csv, found.table.to_csv(index=False))
    if as_json:
        typer.echo(to_json(found, notes, str(place)))
        return
    _print(found, notes, place)


def parse_share(text: str, option: str) -> float:
    """A share from `2%`, `2 %` or `0.02`; raises UserError naming the option."""
    words = "".join(text.split())
    try:
        return float(words[:-1]) / 100 if words.endswith("%") else float(words)
    except ValueError:
        raise UserError(f"{option} takes a share such as 2% or 0.02, not {text[:40]!r}.") from None


def ordered_ladder(text: str) -> tuple[str, list[str]]:
    """The budgets from the largest down, each once, and a note if they were given otherwise.

    Raises UserError for budgets in several units, which have no common order.
    """
    given = [Budget.parse(part) for part in split_list(text)]
    units = {budget.unit for budget in given}
    if len(units) > 1:
        raise UserError(
            f"A ladder has budgets in one unit, not in {' and '.join(sorted(units))}: give shares or slots only."
        )
    order = sorted(dict.fromkeys(given), key=lambda budget: budget.number, reverse=True)
    words = ",".join(str(budget.amount) for budget in order)
    is_new = order != given and order != given[::-1]
    note = f"The ladder was put in order, without repeats: {', '.join(budget.description for budget in order)}."
    return words, [note] if is_new else []


def _measured(
    prompts: OwnPrompts,
    methods: str,
    budgets: str,
    samples: int | None,
    criterion: Criterion,
    loading: ModelOptions,
    out: Path | None,
    force: bool,
    **options: Any,
) -> tuple[pd.DataFrame, list[str], Path]:
    """The rows of an evaluation of the prompts, notes on it, and its folder."""
    from kvlab.evaluation.data_check import check_tasks, plan_ahead
    from kvlab.evaluation.harness import evaluate
    from kvlab.evaluation.job import shown_progress
    from kvlab.evaluation.request_parser import parse_request
    from kvlab.results.risk.bounds import least_prompts
    from kvlab.results.risk.losses import lacking
    from kvlab.results.risk.safe_budget import check_enough
    from kvlab.tasks.sample import UNSCORED

    files = prompts.files()
    if not prompts.tasks and not files:
        raise UserError("Name your prompts: --prompts FILE or FOLDER, --tasks NAME, --saved all, or --from FOLDER.")
    ladder, notes = ordered_ladder(budgets)
    alpha = (1 - criterion.confidence) / max(1, len(split_list(methods)))
    enough = MARGIN * least_prompts(criterion.tolerance, alpha)
    request = parse_request(
        tasks=prompts.tasks,
        files=files,
        methods=methods,
        budgets=ladder,
        depths=None,
        samples=samples or (enough if prompts.tasks else 100_000),
        forced=criterion.by == "kl",
        **asdict(loading),
        **options,
    )
    first = request.tasks[0].task if request.tasks else request.files[0].path.stem
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", first).strip(".-") or "prompts"
    place = out or prompts.runs / "eval" / f"safe-{name}"
    if not force:
        check_fits(EvalJob(name="request", request=request))
    check_tasks(request)
    # Refuse too few prompts, or prompts without the answers to measure by, before anything is measured.
    plan = plan_ahead(request)
    if plan is not None:  # else the tokenizer comes with the model
        user_prompts = [prompt for prompt in plan.prompts if prompt.identity.content]
        needs_answers = criterion.by in ("answer", "score")
        without = sum(prompt.make().metric == UNSCORED for prompt in user_prompts) if needs_answers else 0
        if without == len(plan.prompts):
            raise UserError(lacking(criterion.by))
        arms = {(choice.method, str(choice.hyper_parameters)) for choice in request.choices}
        check_enough(criterion, {"": len(plan.prompts) - without}, len(arms - {(FULL.method, "{}")}))
    with shown_progress(standard_error()) as listener:
        result = evaluate(request, place, on_progress=listener)
    return result.rows, [*notes, *result.notes], place


def _print(found: SafeBudgets, notes: list[str], place: Path) -> None:
    from kvlab.results.risk import sentences

    table = Table("group", "method", "budget", "changed", "risk", "upper bound", "p", "certified", box=SIMPLE_HEAD)
    confidence = sentences.share(1 - found.alpha)
    table.caption = f"upper bound: of one budget alone, with {confidence} confidence; p: of a risk above the tolerance"
    for line in found.table.to_dict("records"):
        certified = "yes" if line["certified"] else "no" if line["tested"] else "not tested"
        numbers = f"{line['changed']:.3g} of {line['prompts']}", *map(sentences.share, (line["risk"], line["upper"]))
        table.add_row(line["group"], line["arm"], line["asked"], *numbers, f"{line['p_value']:.2g}", certified)
    print_wide(table)
    for sentence in (*sentences.headline(found), *sentences.method_lines(found), sentences.assumptions(found)):
        typer.echo(sentence)
    for note in (*sentences.notes(found), *notes):
        typer.echo(note)
    asked = f"--by {found.criterion.by} --tolerance {100 * found.criterion.tolerance:g}%"
    typer.echo(f"Rows: {place}. Again without measuring: kvlab safe-budget --from {place} {asked}")
