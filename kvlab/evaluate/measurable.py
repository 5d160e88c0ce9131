"""Choose a length for each task at which a model's context window holds its prompts."""

from __future__ import annotations

from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from kvlab.core.errors import UserError
from kvlab.evaluate.plan import make_plan
from kvlab.evaluate.request import EvalRequest, TaskChoice
from kvlab.evaluate.results.outcome import Loaded
from kvlab.models.chat import chat_of
from kvlab.models.tokenizer import window_of


@dataclass
class Measurable:
    """A request's tasks by the length at which they are measured (None: their own defaults), and why others are not."""

    window: int
    tasks: dict[int | None, list[TaskChoice]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # by task


def measurable_tasks(request: EvalRequest, loaded: Loaded) -> Measurable:
    """The request's tasks at their default lengths, or at the longest that the window holds with the answer.

    Every prompt is generated once, nothing is computed.
    """
    chat = chat_of(request, loaded.tokenizer)
    room = window_of(loaded.model.config) - (0 if chat is None else sum(map(len, chat.around())))
    found = Measurable(room)
    for choice in request.tasks:
        one = request.model_copy(update={"tasks": (choice,)})
        try:
            length = _length(one, loaded.tokenizer, room, chat is not None)
        except UserError as error:
            found.reasons[choice.task] = str(error).removeprefix(f"{choice.task}: ")
        else:
            found.tasks.setdefault(length, []).append(choice)
    return found


def _length(request: EvalRequest, tokenizer: PreTrainedTokenizerBase, window: int, has_chat: bool) -> int | None:
    """None if the default lengths hold the request's only task, else the longest; raises UserError if none does."""

    def answer_tokens(asked: EvalRequest, room: int) -> int:
        return max(prompt.make().new_tokens for prompt in make_plan(asked, tokenizer, room, has_chat).prompts)

    try:
        answer_tokens(request, window)
    except UserError:
        whole = request.model_copy(update={"lengths": (window,)})
        length = window - answer_tokens(whole, 2 * window)  # raises if even the whole window is too short
        answer_tokens(request.model_copy(update={"lengths": (length,)}), window)
        return length
    return None
