"""`kvlab eval --preset NAME --data DIR`: reproduce a paper's table and show our scores next to the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pydantic import ValidationError
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import kvlab
from kvlab.cli.options.plan_check import check_fits
from kvlab.common.terminal import print_wide, standard_error
from kvlab.core import MethodChoice, UserError, as_option, in_one_sentence, parse_spec, split_list
from kvlab.evaluation.request import EvalJob, EvalRequest

if TYPE_CHECKING:
    import pandas as pd


RESULTS = Path("runs/eval")
WIDTH = 160  # without a terminal


def run_paper_table(
    name: str,
    data: Sequence[str],
    out: Path | None,
    methods: str,
    as_json: bool,
    new_tokens: int | None,
    *,
    force: bool = False,
    **fields: Any,
) -> None:
    """List the files found, evaluate them, and show our scores next to the paper's.

    `methods` selects among the table's methods, or sets further options; `fields` are those of `EvalRequest`. Raises
    UserError if no file is found, or if this machine is too small (without `force`).
    """
    from kvlab.papers import paper_tables

    table = paper_tables.paper_table(name)
    errors = standard_error()
    if len(data) != 1 or not data[0].strip() or "\0" in data[0]:
        raise UserError(f"--preset {name} takes one folder: give --data DIR with the benchmark's files.")
    found = table.found(Path(data[0]))
    lines = [table.title]
    lines += [f"  {'found  ' if path else 'missing'}  {file.dataset:16} {path or file.find[0]}" for file, path in found]
    lines += dict.fromkeys(
        f"  missing files: {paper_tables.file_sources()[file.place]}" for file, path in found if path is None
    )
    for line in lines:
        errors.print(line, soft_wrap=True, highlight=False)
    files = paper_tables.file_choices(found, {} if new_tokens is None else {"max_new_tokens": new_tokens})
    if not files:
        raise UserError(f"None of the files of {name} is in {data[0]}: see above for the files and where to get them.")
    # The table's choices, or those of the named methods with the options given there.
    choices = table.choices()
    named = [parse_spec(text) for text in split_list(methods)]
    names = {choice.method for choice in choices}
    for method, _ in named:
        if method not in names:
            raise UserError(f"{table.name} has no method {method!r}: choose among {', '.join(sorted(names))}.")
    if named:
        choices = tuple(
            choice.model_copy(update={"hyper_parameters": {**choice.hyper_parameters, **options}})
            for method, options in named
            for choice in choices
            if choice.method == method
        )
    defaults = {"max_prompt": table.max_prompt, "lengths": table.lengths, "depths": table.depths}
    fields = defaults | {key: value for key, value in fields.items() if value is not None}
    try:
        request = EvalRequest(files=tuple(files), choices=choices, **fields)
    except ValidationError as error:
        raise UserError(in_one_sentence(error, as_option)) from error
    if not force:
        check_fits(EvalJob(name="request", request=request))
    folder = out or RESULTS / name
    rows = _run(request, folder, errors)
    frame = paper_tables.compare_scores(table, rows)
    if as_json:
        typer.echo(frame.to_json(orient="records", indent=2, force_ascii=False, double_precision=15))
    else:
        text = paper_tables.comparison_table(table, frame, rows)
        shown = Table(*text.header, box=SIMPLE_HEAD, title=text.title, caption=text.caption, caption_justify="left")
        for cells in text.lines:
            shown.add_row(*(cell.text for cell in cells))
        print_wide(shown, WIDTH)
    errors.print(f"As a file: kvlab table {folder} --preset {name} --out FILE.md, .tex or .html", soft_wrap=True)


def _run(request: EvalRequest, out: Path, errors: Console) -> pd.DataFrame:
    from kvlab.core.methods import make_method
    from kvlab.engine.progress import download_reporter
    from kvlab.evaluation.harness import evaluate
    from kvlab.evaluation.job import shown_progress
    from kvlab.models.load import held_model

    with shown_progress(errors) as listener:
        loaded = held_model(request, download_reporter(listener))
        # The choices that this model can run, and a sentence per method that it cannot.
        able: list[MethodChoice] = []
        notes: dict[str, str] = {}
        for choice in request.choices:
            try:
                kvlab.make_cache(loaded, make_method(choice.method, **choice.hyper_parameters), choice.budget)
                able.append(choice)
            except UserError as error:
                notes[choice.method] = f"{choice.method} is left out: {error}"
        if not able:
            raise UserError(next(iter(notes.values()), "There is no method to run."))
        result = evaluate(request.model_copy(update={"choices": tuple(able)}), out, loaded, on_progress=listener)
    for note in [*notes.values(), *result.notes]:
        errors.print(note, soft_wrap=True)
    return result.rows
