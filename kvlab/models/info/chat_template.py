"""Render a prompt as the model receives it: plain, or in the model's chat template (in a second process)."""

import json
import subprocess
import sys
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from kvlab.core.errors import UserError
from kvlab.models.info.names import model_file
from kvlab.requests.compare import ChatRequest, ModelRequest
from kvlab.requests.conversation import Turn
from kvlab.requests.prompt_notes import TokenizerInfo

COMMAND = (sys.executable, "-P", "-m", "kvlab.models.render")
SECONDS_ALLOWED = 20
TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json")


@dataclass(frozen=True)
class ChatFormat:
    """How a prompt is presented to a model; the fields are those of a request."""

    model: str
    chat: str = "auto"
    system: str = ""
    thinking: bool | None = None
    turns: tuple[Turn, ...] = ()

    @classmethod
    def from_request(cls, request: ModelRequest) -> "ChatFormat":
        turns = request.turns if isinstance(request, ChatRequest) else ()
        return cls(request.model, request.chat, request.system, request.thinking, turns)


@dataclass(frozen=True)
class RenderedPrompt:
    """The text given to the tokenizer; `own` (start, stop) is the prompt in it, the rest comes from the template.

    A template writes out all special tokens, so the tokenizer adds none.
    """

    text: str
    prompt_span: tuple[int, int]
    templated: bool = False


def render_prompt(prompt: str, how: ChatFormat) -> RenderedPrompt:
    """The prompt as the model receives it, as far as the files on this machine tell.

    Raises UserError if the template refuses the prompt, or the system prompt would be ignored.
    """
    asks = bool(how.system.strip()) or how.thinking is not None
    if not (asks or (how.chat == "auto" and has_template(how.model))):
        return RenderedPrompt(prompt, (0, len(prompt)))
    if model_file(how.model, "tokenizer_config.json") is None:
        return RenderedPrompt(prompt, (0, len(prompt)))  # the worker reports it
    files = (model_file(how.model, name) for name in (*TEMPLATE_FILES, "tokenizer.json"))
    text, error = _rendered(prompt, how, tuple(file.stat().st_mtime for file in files if file is not None))
    if error:
        raise UserError(error)
    if text is None:
        return RenderedPrompt(prompt, (0, len(prompt)))
    first, last = (how.turns[0].content, how.turns[-1].content) if how.turns else (prompt, prompt)
    start = text.find(first.strip())
    stop = text.rfind(last.strip())
    if min(start, stop) < 0:  # the template changed it, so its position is unknown
        return RenderedPrompt(text, (0, len(text)), templated=True)
    return RenderedPrompt(
        text, (start, stop + len(last.strip())) if how.turns else (start, start + len(prompt.strip())), True
    )


def has_template(model: str) -> bool:
    """Whether the model's files on this machine have a chat template."""
    return bool(_template(model))


def tokenizer_info(model: str, special: Collection[str]) -> TokenizerInfo:
    """What prompt notes need to know of a model's tokenizer, given its special tokens."""
    settings = _settings(model)
    # A token in the settings is its text, or an object that holds it.
    tokens = [settings.get(name) for name in ("bos_token", "eos_token")]
    texts = [token.get("content") if isinstance(token, dict) else token for token in tokens]
    bos, eos = (text if isinstance(text, str) else None for text in texts)
    return TokenizerInfo(bos, eos, special, _template(model))


def _template(model: str) -> str:
    try:
        file = model_file(model, TEMPLATE_FILES[0])
        return file.read_text(encoding="utf-8") if file else str(_settings(model).get("chat_template") or "")
    except (OSError, ValueError):
        return ""


def _settings(model: str) -> dict[str, Any]:
    """The model's `tokenizer_config.json`, if it is on this machine."""
    file = model_file(model, TEMPLATE_FILES[1])
    try:
        settings: Any = json.loads(file.read_text(encoding="utf-8")) if file else {}
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


@lru_cache(maxsize=16)
def _rendered(prompt: str, how: ChatFormat, _changed: tuple[float, ...]) -> tuple[str | None, str]:
    """The rendered text (None without a template) and the template's error message.

    Raises UserError, which is not cached, if the second process gives no answer.
    """
    request = json.dumps(asdict(how) | {"prompt": prompt, "turns": [turn.model_dump() for turn in how.turns]})
    try:
        done = subprocess.run(
            COMMAND, input=request, capture_output=True, text=True, timeout=SECONDS_ALLOWED, check=True
        )
        answer = json.loads(done.stdout)
        return answer.get("text"), answer.get("error", "")
    except (subprocess.SubprocessError, OSError, ValueError, AttributeError) as error:
        slow = isinstance(error, subprocess.TimeoutExpired)
        what = f"gave no text in {SECONDS_ALLOWED} seconds" if slow else "could not be tried"
        raise UserError(f"The chat template of {how.model!r} {what}; choose no chat template.") from error
