"""What a new run's prompt asks for: the expected answer and its fact, or a needle planted in a person's own text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st
from pydantic import ValidationError

from app.base.text import plain, shorten
from app.compare.facts import facts_section
from app.new_run.prompt_source import Given
from kvlab.common.errors import UserError
from kvlab.figures.base.words import plural
from kvlab.models.mini import phrasing
from kvlab.requests.compare import OnePrompt
from kvlab.requests.conversation import Turn
from kvlab.requests.facts import check_answer, find_facts
from kvlab.requests.repeats import MOST_REPEATS, VARIED, Planting, plantings
from kvlab.tasks.plant import WORDINGS, plant
from kvlab.tasks.shipped_samples import shipped_samples


@dataclass(frozen=True)
class Question:
    """The prompt as it will be read, and what is asked of it; `error` says in one sentence what cannot be used.

    With `repeats` the prompt is the first of them, and `text` what their needles are planted in. With `turns` it is a
    conversation; of `several` prompts it is the longest.
    """

    prompt: str
    answer: str | None = None
    facts: tuple[tuple[int, int], ...] = ()
    error: str = ""
    repeats: tuple[Planting, ...] = ()
    text: str = ""
    turns: tuple[Turn, ...] = ()
    several: tuple[OnePrompt, ...] = ()
    other_answers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def asked(self) -> dict[str, Any]:
        """The fields of a request that it fills."""
        if self.repeats:
            return {"prompt": self.text, "repeats": self.repeats, "notes": self.notes}
        if self.several:
            return {"prompt": self.several[0].prompt, "prompts": self.several}
        chat = {"turns": self.turns} if self.turns else {}
        return {"prompt": self.prompt, **self._answered, "notes": self.notes, **chat}

    @property
    def _answered(self) -> dict[str, Any]:
        return {"answer": self.answer, "other_answers": self.other_answers, "facts": self.facts}

    @property
    def as_prompt(self) -> OnePrompt | None:
        """What can be saved of it; None for several prompts or repeats, and for what cannot be used."""
        if self.repeats or self.several or self.error or not self.prompt.strip():
            return None
        fields = {"turns": self.turns} if self.turns else {"prompt": self.prompt}
        try:
            return OnePrompt(**fields, **self._answered, notes=self.notes)
        except ValidationError:
            return None

    @property
    def comparisons(self) -> int:
        """How many it asks for."""
        return len(self.repeats) or len(self.several) or 1


def planted(text: str, repeats: tuple[Planting, ...], notes: tuple[str, ...] = ()) -> Question:
    """The question of the first of `repeats`, with the others to come where there are more; `notes` are the text's.

    Raises:
        UserError: as `kvlab.tasks.plant.plant`.
    """
    first = repeats[0]
    found = plant(text, first.depth, first.draw, first.wording)
    facts = find_facts(found.prompt, [found.fact])
    several = repeats if len(repeats) > 1 else ()
    return Question(found.prompt, found.answer, facts, repeats=several, text=text, notes=notes)


def answer_section(given: Given) -> Question:
    """The prompt with its answer and facts: some have their own, other texts get them typed here or planted."""
    st.subheader("Answer")
    one, prompt = given.one, given.one.prompt
    if given.several:
        return _of_several(given)
    if given.brings_answer:
        return _brought(one)
    sample = next((sample for sample in shipped_samples() if sample.text == prompt), None)
    if sample is not None and sample.answer is not None:
        return _of_sample(prompt, sample.answer, sample.facts)
    if not one.turns and st.toggle(
        "Plant a needle in my text",
        key="plant",
        bind="query-params",
        help="A sentence with a number, asked for at the end of the text: expected answer and fact in one",
    ):
        return _planted(one)
    answer = st.text_input(
        "Expected answer (optional)",
        key="answer",
        bind="query-params",
        help="A run is right where its text holds these words. The board on Compare starts from it.",
    )
    try:
        facts = facts_section(prompt, opened=bool(answer.strip()))
        right = check_answer(answer) if answer.strip() else None
        return Question(prompt, right, facts, turns=one.turns, notes=one.notes)
    except UserError as error:
        return _unusable(prompt, error)


def _of_several(given: Given) -> Question:
    asked = sum(one.answer is not None for one in given.several)
    told = "each has its answer" if asked == len(given.several) else f"{asked} of them have an answer"
    alone = "none has an answer, so the runs are told apart by how close they stay to the full cache"
    st.caption(
        f"**{len(given.several)} prompts**, one comparison each, and what they say together; "
        f"{told if asked else alone}. The table beside takes answers; a row's own stands in its column `answer`, its "
        "facts in `facts`. Level light is enough."
    )
    return Question(given.one.prompt, turns=given.one.turns, several=given.several)


def _brought(one: OnePrompt) -> Question:
    """Answer and facts as they came with the prompt."""
    words = [one.prompt[start:stop] for start, stop in one.facts]
    rests = f", which rests on “{plain(shorten(words[0], 120))}”" if words else ""
    right = " or ".join(f"**{plain(answer)}**" for answer in (one.answer, *one.other_answers) if answer)
    told = f"The right answer is {right}{rests}." if right else "No answer was given with it."
    st.caption(told)
    return Question(
        one.prompt, one.answer, one.facts, turns=one.turns, other_answers=one.other_answers, notes=one.notes
    )


def _of_sample(prompt: str, answer: str, facts: tuple[str, ...]) -> Question:
    rests = f", which rests on “{plain(facts[0])}”" if facts else ""
    st.caption(f"The right answer is **{plain(answer)}**{rests}.")
    return Question(prompt, answer, find_facts(prompt, facts))


def _planted(one: OnePrompt) -> Question:
    count, vary = _repeats_asked()
    kind, depth = 0, 30
    if "wording" not in vary:
        kind = st.selectbox(
            "Wording (those that mini was taught)",
            range(WORDINGS),
            key="plant_kind",
            bind="query-params",
            format_func=lambda kind: phrasing.needle_statement(phrasing.NEEDLE_PHRASINGS[kind], "…", "…"),
        )
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    if "depth" in vary:
        left, right = right, left
    else:
        with left:
            depth = st.slider("Depth", 0, 100, 30, 5, format="%d %%", key="plant_depth", bind="query-params")
    with right:
        seed = int(st.number_input("Draw", 0, 9999, 0, key="plant_seed", bind="query-params"))
    first = Planting(wording=kind, depth=depth / 100, draw=seed)
    try:
        repeats = plantings(count, first, WORDINGS, vary) if count > 1 else (first,)
        question = planted(one.prompt, repeats, one.notes)
    except UserError as error:
        return _unusable(one.prompt, error)
    if len(repeats) > 1:
        st.caption(_in_words(repeats))
    asks = question.prompt.rsplit("\nQuestion: ", 1)[1].replace("\nAnswer:", " · Answer:")
    ((start, stop),) = question.facts
    st.caption(
        f"{'The first is planted' if question.repeats else 'Planted'} at {100 * repeats[0].depth:g} %: "
        f"“{plain(question.prompt[start:stop])}” Appended: “{plain(asks)}” "
        f"The right answer is **{plain(question.answer or '')}**."
    )
    return question


def _repeats_asked() -> tuple[int, tuple[str, ...]]:
    """How many prompts, and what changes from one to the next beside name and number."""
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    with left:
        count = int(
            st.number_input(
                "Repeats",
                1,
                MOST_REPEATS,
                1,
                key="plant_repeats",
                bind="query-params",
                on_change=_lighter,
                help="As many prompts, each with a name and a number of its own: every cell of the board then has its "
                "share of right answers, with an interval",
            )
        )
    if count == 1:
        return 1, ()
    with right:
        vary = st.pills("Vary", VARIED, selection_mode="multi", default=VARIED, key="plant_vary", bind="query-params")
    return count, tuple(vary)


def _lighter() -> None:
    """Called before the script runs again: many prompts are recorded lightly, unless the reader says otherwise."""
    if st.session_state["plant_repeats"] > 1:
        st.session_state["level"] = "light"


def _in_words(repeats: Sequence[Planting]) -> str:
    depths = sorted(100 * one.depth for one in repeats)
    spread = f"depths {depths[0]:g} to {depths[-1]:g} %" if depths[0] < depths[-1] else f"depth {depths[0]:g} %"
    wordings = len({one.wording for one in repeats})
    told = f"{len(repeats)} prompts, one after another: {spread}, {plural(wordings, 'wording')}, new names and numbers."
    return f"{told} Level light is enough for the board over all prompts."


def _unusable(prompt: str, error: UserError) -> Question:
    st.error(plain(str(error)))
    return Question(prompt, error=str(error))
