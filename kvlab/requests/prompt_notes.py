"""Likely mistakes in a prompt's format: a second beginning-of-text token, or an already rendered chat."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kvlab.requests.conversation import Turn

# Tokens that chat templates of common families put around turns.
MARKERS = (
    "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|eot_id|>", "<|header_start|>", "<|eot|>", "[INST]",
    "[/INST]", "<<SYS>>", "<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>", "<|user|>", "<|assistant|>",
    "<|system|>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|start_of_role|>", "<|end_of_role|>",
    "<｜User｜>", "<｜Assistant｜>", "<|start|>", "<|message|>", "[|user|]", "[|assistant|]", "<|im_user|>",
)  # fmt: skip
CLOCK = "strftime_now"  # transformers' function for templates
# Templates in plain text, valid for a base model: a mistake only inside another template.
IN_WORDS = re.compile(r"^### Instruction:.*^### Response:|\bUSER: .*\bASSISTANT:", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class TokenizerInfo:
    """A tokenizer's beginning- and end-of-text tokens, all its special tokens, and its chat template."""

    bos: str | None
    eos: str | None
    special: Collection[str] = ()
    template: str = ""


def prompt_notes(prompt: str, tokens: Sequence[str], templated: bool, info: TokenizerInfo) -> list[str]:
    """One sentence per likely mistake; `tokens` are the names of the tokens the model receives."""
    notes = []
    bos = info.bos
    if bos and tokens.count(bos) > 1:
        leading = list(tokens[:2]) == [bos, bos]
        # A template may put one before every turn (as ChatML), and a token that also ends texts separates documents.
        if leading or (bos in prompt and bos != info.eos and bos not in MARKERS):
            where = "at its beginning twice" if leading else f"{tokens.count(bos)} times"
            notes.append(
                f"The model is given {bos} {where}, as the prompt has it written out and the tokenizer or template "
                "adds one: remove it from the prompt, as the first token draws much attention."
            )
    # A chat that is rendered already.
    special = [token for token in info.special if token in info.template and token not in (info.bos, info.eos)]
    marker = next((marker for marker in (*MARKERS, *special) if marker in prompt), "")
    if templated and not marker and (match := IN_WORDS.search(prompt)):
        marker = match[0].split(":", 1)[0] + ":"
    if marker and templated:
        notes.append(
            f"The prompt holds {marker} and looks like a chat that is rendered already, and the model's chat template "
            "is applied to it once more: give it as plain text (--set chat=no), or as a conversation (a .json file)."
        )
    elif marker and marker not in info.special and marker not in info.template:
        notes.append(
            f"The prompt holds {marker} and looks like a chat rendered for another model: this one reads {marker} as "
            "ordinary text."
        )
    return notes


def template_notes(text: str, turns: Sequence[Turn], template: str) -> list[str]:
    """A sentence on a chat template that reads the clock, and one on turns that it rewrote in the rendered `text`."""
    notes = []
    if CLOCK in template:
        notes.append(
            f"The chat template reads the clock ({CLOCK}): on another day the same prompt may have other tokens and "
            "results."
        )
    read = " ".join(text.split())
    changed = [
        f"{place} ({turn.role})" for place, turn in enumerate(turns, 1) if " ".join(turn.content.split()) not in read
    ]
    if changed:
        notes.append(
            f"The chat template rewrites turn {', '.join(changed)}: the model does not read its text as given, for "
            "example without earlier thinking."
        )
    return notes
