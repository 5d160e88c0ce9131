"""A conversation as a prompt: turns with roles, the last one the user's.

A model with a chat template reads the turns in it. Without one it reads `as_text`: every turn after the name of its
role, separated by empty lines, and `Assistant:` at the end.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, get_args

from pydantic import Field

from kvlab.common.formatting import left_out
from kvlab.core import Strict, Text, UserError, plain_text, quote_value

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = get_args(Role)
MOST_TURNS = 200
SAME: dict[object, Role] = {"developer": "system", "human": "user", "gpt": "assistant", "model": "assistant"}
NAMED = re.compile(r"(?:^|\n\n)(?:System|User|Assistant):(?: |$)")
# Non-text parts of a message by their type, and message fields other than content.
PART_TYPES = {
    "image": ("image", "image_url", "input_image"),
    "audio part": ("audio", "audio_url", "input_audio"),
    "video": ("video", "video_url"),
    "file": ("file", "input_file", "document"),
    "tool call": ("tool_use", "tool_call"),
    "tool result": ("tool_result",),
    "reasoning part": ("thinking", "reasoning"),
    "refusal": ("refusal",),
}
PARTS = {kind: noun for noun, kinds in PART_TYPES.items() for kind in kinds}
OTHER_FIELDS = {
    **dict.fromkeys(("tool_calls", "function_call"), "tool call"),
    **{"audio": "audio part", "images": "image", "attachments": "file", "refusal": "refusal"},
    **dict.fromkeys(("reasoning", "reasoning_content"), "reasoning part"),
}
SHAPE = 'give a list of objects with role and content, as {"messages": [{"role": "user", "content": "Hello"}]}'


class Turn(Strict):
    """One turn."""

    role: Role
    content: Text = Field(min_length=1)


def check_turns(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The turns, if a model can answer them.

    Raises UserError if there are none or too many, the last is not the user's, or a system prompt is not the first
    turn.
    """
    if not turns:
        raise UserError("The conversation is empty: give at least one turn of the user's.")
    if len(turns) > MOST_TURNS:
        raise UserError(f"The conversation has {len(turns):,} turns and the most is {MOST_TURNS}.")
    if turns[-1].role != "user":
        raise UserError(
            f"The last turn is the {turns[-1].role}'s: end with one of the user's, which the model answers."
        )
    late = [number for number, turn in enumerate(turns, 1) if turn.role == "system" and number > 1]
    if late:
        raise UserError(f"Turn {late[0]} is a system prompt: it can only come first, and once.")
    blank = [number for number, turn in enumerate(turns, 1) if not turn.content.strip()]
    if blank:
        raise UserError(f"Turn {blank[0]} is empty: write its text, or remove it.")
    return tuple(turns)


def as_text(turns: Sequence[Turn]) -> str:
    """The prompt of a model without a chat template."""
    return "\n\n".join([*(f"{turn.role.capitalize()}: {turn.content}" for turn in turns), "Assistant:"])


def turns_of_text(text: str) -> list[tuple[str, int, int]]:
    """(role, start, stop) of the turns' contents in `as_text`, without surrounding white space.

    The role is "" before the first name of one. A turn whose own text contains a role's name is split in two.
    """
    matches = list(NAMED.finditer(text))
    roles = ["", *(match.group().strip().rstrip(":").lower() for match in matches)]
    edges = [0, *(edge for match in matches for edge in match.span()), len(text)]
    spans = [
        (start, start + len(text[start:stop].rstrip())) for start, stop in zip(edges[::2], edges[1::2], strict=True)
    ]
    spans = [(stop - len(text[start:stop].lstrip()), stop) for start, stop in spans]
    return [(role, *span) for role, span in zip(roles, spans, strict=True) if span[0] < span[1]]


def parse_messages(messages: Any, what: str) -> tuple[tuple[Turn, ...], int]:
    """Turns from messages in OpenAI's format, and the number of non-text parts left out.

    Raises UserError if `what` holds no such messages, or an unknown role.
    """
    if not isinstance(messages, list) or not messages:
        raise UserError(f"{what} holds no messages: {SHAPE}.")
    turns = []
    dropped = 0
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or "role" not in message:
            raise UserError(f"Message {number} of {what} has no role: {SHAPE}.")
        role = SAME.get(message["role"] if isinstance(message["role"], str) else "", message["role"])
        if role not in ROLES:
            raise UserError(
                f"Message {number} of {what} has the role {quote_value(role)}: give system, user or assistant."
            )
        content = message.get("content")
        if not isinstance(content, str):  # a list of parts
            texts = [text for part in _parts(content) if (text := _text_of(part)) is not None]
            dropped += len(_parts(content)) - len(texts)
            content = "\n".join(texts)
        content = plain_text(content)
        if not content.strip():
            raise UserError(f"Message {number} of {what} holds no text: {SHAPE}.")
        turns.append(Turn(role=role, content=content))
    return check_turns(turns), dropped


def dropped_parts(messages: Sequence[Any]) -> tuple[str, ...]:
    """A sentence on the non-text parts of messages; empty if there are none."""
    counts: Counter[str] = Counter()
    for message in messages:
        if not isinstance(message, dict):
            continue
        for part in _parts(message.get("content")):
            kind = str(part.get("type") or "") if isinstance(part, dict) else ""
            if _text_of(part) is None or not (kind in ("", "text") or kind.endswith("_text")):
                counts[PARTS.get(kind, "unknown part")] += 1
        for name, noun in OTHER_FIELDS.items():
            held = message.get(name)
            counts.update([noun] * (len(held) if isinstance(held, list) else bool(held)))
    return left_out(counts)


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else []


def _text_of(part: Any) -> str | None:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else None
