"""The report of a comparison by its id, in the format asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvlab.errors import UserError
from kvlab.figures.export import ImageWriter, Section
from kvlab.figures.template import for_export
from kvlab.library.paths import comparison
from kvlab.report.contents import Report, report
from kvlab.report.deck import deck
from kvlab.report.page import page
from kvlab.report.printed import printed
from kvlab.report.slides import slides, story_slides
from kvlab.trace.labels import load_labels
from kvlab.trace.reader import Run, open_run
from kvlab.trace.stories import Story

FORMATS = {"html": "text/html", "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
           "pdf": "application/pdf"}  # fmt: skip
SLIDE_WIDTH = 1200  # pixels of a figure on a slide, before they are doubled


def written(root: Path, name: str, kind: str) -> bytes:
    """The file of this kind (`FORMATS`).

    Raises:
        UserError: there is no such comparison, nothing of it can be read, or what the format needs is missing.
    """
    entry = comparison(root, name)
    runs: list[Run] = []
    for run in entry.runs:
        try:
            runs.append(open_run(root / run.run_id))
        except UserError:
            continue  # a run that cannot be read is left out, as on the page Compare
    if not runs:
        raise UserError(f"No run of {name[:80]!r} can be read: open it on the page Compare to see why.")
    return in_format(report(runs, load_labels(root, entry.comparison_id)), kind)


def in_format(told: Report, kind: str, writer: ImageWriter | None = None) -> bytes:
    """The report as a file; `writer` draws the pictures of slides, or one of its own does."""
    if kind == "html":
        return page(told)
    if kind == "pdf":
        return printed(page(told))
    with _writer(writer) as own:
        return slides(told, lambda section: _picture(own, section))


def talk(story: Story, kind: str, writer: ImageWriter | None = None) -> bytes:
    """A story as a talk of this kind (`FORMATS`); raises UserError for one without views."""
    made = deck(story)
    if kind == "html":
        return made
    if kind == "pdf":
        return printed(made)
    with _writer(writer) as own:
        return story_slides(story, lambda section: _picture(own, section))


@contextmanager
def _writer(given: ImageWriter | None) -> Iterator[ImageWriter]:
    """The writer that is there, or one for this file alone."""
    own = given or ImageWriter()
    try:
        yield own
    finally:
        if given is None:
            own.close()


def _picture(writer: ImageWriter, section: Section) -> bytes:
    figure = for_export(section.figure, "light", SLIDE_WIDTH).update_layout(title=None)
    return writer.image(figure, "png")
