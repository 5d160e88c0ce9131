"""Token ids of a conversation about a context: what is read first, with each question, and between turns."""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.core.errors import UserError
from kvlab.models.chat import Chat
from kvlab.models.load import LoadedModel
from kvlab.requests.live_session import GAP

CONTEXT, ANSWER, QUESTION = (f"kvlab-puts-the-{part}-here" for part in ("context", "answer", "question"))


@dataclass(frozen=True)
class Turns:
    """Text around questions and answers. With a chat template the context begins the user's first turn; without one
    questions follow the context as plain text.

    Attributes:
        opening: text before the context.
        between: text between an answer and the next question; an end token that the model wrote is part of it.
        closing: text between a question and its answer.
        special: whether the tokenizer adds special tokens such as BOS before the context.
    """

    opening: str
    between: str
    closing: str
    special: bool

    @classmethod
    def of(cls, chat: Chat | None) -> Turns:
        """The turns of a chat template, or of plain text with None.

        Raises UserError if the template changes or leaves out what the user wrote.
        """
        if chat is None:
            return cls("", "\n", "", special=True)
        opening, found, closing = chat.rendered(CONTEXT).partition(CONTEXT)
        turns = [("user", CONTEXT), ("assistant", ANSWER), ("user", QUESTION)]
        system = [("system", chat.system)] if chat.system else []
        later = _render(chat, [*system, *turns])
        _, answered, rest = later.partition(ANSWER)
        between, asked, _ = rest.partition(QUESTION)
        if not (found and answered and asked):
            raise UserError("The model's chat template leaves parts of a conversation out: use --set chat=no.")
        return cls(opening, between, closing, special=False)

    def context_ids(self, loaded: LoadedModel, context: str) -> list[int]:
        """What all caches read and compress before the first question."""
        ids: list[int] = loaded.encode(self.opening + context, special=self.special)[0].tolist()
        return ids

    def question_ids(self, loaded: LoadedModel, question: str, is_first: bool) -> list[int]:
        """A question with the text before and after it."""
        before = GAP if is_first else self.between
        ids: list[int] = loaded.encode(before + question + self.closing, special=False)[0].tolist()
        return ids


def _render(chat: Chat, turns: list[tuple[str, str]]) -> str:
    messages = [{"role": role, "content": content} for role, content in turns]
    try:
        return str(chat.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is a program of its own
        message = " ".join(str(error).split())[:160].rstrip(".")
        raise UserError(f"The model's chat template rejects a conversation ({message}): use --set chat=no.") from None
