"""The cache wall: every layer and head of a run at once, or the difference of two runs, and the views beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import streamlit as st

from app.base.component import component, on_value
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.base.widgets import button_unless, one_of
from app.compare.board import board_of
from app.components import Shared, SharedData, share, tokentext
from app.figures.export_menu import Offer, show_title
from app.figures.figure import frame_of, note, show, show_view
from app.figures.tables import show_table
from app.navigation import page
from app.navigation.place import chosen_step, chosen_token, step_reason
from app.navigation.selection import current_sources, other_run
from app.queue.job_panel import queue_and_open
from app.session.open_runs import BY_STAMP
from app.session.url_state import go_to, set_page_param, url_value
from kvlab.browser import pack_payload, read_static
from kvlab.core import OF_TOKENS, Restore, UserError
from kvlab.jobs.work import rerun_with_restored
from kvlab.report.views import Cue, TokenClass
from kvlab.trace.reader import Run
from kvlab.views import difference
from kvlab.views.base import HUES, join_sources, of_run
from kvlab.views.base.view import Subject, find_view
from kvlab.views.frames import compare
from kvlab.views.frames.facts import facts_in
from kvlab.views.frames.lineage import keep_by_run, merged_slots
from kvlab.views.wall import fate_looks, open_wall, reads_at, wall_content, wall_vectors

WALL = "cache-wall"
OPEN_WALLS = 6
KEY = "wall-panes"
PANES_PARAM = "panes"
# Views beside the wall by name, with their labels.
PANES = {
    "text": "Text",
    "attention": "Attention",
    "lineage": "What flowed into a slot",
    "kl": "KL",
    "board": "Answers",
    "edit": "Change and rerun",
}
DEFAULT = ("text", "attention")
DIFFERENCE_CUES: tuple[Cue, ...] = ("none", "under", "dashed", "strike", "faint")  # of `difference.NAMES`
SIDE_BY_SIDE = 2
# What may be changed before a run is repeated.
CHANGES = {
    "tokens": "keep the chosen token",
    "drop": "drop the chosen token",
    "merge": "merge the chosen token",
    "heads": "evict nothing",
    "apart": "do not merge",
    "evict": "evict instead of merging",
}


_component = component("wall", read_static("wall.html"), "step-bar.css", "wall.css")


def draw(differs: bool = False) -> None:
    """The wall of the run in the bar, or its difference from the second run."""
    sources = current_sources()
    run = sources.run
    if run is None:
        return
    page.explain_status(run)
    if run.record.level != "full":
        page.explain_level(run, "single events, so the fate of tokens is unknown")
        return
    if page.nothing_recorded(run):
        return
    other = other_run(run, sources.runs) if differs else None
    if differs:
        if other is None:
            st.info("A difference is of two runs: this comparison has no other one.", icon=":material/info:")
            return
        try:
            find_view("difference").check([run, other])
            difference.walls_of([run, other])
        except UserError as error:
            st.info(plain(str(error)), icon=":material/info:")
            return
    page.at_place(run, partial(whole_wall, run, other, sources.runs))


def whole_wall(run: Run, other: Run | None, runs: Sequence[Run], layer: int, head: int) -> None:
    wall = open_wall(run)
    step = chosen_step(run, wall.steps.tolist())
    token = chosen_token(run.record.comparison_id, wall.tokens)
    moment = "the prompt" if step == 0 else f"step {step}"
    label = run.record.label
    # The picture of the exports is drawn when one is asked for.
    if other is None:
        name = "wall"
        subject: Subject = run
        source = of_run(run)
        title = f"{label}: the cache after {moment}"
        looks = fate_looks(page_theme())
    else:
        name = "difference"
        subject = [run, other]
        source = join_sources(of_run(run), of_run(other))
        title = f"{label} and {other.record.label}: the caches after {moment}"
        hues = difference.hues_of(run.record.method, other.record.method)
        looks = difference.wall_looks(hues, label, other.record.label, page_theme())
    shares = frame_of(name, subject, step=step)
    caption = find_view(name).describe(shares, subject, step=step)
    picture = partial(find_view(name).draw_frame, shares, subject, page_theme(), step=step)
    file = f"{label}-{name}-step-{step}"
    offer = Offer(title, lambda: picture().figure, caption, source, has_picture=True, frame=shares, file_name=file)
    show_title(offer, WALL)
    content = wall_content(
        wall,
        step,
        f"{run.path}/{'' if other is None else other.path}",
        looks,
        page_theme(),
        why=step_reason(run),
        focus=(layer, head),
        token=token,
        facts=facts_in(run),
        reads=reads_at(run, step) if other is None else None,
    )
    shared: dict[str, Shared] = {
        "wall": wall_payload(run),
        "texts": page.token_texts_of(run, wall.tokens),
    }
    if other is not None:
        shared["other"] = wall_payload(other)
    payload = pack_payload({**share(WALL, **shared), **content})
    # `step` is where the user stopped, `place` the [layer, head, position] just clicked, position -1 beside the text.
    _component(
        key=WALL,
        data=payload,
        on_step_change=partial(on_value, WALL, "step", lambda step: go_to(step=int(step))),
        on_place_change=partial(
            on_value,
            WALL,
            "place",
            lambda place: go_to(
                **{name: int(at) for name, at in zip(("layer", "head", "token"), place, strict=True) if at >= 0}
            ),
        ),
    )
    note(caption)
    # A choice of views, kept in the URL, and the chosen ones side by side.
    requested = url_value(PANES_PARAM)
    names = list(DEFAULT) if requested is None else [name for name in PANES if name in requested.split(",")]
    st.session_state[KEY] = names
    st.pills(
        "Views beside the wall",
        list(PANES),
        selection_mode="multi",
        format_func=PANES.__getitem__,
        key=KEY,
        on_change=lambda: set_page_param(PANES_PARAM, ",".join(st.session_state[KEY]) or "none"),
    )
    place = Place(run, other, runs, layer, head, step, token)
    for first in range(0, len(names), SIDE_BY_SIDE):
        row = names[first : first + SIDE_BY_SIDE]
        for column, pane in zip(st.columns(len(row), gap="large"), row, strict=True):
            with column:
                draw_pane(pane, place)
    with st.expander("Shares of every head, as a table"):
        show_table(shares, f"Heads after step {step}", height=360)


@st.cache_resource(max_entries=OPEN_WALLS, show_spinner="Reading the events of all heads", hash_funcs=BY_STAMP)
def wall_payload(run: Run) -> SharedData:
    """The wall of a run as sent to the browser."""
    return SharedData(wall_vectors(open_wall(run)))


@dataclass(frozen=True)
class Place:
    """What all views look at. `other` is the run of a difference; `token` a position, None if none is chosen."""

    run: Run
    other: Run | None
    runs: Sequence[Run]
    layer: int
    head: int
    step: int
    token: int | None

    @property
    def name(self) -> str:
        """The layer and head."""
        return f"layer {self.layer}, head {self.head}"


def draw_pane(pane: str, place: Place) -> None:
    """One of the views of `PANES`."""
    run = place.run
    where: dict[str, Any] = {"layer": place.layer, "head": place.head, "step": place.step}
    if pane == "text":
        text_pane(place)
    elif pane == "attention":
        if page.masses_at(run, **where) is None:
            page.explain_no_masses(run, **where)
        else:
            show_view("attention_along_text", run, "wall-attention", **where)
    elif pane == "lineage":
        # The tokens that flowed into the slot of the chosen token, or into the slot with most votes.
        lineage = page.head_history(run, place.layer, place.head)[0]
        merged = merged_slots(lineage, place.step)
        token = place.token
        owner = None if token is None or token >= lineage.tokens else lineage.slot_of(token, place.step)
        slot = owner if owner in merged else next(iter(merged), None)
        show_view("river", run, "wall-lineage", slot=slot, **where)
    elif pane == "kl" and place.other is not None:
        # KL of both runs, and where their own texts diverge.
        tokens = difference.divergences(run, place.other)
        labels = {"a": "A diverges from the full cache", "b": "B diverges from it", "each_other": "A and B diverge"}
        page.metrics(
            (label, "never" if tokens[name] is None else f"at token {tokens[name]}", "In their own continuations.")
            for name, label in labels.items()
        )
        show_view("difference_kl", [run, place.other], "wall-kl-of-two")
        if changed := difference.changed_hues(run.record.method, place.other.record.method):
            st.caption(plain(changed))
    elif pane == "kl":
        if compare.has_kl(frame_of("kl_along_text", place.runs)):
            show_view("kl_along_text", place.runs, "wall-kl")
        else:
            st.info("These runs have no KL from the full cache: it requires a finished forced continuation.")
    elif pane == "board":
        board = board_of(place.runs)
        if board is None or board.frame.empty:
            st.info("This comparison has no expected answer: enter one on the page Result.", icon=":material/info:")
        else:
            drawn = find_view("board").draw_frame(board.frame, place.runs, page_theme())
            show(drawn.figure, drawn.frame, drawn.caption, "wall-board", drawn.file_name, drawn.provenance)
    else:
        edit_pane(place)


def text_pane(place: Place) -> None:
    """The text with the state of every token in this head; of two runs, which of them holds it."""
    if place.other is None:
        page.head_text(place.run, place.layer, place.head, place.step, "wall-text", shown=place.token)
        return
    kept = [
        difference.kept_at(run, place.step, departures(run)[place.layer, place.head][None, None])
        for run in (place.run, place.other)
    ]
    texts = page.token_texts_of(place.run, difference.tokens_read(place.run))
    codes = difference.classes(kept[0], kept[1], 0, 0, len(texts))
    hues = difference.hues_of(place.run.record.method, place.other.record.method)
    by_name = difference.class_looks(hues)
    classes = [
        TokenClass(name=name, colour=HUES[by_name.get(name, ("grey", ""))[0]], cue=cue)
        for name, cue in zip(difference.NAMES, DIFFERENCE_CUES, strict=True)
    ]
    tokentext(
        texts,
        codes,
        classes,
        identity=str(place.run.path),
        key="wall-difference-text",
        title=f"Tokens that A ({place.run.record.label}) and B ({place.other.record.label}) hold, {place.name}",
        source=join_sources(of_run(place.run), of_run(place.other)),
        scroll=place.token,
    )


def edit_pane(place: Place) -> None:
    """What to change and where; the button queues the run as it was and changed, and opens the page of their texts."""
    run = place.run
    token = place.token
    left, right, act = st.columns([3, 3, 2], vertical_alignment="bottom")
    with left:
        kind = one_of("Change", CHANGES, key="change")
    with right:
        where = one_of("Where", {"head": place.name, "all": "all layers and heads"}, key="where")
    why = ""
    if kind in OF_TOKENS:
        if token is None:
            why = "Click a token on the wall or in a text first."
        elif token >= run.record.prompt_tokens:
            why = "Only tokens of the prompt can be kept, dropped or merged: choose an earlier one."
    heads = None if where == "all" else ((place.layer, place.head),)
    tokens = (token,) if kind in OF_TOKENS and token is not None else ()
    with act:
        if button_unless("Run it again so", why, icon=":material/replay:", key="wall-rerun"):
            change = Restore.model_validate({"kind": kind, "tokens": tokens, "heads": heads})
            queue_and_open("compare", lambda: rerun_with_restored(run.record, change))
    texts = page.token_texts_of(run, run.record.prompt_tokens)
    text = "" if token is None or token >= len(texts) else texts[token].strip()
    chosen = f" The chosen token is {token} “{text}”." if token is not None else ""
    explanation = (
        f"{run.record.label} runs twice: as it was, and with this change. Slots kept come on top of its budget."
    )
    st.caption(plain(explanation + chosen))


departures = keep_by_run(1)(difference.departure_steps)
