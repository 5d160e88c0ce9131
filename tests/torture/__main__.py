"""`make torture`: bad input, kills, full disks and many browsers, as one table (`python -m tests.torture --help`)."""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

import kvlab
from tests.torture.table import Row, as_markdown


def number(name: str, default: float) -> float:
    """A size of the tests, from the environment."""
    return float(os.environ.get(name, default))


def parts(work: Path) -> dict[str, Callable[[], list[Row]]]:
    """Every part by name, in the order they run. What forks comes first, while nothing else has begun a thread."""
    model = work / "model"
    return {
        "inputs": lambda: [_inputs(work / "in", model)],
        "kills": lambda: _part("kills").kills(work / "kills", model, int(number("KILLS", 100))),
        "disks": lambda: _part("disks").disks(work / "disks", model, int(number("DISKS", 24))),
        "generated": lambda: [_part("generated").generated(int(number("GENERATED", 500)), _say)],
        "held": lambda: [_part("held").held(name) for name in _part("held").HELD],
        "two": lambda: [_part("two").two(work / "two", int(number("JOBS", 20)))],
        "runs": lambda: _part("listed").listed(work / "kept", int(number("KEPT_RUNS", 5000))),
        "paste": lambda: [_paste(work / "paste")],
        "browsers": lambda: [
            _part("browsers").browsers(work / "browsers", int(number("BROWSERS", 20)), number("MINUTES", 5))
        ],
    }


def main() -> None:
    """Run the parts that are named, or all, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="such as inputs kills browsers; default: all")
    parser.add_argument("--out", type=Path, default=Path("runs/torture.md"), help="where the table goes")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvlab-torture-") as folder:
        work, rows = Path(folder), list[Row]()
        known = parts(work)
        _model(work / "model")
        for name in asked.parts or known:
            begun = time.monotonic()
            for row in known[name]():
                rows.append(row)
                _say(" | ".join(row.cells))
            _say(f"{name}: {time.monotonic() - begun:.0f} s")
    table = as_markdown(rows, _about())
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(table, encoding="utf-8")
    print(table)
    raise SystemExit(any(row.exceptions or row.lost for row in rows))


def _about() -> str:
    cores, load = psutil.cpu_count(), psutil.getloadavg()[2]
    return (
        f"kvlab {kvlab.__version__}, Python {platform.python_version()}, {cores} cores, load {load:.1f} over the last "
        f"15 minutes, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC; `make torture`."
    )


def _part(name: str) -> Any:
    from importlib import import_module

    return import_module(f"tests.torture.{name}")


def _model(folder: Path) -> None:
    import kvlab.engine
    import kvlab.evaluate.harness
    import kvlab.models.load  # noqa: F401  # forks need not import it again
    from tests.families import tiny_folder

    tiny_folder(folder)


def _inputs(work: Path, model: Path) -> Row:
    from tests.torture.commands import command_cases
    from tests.torture.judge import judge_all

    verdicts = judge_all(command_cases(work, model), _say)
    fallen = [verdict for verdict in verdicts if verdict.fault]
    row = Row("commands that cannot be", len(verdicts), len(fallen), seconds=[verdict.seconds for verdict in verdicts])
    row.faults = [f"{verdict.case.name[:80]}: {verdict.fault}" for verdict in fallen]
    return row


def _paste(work: Path) -> Row:
    from tests.torture.paste import waits

    alone, longest = waits(work, 5.0)
    return Row("5 MB pasted by somebody else", 1, seconds=[longest], note=f"the page alone: {alone:.1f} s")


def _say(line: str) -> None:
    print(line.encode("ascii", "backslashreplace").decode(), flush=True)


if __name__ == "__main__":
    main()
