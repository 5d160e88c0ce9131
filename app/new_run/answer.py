"""The expected answer and its facts on the form of New, or a needle planted in the user's text.

Of prompts that exceed the model's context window, the user chooses which part is left out.
"""

from dataclasses import dataclass, replace
from typing import Any

import streamlit as st
from pydantic import ValidationError

from app.base.text import plain, shorten
from app.base.widgets import one_of
from app.compare.facts import NEW_RUN, facts_section, marked_in, store
from app.figures.export_menu import Offer, show_title
from app.new_run.prompt_source import PromptChoice
from app.new_run.prompt_view import cut_as_html, cut_as_passages, further_down
from app.session.url_state import get_param, in_url, parse_number
from kvlab.common.formatting import model_title
from kvlab.core.errors import UserError
from kvlab.forms import uploads
from kvlab.models.info import mini
from kvlab.models.info.chat_template import ChatFormat
from kvlab.requests.compare import OnePrompt
from kvlab.requests.conversation import Turn
from kvlab.requests.facts import check_answer, find_facts, proposed_facts
from kvlab.requests.repeats import MOST_REPEATS, VARIED, Planting, plantings
from kvlab.tasks.haystack import WORDINGS, plant
from kvlab.tasks.shipped_samples import shipped_samples
from kvlab.views.base.words import plural

# characters of a sentence, and sentences that are offered
LONGEST_PROPOSAL = 160
MOST_PROPOSALS = 4


@dataclass(frozen=True)
class Question:
    """The prompt with its expected answer and facts; `error` is one sentence on why it cannot be used.

    With `repeats` the prompt is the first of them, and `text` the text without needles. With `turns` it is a
    conversation; with `several` prompts it is the longest.
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
    def request_fields(self) -> dict[str, Any]:
        """The fields of a request."""
        if self.repeats:
            return {"prompt": self.text, "repeats": self.repeats, "notes": self.notes}
        if self.several:
            return {"prompt": self.several[0].prompt, "prompts": self.several}
        chat = {"turns": self.turns} if self.turns else {}
        answered = {"answer": self.answer, "other_answers": self.other_answers, "facts": self.facts}
        return {"prompt": self.prompt, **answered, "notes": self.notes, **chat}

    @property
    def as_prompt(self) -> OnePrompt | None:
        """The prompt to save; None for several prompts, repeats, and errors."""
        if self.repeats or self.several or self.error or not self.prompt.strip():
            return None
        fields = self.request_fields
        if self.turns:
            del fields["prompt"]  # it is made of the turns
        try:
            return OnePrompt(**fields)
        except ValidationError:
            return None


def plant_needle(text: str, repeats: tuple[Planting, ...], notes: tuple[str, ...] = ()) -> Question:
    """The question with the needle of the first of `repeats`; `notes` are those of the text.

    Raises:
        UserError: as `kvlab.tasks.haystack.plant`.
    """
    first = repeats[0]
    needle = plant(text, first.depth, first.draw, first.wording)
    facts = find_facts(needle.prompt, [needle.fact])
    several = repeats if len(repeats) > 1 else ()
    return Question(needle.prompt, needle.answer, facts, repeats=several, text=text, notes=notes)


def answer_section(choice: PromptChoice) -> Question:
    """The prompt with its answer and facts, which come with it, are typed here, or are planted as a needle."""
    one = choice.prompt
    prompt = choice.prompt.prompt
    if choice.several:
        answers = sum(one.answer is not None for one in choice.several)
        count = len(choice.several)
        note = "each has an answer" if answers == count else f"{answers} of them have an answer"
        note = note if answers else "none has an answer, so runs are compared by how close they stay to the full cache"
        st.caption(
            f"**{count} prompts**, with one comparison each and results over all of them; {note}. Enter answers in the "
            "table, or provide them in a column `answer`, and facts in a column `facts`. Level light is enough."
        )
        return Question(choice.prompt.prompt, turns=choice.prompt.turns, several=choice.several)
    if choice.has_answer:
        # A prompt that came with its answer and facts.
        words = [one.prompt[start:stop] for start, stop in one.facts]
        basis = f", which depends on “{plain(shorten(words[0], 120))}”" if words else ""
        right = " or ".join(f"**{plain(answer)}**" for answer in (one.answer, *one.other_answers) if answer)
        st.caption(f"The right answer is {right}{basis}." if right else "This prompt has no answer.")
        return Question(
            one.prompt, one.answer, one.facts, turns=one.turns, other_answers=one.other_answers, notes=one.notes
        )
    sample = next((sample for sample in shipped_samples() if sample.text == prompt), None)
    if sample is not None and sample.answer is not None:
        basis = f", which depends on “{plain(sample.facts[0])}”" if sample.facts else ""
        st.caption(f"The right answer is **{plain(sample.answer)}**{basis}.")
        return Question(prompt, sample.answer, find_facts(prompt, sample.facts))
    if not one.turns and st.toggle(
        "Plant a needle in my text",
        **in_url("plant"),
        help="A sentence with a number, and a question for it at the end of the text. Sets answer and fact",
    ):
        return _planted(one)
    answer = st.text_input(
        "Expected answer (optional)",
        **in_url("answer"),
        help="A run is right if its text contains these words. The board on Result uses it.",
    )
    try:
        expected = check_answer(answer) if answer.strip() else None
        proposed = _proposed(prompt, expected)
        facts = facts_section(prompt)
        return Question(prompt, expected, facts or proposed, turns=one.turns, notes=one.notes)
    except UserError as error:
        return _unusable(prompt, error)


def _proposed(prompt: str, answer: str | None) -> tuple[tuple[int, int], ...]:
    """The only sentence that holds the answer, unless the user declines it; of several each is a click away.

    Nothing once a fact is marked or typed.
    """
    if answer is None or marked_in(prompt) or (st.session_state.get(NEW_RUN.typed) or get_param(NEW_RUN.typed)):
        return ()
    found = _sentences(prompt, [answer])
    if len(found) == 1:
        words = plain(shorten(prompt[slice(*found[0])], LONGEST_PROPOSAL))
        use = st.checkbox(f"The answer depends on “{words}”", True, **in_url("propose_fact"))
        return tuple(found) if use else ()
    if found:
        st.caption(f"{len(found)} sentences hold the answer. Click the one that it depends on:")
    for span in found[:MOST_PROPOSALS]:
        words = plain(shorten(prompt[slice(*span)], LONGEST_PROPOSAL))
        st.button(f"“{words}”", type="tertiary", key=f"fact-{span[0]}", on_click=store, args=(prompt, (span,)))
    return ()


_sentences = st.cache_data(max_entries=8, show_spinner=False)(proposed_facts)


def _planted(one: OnePrompt) -> Question:
    # The number of prompts, and what varies between them besides name and number.
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    count = int(
        left.number_input(
            "Repeats",
            1,
            MOST_REPEATS,
            1,
            **in_url("plant_repeats"),
            on_change=_lighter,
            help="The number of prompts, each with another name and number: the board then shows the accuracy of "
            "every cell with a confidence interval",
        )
    )
    vary: tuple[str, ...] = ()
    if count > 1:
        vary = tuple(right.pills("Vary", VARIED, selection_mode="multi", default=VARIED, **in_url("plant_vary")))
    kind = 0
    depth = 30
    if "wording" not in vary:
        kind = st.selectbox(
            "Wording (those that mini was trained on)",
            range(WORDINGS),
            **in_url("plant_kind"),
            format_func=lambda kind: mini.needle_statement(mini.NEEDLE_PHRASINGS[kind], "…", "…"),
        )
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    if "depth" in vary:
        left, right = right, left
    else:
        depth = left.slider("Depth", 0, 100, 30, 5, format="%d %%", **in_url("plant_depth"))
    seed = int(right.number_input("Seed", 0, 9999, 0, **in_url("plant_seed")))
    first = Planting(wording=kind, depth=depth / 100, draw=seed)
    try:
        repeats = plantings(count, first, WORDINGS, vary) if count > 1 else (first,)
        question = plant_needle(one.prompt, repeats, one.notes)
    except UserError as error:
        return _unusable(one.prompt, error)
    if len(repeats) > 1:
        depths = sorted(100 * repeat.depth for repeat in repeats)
        spread = f"depths {depths[0]:g} to {depths[-1]:g} %" if depths[0] < depths[-1] else f"depth {depths[0]:g} %"
        wordings = plural(len({repeat.wording for repeat in repeats}), "wording")
        st.caption(
            f"{len(repeats)} prompts, one after another: {spread}, {wordings}, new names and numbers. Level light is "
            "enough for the board over all prompts."
        )
    appended = question.prompt.rsplit("\nQuestion: ", 1)[1].replace("\nAnswer:", " · Answer:")
    ((start, stop),) = question.facts
    st.caption(
        f"{'The first is planted' if question.repeats else 'Planted'} at {100 * repeats[0].depth:g} %: "
        f"“{plain(question.prompt[start:stop])}” Appended: “{plain(appended)}” "
        f"The right answer is **{plain(question.answer or '')}**."
    )
    return question


def _lighter() -> None:
    """Callback: preselect level light for several prompts."""
    if st.session_state["plant_repeats"] > 1:
        st.session_state["level"] = "light"


def _unusable(prompt: str, error: UserError) -> Question:
    st.error(plain(str(error)))
    return Question(prompt, error=str(error))


NEW_TOKENS = 64
NEEDLE_TOKENS = 80  # of a planted needle and its question


def fitted_question(question: Question, how: ChatFormat) -> Question:
    """The question with its prompts cut as the user chooses where they do not fit; conversations are not cut."""
    if question.repeats:
        text = cut_section(question.text, how, NEEDLE_TOKENS)
        return question if text == question.text else plant_needle(text, question.repeats, question.notes)
    if question.several:
        over = _too_long(question.prompt, how)
        keep = part_to_keep(over) if over and not how.turns else None
        if keep is None:
            return question
        cut, lost = uploads.truncate_prompts(question.several, how, new_tokens(), keep)
        st.caption(f"{sum(lost.values()):,} characters in {len(lost)} prompts are left out.")
        return replace(question, several=cut)
    if question.turns:
        _too_long(question.prompt, how)
        return question
    # The question for the cut prompt, with the facts that are left in it.
    prompt = cut_section(question.prompt, how)
    if prompt == question.prompt:
        return question
    words = [question.prompt[start:stop] for start, stop in question.facts]
    left = [fact for fact in words if fact in prompt]
    if len(left) < len(words):
        st.warning("The cut removes words that the answer depends on.", icon=":material/content_cut:")
    return replace(question, prompt=prompt, facts=find_facts(prompt, left))


def new_tokens() -> int:
    """The number of new tokens, from the field that is drawn later."""
    return parse_number(str(further_down("max_new_tokens", NEW_TOKENS))) or NEW_TOKENS


def cut_section(prompt: str, how: ChatFormat, extra: int = 0) -> str:
    """The prompt, cut as the user chooses if it does not fit, with a preview of the cut.

    `extra` tokens will be added to it.
    """
    over = uploads.excess_tokens(prompt, how, extra + new_tokens()) if prompt.strip() else 0
    keep = part_to_keep(over) if over else None
    if keep is None:
        return prompt
    cut = uploads.truncate_prompt(prompt, how, extra + new_tokens(), keep)
    caption = f"{len(cut.removed):,} characters are left out. The text is cut here:"
    st.caption(caption)
    offer = Offer(
        "Where the prompt is cut", lambda: cut_as_passages(cut), caption, f"prompt for {model_title(how.model)}"
    )
    show_title(offer, "cut-text")
    with st.container(height=180, border=True):
        st.html(cut_as_html(cut))
    return cut.text


def part_to_keep(over: int) -> uploads.Keep | None:
    """The part to keep of a prompt that is `over` tokens too long; None to leave it uncut."""
    st.warning(
        f"Prompt and new tokens exceed the model's context window by {over:,} tokens.", icon=":material/content_cut:"
    )
    keep = one_of("Cut the prompt, and keep", ["nothing cut", *uploads.KEEPS], key="cut")
    return next((part for part in uploads.KEEPS if part == keep), None)


def _too_long(prompt: str, how: ChatFormat) -> int:
    """By how many tokens a prompt is too long, with a warning for a conversation, which is not cut."""
    over = uploads.excess_tokens(prompt, how, new_tokens())
    if over and how.turns:
        st.warning(f"Conversation and new tokens exceed the model's context window by {over:,} tokens: shorten a turn.")
    return over
