"""Export reports, stories and head histories as files."""

import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

import plotly.graph_objects as go

from kvlab.core.errors import UserError
from kvlab.library.items import find_comparison
from kvlab.report.contents import Report, report
from kvlab.report.deck import deck, remove_title
from kvlab.report.page import page
from kvlab.report.pictures import animation, estimate_gif
from kvlab.report.slide_parts import Picture, slides, story_slides, why_no_slides
from kvlab.report.views import history_of
from kvlab.trace.reader import Run, open_run
from kvlab.trace.stories import Story
from kvlab.trace.user_labels import load_labels
from kvlab.views.base.export import NO_BROWSER, ImageWriter, decode_arrays, find_browser
from kvlab.views.base.palette import Theme
from kvlab.views.frames.lineage import fold, token_texts
from kvlab.views.frames.starting_point import suggest_head

FORMATS = {
    "html": "text/html",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "pdf": "application/pdf",
}
NEEDS_BROWSER = ("pptx", "pdf")  # for their pictures, and to print
SLIDE_HEIGHT = 450  # minimum height of a figure on a slide in pixels, before doubling
MOST_MARKS = 5000
LARGEST_SVG = 2 << 20


def why_unavailable(kind: str) -> str:
    """Why files of this kind (`FORMATS`) cannot be made here, in a sentence that says what to do; empty if they can."""
    if kind == "pptx" and (why := why_no_slides()):
        return why
    return NO_BROWSER if kind in NEEDS_BROWSER and find_browser() is None else ""


def export_report(root: Path, name: str, kind: str) -> bytes:
    """The report of a comparison as a file of this kind (`FORMATS`).

    Raises:
        UserError: there is no such comparison, nothing of it can be read, or the format's dependencies are missing.
    """
    entry = find_comparison(root, name)
    runs: list[Run] = []
    for run in entry.runs:
        try:
            runs.append(open_run(root / run.run_id))
        except UserError:
            continue  # as on the page Result
    if not runs:
        raise UserError(f"No run of {name[:80]!r} can be read: open it on the page Result to see why.")
    return render_report(report(runs, load_labels(root, entry.comparison_id)), kind)


def render_report(contents: Report, kind: str, writer: ImageWriter | None = None) -> bytes:
    """The report as a file; `writer` renders the slides' pictures (default: a temporary one)."""
    if kind == "html":
        return page(contents)
    if kind == "pdf":
        return print_pdf(page(contents))
    with closing(ImageWriter()) if writer is None else nullcontext(writer) as renderer:
        return slides(contents, partial(_picture, renderer))


def export_talk(story: Story, kind: str, writer: ImageWriter | None = None) -> bytes:
    """A story as a talk of this kind (`FORMATS`); raises UserError for one without views."""
    made = deck(story)
    if kind == "html":
        return made
    if kind == "pdf":
        return print_pdf(made)
    with closing(ImageWriter()) if writer is None else nullcontext(writer) as renderer:
        return story_slides(story, partial(_picture, renderer))


def export_gif(root: Path, name: str, layer: int | None, head: int | None, say: Callable[[str], None]) -> bytes:
    """One head of a run as a GIF; `say` receives its estimated size before the first frame.

    Raises:
        UserError: there is no such run, layer or head, it recorded no events, or there is no Chromium.
    """
    run = open_run(Path(root) / Path(name).name)
    shape = run.record.model
    if run.record.level != "full":
        raise UserError("A GIF needs events, which are recorded only at level full: record the run again with it.")
    telling = suggest_head(run, [run], None)
    layer = telling.layer if layer is None else layer
    head = telling.head if head is None else head
    if not (0 <= layer < shape.num_hidden_layers and 0 <= head < shape.num_key_value_heads):
        last = f"layers 0 to {shape.num_hidden_layers - 1}, KV heads 0 to {shape.num_key_value_heads - 1}"
        raise UserError(f"This run has {last}: choose one of them.")
    steps = run.select("steps", layer, head)
    if steps.empty:
        raise UserError(f"This run recorded nothing of layer {layer}, head {head}: choose another.")
    lineage = fold(run.select("events", layer, head), steps)
    history = history_of(lineage, token_texts(run.tokens, lineage.tokens), int(lineage.steps[-1]))
    say(f"{run.record.label}, layer {layer}, head {head}: {estimate_gif(len(history.steps))}")
    with closing(ImageWriter()) as renderer:
        return animation(history, renderer)


def _picture(writer: ImageWriter, shown: go.Figure | bytes, theme: Theme) -> Picture:
    if isinstance(shown, bytes):
        return Picture(writer.picture(shown, "png"), shown)
    figure = remove_title(go.Figure(shown))
    figure.layout.height = max(figure.layout.height or 0, SLIDE_HEIGHT)
    # Many marks take megabytes as SVG, and seconds in office programs.
    heights = [decode_arrays(getattr(trace, "y", None)) for trace in shown.data]
    light = all(values is None or len(values) <= MOST_MARKS for values in heights)  # type: ignore[arg-type]  # arrays
    svg = writer.image(figure, "svg", theme=theme) if light else None
    return Picture(writer.image(figure, "png", theme=theme), svg if svg and len(svg) <= LARGEST_SVG else None)


SECONDS = 90


def print_pdf(page: bytes) -> bytes:
    """Print an HTML page to PDF.

    Raises:
        UserError: there is no Chromium, or it does not print.
    """
    browser = find_browser()
    if browser is None:
        raise UserError(NO_BROWSER)
    with tempfile.TemporaryDirectory(prefix="kvlab-report-") as folder:
        source = Path(folder) / "report.html"
        target = Path(folder) / "report.pdf"
        source.write_bytes(page)
        profile = f"--user-data-dir={folder}/own"
        options = (browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer", profile)
        # Figures are drawn by scripts in the page: a virtual time budget makes printing wait for them.
        ahead = ("--virtual-time-budget=20000", "--run-all-compositor-stages-before-draw", f"--print-to-pdf={target}")
        try:
            subprocess.run([*options, *ahead, source.as_uri()], capture_output=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise UserError("Chromium did not print the report in time: export HTML instead.") from error
        if not target.exists():
            raise UserError("Chromium did not print the report: export HTML instead.")
        return target.read_bytes()
