"""What holds for every exhibit of the atlas, whoever wrote it; and which exhibits there are."""

from __future__ import annotations

import math
import re
import shlex
import shutil
from pathlib import Path

import pytest

from kvlab.core.errors import UserError
from kvlab.papers.exhibit import DRAWINGS, SHORT, Choice, Drawn, Exhibit, Needs, draws
from kvlab.papers.registry import EXHIBITS, PAPERS, find, of_paper
from kvlab.requests.measurement import command_line
from kvlab.results.sources import Sources
from kvlab.trace import open_run
from kvlab.trace.schema import TABLES
from tests.papers.conftest import METHODS
from tests.synthetic.runs import write_synthetic_run

# The papers' figures and tables; a figure whose parts plot different things has a page a part.
PUBLISHED = {
    "zsmerge": "fig-1 fig-2 fig-3 tab-1 tab-2",
    "kvmerger": "fig-1 fig-2 fig-3a fig-3b fig-3c fig-3d fig-4 fig-5 fig-6 fig-9 tab-1 tab-2 tab-3 tab-4 tab-5 tab-6",
    "pyramid-pool": "fig-1 fig-2 fig-3 fig-4 fig-5 fig-6 fig-7 fig-8 tab-1 tab-2",
    "keepkv": "fig-1 fig-2a fig-2b fig-2c fig-2d fig-3 fig-4 fig-5 tab-1 tab-2 tab-3 tab-4",
    "gvote": "fig-1 fig-2 fig-3a fig-3b fig-4 fig-5 fig-6 fig-7",
}
OURS = {"beyond": " ".join([*(f"tab-{number}" for number in range(1, 29)), "fig-1", "fig-2"])}
SLUGS = [(paper, slug) for paper, text in PUBLISHED.items() for slug in text.split()]
MAX_BYTES = 2_000_000


@pytest.fixture(scope="module", params=["cut off", "gone", "one layer gone", "first ended", "just begun"])
def broken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """The same comparison after its arrays were lost, and while it is being made."""
    root = tmp_path_factory.mktemp("broken")
    going = {"first ended": METHODS[1:], "just begun": METHODS}.get(request.param, ())
    paths = [
        write_synthetic_run(
            root, method=method, comparison_id="all", status="running" if method in going else "complete"
        )
        for method in METHODS
    ]
    if request.param == "just begun":
        for table in (path / name for path in paths for name in TABLES):
            shutil.rmtree(table, ignore_errors=True)
            (table.parent / "parts.json").unlink(missing_ok=True)
    for file in root.glob("*/arrays/*.safetensors"):
        if request.param == "cut off":
            file.write_bytes(file.read_bytes()[:100])
        elif request.param == "gone" or "layer-001" in file.name:
            file.unlink()
    runs = [open_run(path) for path in paths]
    return Sources(root, runs[2], runs)


def test_two_functions_cannot_draw_one_exhibit() -> None:
    drawing = DRAWINGS["gvote/fig-4"]
    with pytest.raises(AssertionError, match="two functions draw gvote/fig-4"):
        draws("gvote/fig-4")(drawing)


def layers_of(exhibit: Exhibit) -> tuple[int, ...]:
    """Both of a run's layers, or one if the exhibit shows all at once."""
    return (0, 1) if "layer" in exhibit.controls else (0,)


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return Sources(tmp_path_factory.mktemp("empty"))


def test_there_are_30_figures_and_14_tables():
    numbers = {(paper, re.sub(r"[a-d]$", "", slug)) for paper, slug in SLUGS}
    assert sum(slug.startswith("fig-") for _, slug in numbers) == 30
    assert sum(slug.startswith("tab-") for _, slug in numbers) == 14


@pytest.mark.parametrize("paper", PUBLISHED | OURS)
def test_the_atlas_lists_each_exhibit_once_in_the_papers_order(paper: str):
    assert [exhibit.slug for exhibit in of_paper(paper)] == (PUBLISHED | OURS)[paper].split()


def test_an_unknown_exhibit_is_named_with_those_there_are():
    with pytest.raises(UserError, match="fig-1"):
        find("zsmerge", "fig-99")


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.key)
def test_an_exhibit_says_what_it_is(exhibit: Exhibit):
    for text in (exhibit.title, exhibit.shows, exhibit.look_for):
        assert len(text) > 10
        assert text == text.strip()
    kind, _, label = exhibit.slug.partition("-")
    names = ("Recording", "Contest") if exhibit.paper == "beyond" else ("Fig", "Tab")
    assert exhibit.number == f"{names[kind == 'tab']} {label}"
    assert exhibit.label == f"{exhibit.number} · {exhibit.short or exhibit.title}"
    assert len(exhibit.short or exhibit.title) <= SHORT
    assert len(set(exhibit.controls)) == len(exhibit.controls)


def test_short_titles_tell_the_exhibits_of_a_paper_apart():
    for paper in PAPERS:
        titles = [exhibit.short or exhibit.title for exhibit in of_paper(paper)]
        assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.key)
def test_without_a_run_an_exhibit_says_what_it_needs(exhibit: Exhibit, nothing: Sources):
    drawn = exhibit.draw(nothing, Choice(), "light")
    if exhibit.source == "calculator":
        assert isinstance(drawn, tuple)
        return
    assert isinstance(drawn, Needs)
    assert shlex.split(command_line(drawn.measurement))[0] == "kvlab"
    assert "--out" in shlex.split(command_line(drawn.measurement))
    assert drawn.sentence.endswith(".")


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.key)
def test_what_is_lost_or_not_there_yet_is_told_in_a_sentence(
    exhibit: Exhibit, broken: Sources, request: pytest.FixtureRequest
):
    one_gone = request.node.callspec.params["broken"] == "one layer gone"
    for layer in layers_of(exhibit) if one_gone else (0,):
        try:
            drawn = exhibit.draw(broken, Choice(layer=layer, head=1, step=8, token=20), "light")
            told = drawn.sentence if isinstance(drawn, Needs) else ". ".join(one.caption for one in drawn)
        except UserError as error:
            told = str(error)
        assert told.endswith((".", "»", "”"))


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.key)
def test_drawing_is_pure_and_shows_something(exhibit: Exhibit, recorded: Sources):
    """A drawing before it, in the other theme, changes nothing but colours."""
    choice = Choice(layer=1, head=1, step=8, token=20)
    drawn = exhibit.draw(recorded, choice, "light")
    if isinstance(drawn, Needs):
        assert command_line(drawn.measurement).startswith("kvlab ")
        return
    dark = exhibit.draw(recorded, choice, "dark")
    again = exhibit.draw(Sources(Path(recorded.root), recorded.run, recorded.runs), choice, "light")
    assert isinstance(again, tuple) and isinstance(dark, tuple)
    assert len({one.name for one in drawn}) == len(drawn) > 0
    for one, other, theirs in zip(drawn, again, dark, strict=True):
        is_sound(one)
        is_sound(theirs)
        assert one.figure.to_json() == other.figure.to_json()
        for repeated in (other, theirs):
            assert one.frame.equals(repeated.frame)
            assert one.claim == repeated.claim


def is_sound(drawn: Drawn) -> None:
    """A figure that is small and named, a caption and a claim with numbers, and where it came from."""
    assert len(drawn.frame)
    assert drawn.figure.data
    assert drawn.figure.layout.title.text
    assert len(drawn.figure.to_json()) < MAX_BYTES
    assert drawn.caption.endswith("."), (drawn.name, drawn.caption)
    assert "nan" not in drawn.caption.lower().split()
    assert "\n" not in drawn.caption
    assert drawn.origin
    if drawn.claim is not None:
        assert drawn.claim.verdict in ("holds", "does not hold", "not enough to say")
        assert drawn.claim.verdict == "not enough to say" or re.search(r"\d", drawn.claim.finding)
        assert str(math.nan) not in drawn.claim.finding.lower().split()


def test_every_stated_command_names_a_folder_that_the_dashboard_reads(nothing: Sources):
    for exhibit in EXHIBITS:
        drawn = exhibit.draw(nothing, Choice(), "light")
        if isinstance(drawn, Needs):
            words = shlex.split(command_line(drawn.measurement))
            out = Path(words[words.index("--out") + 1])
            below = {"eval": ("eval",), "bench": ("bench",)}.get(words[1], ())
            assert out.is_relative_to(nothing.root.joinpath(*below)), exhibit.key
