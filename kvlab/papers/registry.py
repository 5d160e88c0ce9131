"""All exhibits by paper, in print order, and the measurements that fill them if nothing was measured yet."""

import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from kvlab.core.errors import UserError
from kvlab.papers.exhibit import DIFFERENCE, DRAWINGS, Choice, Exhibit, Needs, Paper
from kvlab.papers.pyramid_pool import calculator
from kvlab.papers.score_exhibits import ScoreExhibit, score_exhibit
from kvlab.requests.measurement import MINI, Measurement
from kvlab.results.sources import Sources

PAPERS: dict[Paper, str] = {
    "zsmerge": "ZSMerge",
    "kvmerger": "KVMerger",
    "pyramid-pool": "PyramidPool",
    "keepkv": "KeepKV",
    "gvote": "GVote",
    "beyond": "Beyond the five papers",
}


def load_exhibits(paper: Paper) -> tuple[Exhibit, ...]:
    """The exhibits of a paper, in the order of its `exhibits.toml`; `DRAWINGS` has those that are not rows of arms."""
    file = Path(__file__).parent / paper.replace("-", "_") / "exhibits.toml"
    described = tomllib.loads(file.read_text(encoding="utf-8"))
    of_scores = {slug for slug, row in described.items() if "arms" in row or "panels" in row}
    drawings = {key.partition("/")[2]: draw for key, draw in DRAWINGS.items() if key.startswith(f"{paper}/")}
    assert described.keys() == drawings.keys() | of_scores, described.keys() ^ (drawings.keys() | of_scores)
    exhibits = []
    for slug, row in described.items():
        fields: dict[str, Any] = {
            name: " ".join(row[name].split()) for name in ("title", "shows", "look_for") if name in row
        }
        fields |= {name: row[name] for name in ("short", "numbers", "printed", "source") if name in row}
        drawing = score_exhibit(paper, slug, row).draw if slug in of_scores else drawings[slug]
        if "shows" not in fields:
            # What the table of a contest of two arms shows, by its row.
            when = "with its question in sight" if row.get("question_aware") else "before its question is read"
            is_whole = row["arms"][0].startswith("sparse")
            held = "hold every token" if is_whole else f"at {100 * row['budgets'][0]:g} %"
            fields["shows"] = (
                f"Both arms {held} and the full cache, a column per task; each prompt is compressed {when}. Cells show "
                "mean scores with intervals. The share kept exceeds the budget by what is read and written after the "
                "compression."
            )
            fields["numbers"] = {"scores": "nats of KL saved per token" if row["tasks"] == "text" else DIFFERENCE}
        controls = tuple(row.get("controls", ()))
        entries = calculator.ENTRIES if row.get("source") == "calculator" else ()
        exhibits.append(Exhibit(paper, slug, drawing=drawing, entries=entries, controls=controls, **fields))
    return tuple(exhibits)


# Figures that the paper shows for several models, which are one exhibit here.
JOINED = {"kvmerger/fig-7": "fig-6", "kvmerger/fig-8": "fig-6"}
# Importing a module fills `DRAWINGS`.
_files = sorted(Path(__file__).parent.glob("*/[a-z]*.py"))
for _module in ("benchmarks", *(f"{file.parent.name}.{file.stem}" for file in _files)):
    import_module(f"kvlab.papers.{_module}")
EXHIBITS: tuple[Exhibit, ...] = tuple(exhibit for paper in PAPERS for exhibit in load_exhibits(paper))


SCORES: dict[str, ScoreExhibit] = {
    one.key: exhibit for one in EXHIBITS if isinstance(exhibit := getattr(one.drawing, "__self__", None), ScoreExhibit)
}


def of_paper(paper: str) -> list[Exhibit]:
    """The exhibits of one paper."""
    return [exhibit for exhibit in EXHIBITS if exhibit.paper == paper]


def find(paper: str, slug: str) -> Exhibit:
    """The exhibit with this paper and slug; raises UserError if there is none."""
    found = [exhibit for exhibit in of_paper(paper) if exhibit.slug == JOINED.get(f"{paper}/{slug}", slug)]
    if not found:
        known = ", ".join(exhibit.slug for exhibit in of_paper(paper)) or "none"
        raise UserError(f"The atlas has no exhibit {slug!r} of {paper}: it has {known}.")
    return found[0]


class Empty(Sources):
    """A folder of runs in which nothing was measured yet."""

    @property
    def results(self) -> Path:
        return Path("nowhere")


def measurements_of(root: Path, keys: Sequence[str] = (), model: str = MINI) -> list[Measurement]:
    """The measurements of a model for the named exhibits, or for all; each once.

    Raises UserError if a key is not `paper/slug`, or there is no such exhibit.
    """
    if bad := next((key for key in keys if key.count("/") != 1), None):
        raise UserError(f"{bad!r} names no exhibit: write its paper and number, such as keepkv/fig-3.")
    chosen = [find(*key.split("/")) for key in keys] or list(EXHIBITS)
    nothing = Empty(root, named=model)
    needed = (exhibit.drawing(nothing, Choice(), "light") for exhibit in chosen)  # a calculator needs nothing
    return list(dict.fromkeys(one.measurement for one in needed if isinstance(one, Needs) and one.measurement))
