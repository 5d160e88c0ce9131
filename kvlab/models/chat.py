"""Chat templates: how a prompt is presented to an instruct model, as the user's turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from kvlab.core.errors import UserError
from kvlab.requests.compare import ChatRequest, ModelRequest
from kvlab.requests.conversation import Turn
from kvlab.requests.prompt_notes import TokenizerInfo

SWITCH = "enable_thinking"
PLACE = "kvlab-puts-the-prompt-here"


@dataclass(frozen=True)
class Chat:
    """A model's chat template and its settings. `thinking` is for templates with a switch; None: the template's
    default.

    If `turns` (including any system prompt) are given, they are rendered instead of the prompt.
    """

    tokenizer: PreTrainedTokenizerBase
    system: str = ""
    thinking: bool | None = None
    turns: tuple[Turn, ...] = ()

    def rendered(self, prompt: str) -> str:
        """Text the model reads, including special tokens, up to the start of its answer.

        Raises UserError if the template rejects these messages (some have no system prompt).
        """
        system = [{"role": "system", "content": self.system}] if self.system else []
        turns = [{"role": turn.role, "content": turn.content} for turn in self.turns]
        options: dict[str, Any] = {} if self.thinking is None else {SWITCH: self.thinking}
        try:
            text = self.tokenizer.apply_chat_template(
                turns or [*system, {"role": "user", "content": prompt}],
                tokenize=False,
                add_generation_prompt=True,
                **options,
            )
        except Exception as error:  # a template is a program of its own
            message = " ".join(str(error).split())[:160].rstrip(".")
            raise UserError(f"The model's chat template rejects this prompt ({message}): use --set chat=no.") from None
        return str(text)

    def sides(self) -> tuple[str, str]:
        """Text before and after the prompt. Raises UserError if the template leaves the prompt out."""
        before, found, after = self.rendered(PLACE).partition(PLACE)
        if not found:
            raise UserError("The model's chat template leaves the prompt out: use --set chat=no.")
        return before, after

    def around(self) -> tuple[list[int], list[int]]:
        """Token ids before and after the prompt, for prompts given as tokens."""
        before, after = self.sides()
        return self.ids(before), self.ids(after)

    def ids(self, text: str) -> list[int]:
        """Ids of rendered text, in which the template has inserted all special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    @property
    def settings(self) -> dict[str, Any]:
        """The settings for a run's record."""
        turns = {"turns": [turn.model_dump() for turn in self.turns]} if self.turns else {}
        return {"system": self.system, "thinking": self.thinking, **turns}


def chat_of(request: ModelRequest, tokenizer: PreTrainedTokenizerBase) -> Chat | None:
    """The chat for a request; None for plain text: if requested, or if the model has no template.

    A conversation is then read as written by `kvlab.requests.conversation.as_text`. Raises UserError for a system
    prompt or a switch that would have no effect.
    """
    template = _template(tokenizer) if request.chat == "auto" else ""
    if template:
        if request.thinking is not None and SWITCH not in template:
            raise UserError(f"The chat template of {request.model!r} has no switch for thinking: do not set it.")
        turns = request.turns if isinstance(request, ChatRequest) else ()
        return Chat(tokenizer, request.system.strip(), request.thinking, turns)
    if request.system.strip() or request.thinking is not None:
        why = "chat is off" if request.chat == "no" else f"{request.model!r} has no chat template"
        raise UserError(f"The system prompt or thinking switch would have no effect: {why}.")
    return None


def tokenizer_info(tokenizer: PreTrainedTokenizerBase) -> TokenizerInfo:
    """Tokenizer data for notes on prompts."""
    special = tuple(map(str, tokenizer.all_special_tokens))
    return TokenizerInfo(tokenizer.bos_token, tokenizer.eos_token, special, _template(tokenizer))


def _template(tokenizer: PreTrainedTokenizerBase) -> str:
    template: Any = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default") or next(iter(template.values()), "")
    return template or ""
