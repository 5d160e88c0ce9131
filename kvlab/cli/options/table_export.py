"""`kvlab table`: results of `kvlab eval` as Markdown or LaTeX, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def table(
    folders: Annotated[list[Path], typer.Argument(help="folders of results, such as runs/eval/first")],
    out: Annotated[Path | None, typer.Option(help="FILE.md or FILE.tex; default: Markdown on the screen")] = None,
    preset: Annotated[str, typer.Option(help="as ours beside theirs: a paper's table, such as keepkv-table2")] = "",
) -> None:
    """Write a table of scores: methods and budgets down, tasks across, each mean with its 95 % interval."""
    import pandas as pd

    from kvlab.atlas import paper_table_text, paper_tables
    from kvlab.evaluate.results.rows import newest
    from kvlab.evaluate.results.store import read_results

    path = None if out is None else paper_table_text.check_file(out)
    known = paper_tables.paper_table(preset) if preset else None
    rows = pd.concat([read_results(folder) for folder in folders], ignore_index=True).drop_duplicates("key")
    rows = newest(rows).reset_index(drop=True)
    if known is None:
        tables = paper_table_text.score_tables(rows)
    else:
        tables = [paper_table_text.beside_table(known, paper_tables.beside(known, rows), rows)]
    if path is None:
        typer.echo("\n".join(map(paper_table_text.markdown, tables)), nl=False)
    else:
        paper_table_text.write(path, tables)
