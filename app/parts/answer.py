"""What a new run's prompt asks for: the expected answer and its fact, or a needle planted in a person's own text."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from app.parts.text import plain
from kvlab.answers import check_answer, find_facts
from kvlab.errors import UserError
from kvlab.models.mini import phrasing
from kvlab.tasks.plant import plant
from kvlab.tasks.shipped_samples import shipped_samples


@dataclass(frozen=True)
class Question:
    """The prompt as it will be read, and what is asked of it; `error` says in one sentence what cannot be used."""

    prompt: str
    answer: str | None = None
    facts: tuple[tuple[int, int], ...] = ()
    error: str = ""


def answer_section(prompt: str) -> Question:
    """The prompt with its answer and facts: a sample has its own, other texts get them typed here or planted."""
    st.subheader("Answer")
    sample = next((sample for sample in shipped_samples() if sample.text == prompt), None)
    if sample is not None and sample.answer is not None:
        return _of_sample(prompt, sample.answer, sample.facts)
    if st.toggle(
        "Plant a needle in my text",
        key="plant",
        bind="query-params",
        help="A sentence with a number, asked for at the end of the text: expected answer and fact in one",
    ):
        return _planted(prompt)
    answer = st.text_input(
        "Expected answer (optional)",
        key="answer",
        bind="query-params",
        help="A run is right where its text holds these words. The board on Compare starts from it.",
    )
    words = st.text_area(
        "Facts: words of the text the answer rests on, one a line (optional)",
        key="facts",
        bind="query-params",
        height=80,
        help="As they stand in the text. Without them, the place where the text holds the answer is taken.",
    )
    facts = [line.strip() for line in words.splitlines() if line.strip()]
    if not answer.strip() and not facts:
        return Question(prompt)
    try:
        return Question(prompt, check_answer(answer) if answer.strip() else None, find_facts(prompt, facts))
    except UserError as error:
        return _unusable(prompt, error)


def _of_sample(prompt: str, answer: str, facts: tuple[str, ...]) -> Question:
    rests = f", which rests on “{plain(facts[0])}”" if facts else ""
    st.caption(f"The right answer is **{plain(answer)}**{rests}.")
    return Question(prompt, answer, find_facts(prompt, facts))


def _planted(prompt: str) -> Question:
    kind = st.selectbox(
        "Wording (those that mini was taught)",
        range(len(phrasing.NEEDLE_PHRASINGS)),
        key="plant_kind",
        bind="query-params",
        format_func=lambda kind: phrasing.needle_statement(phrasing.NEEDLE_PHRASINGS[kind], "…", "…"),
    )
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    with left:
        depth = st.slider("Depth", 0, 100, 30, 5, format="%d %%", key="plant_depth", bind="query-params")
    with right:
        seed = int(st.number_input("Draw", 0, 9999, 0, key="plant_seed", bind="query-params"))
    try:
        planted = plant(prompt, depth / 100, seed, kind)
    except UserError as error:
        return _unusable(prompt, error)
    question = planted.prompt.rsplit("\nQuestion: ", 1)[1].replace("\nAnswer:", " · Answer:")
    st.caption(
        f"Planted at {depth} %: “{plain(planted.fact)}” Appended: “{plain(question)}” "
        f"The right answer is **{planted.answer}**."
    )
    return Question(planted.prompt, planted.answer, find_facts(planted.prompt, [planted.fact]))


def _unusable(prompt: str, error: UserError) -> Question:
    st.error(plain(str(error)))
    return Question(prompt, error=str(error))
