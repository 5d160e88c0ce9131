"""Render a prompt in a model's chat template in a process without torch: `python -m kvlab.models.render`.

Reads a JSON object from standard input (prompt, model, chat, system, thinking, turns) and writes one with `text`, null
for a plain prompt, or with `error`. A template is a program that comes with the model, so callers set a time limit.
"""

import json
import os
import sys

from kvlab.core.errors import UserError
from kvlab.requests.compare import ChatRequest


def main() -> None:
    """Answer one request."""
    fields = json.load(sys.stdin)
    prompt = fields.pop("prompt")
    request = ChatRequest(**fields)
    try:
        answer = {"text": render_prompt(prompt, request)}
    except UserError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


def render_prompt(prompt: str, request: ChatRequest) -> str | None:
    """Rendered prompt; None if it is read as it is. Raises UserError as `kvlab.models.chat`."""
    from transformers import AutoTokenizer

    from kvlab.models.chat import chat_of
    from kvlab.models.sources import Source

    source = Source(request.model, request.revision, request.cache_dir)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.where, **source.options)
    except Exception:  # the code that loads the model reports faults of its files
        return None
    chat = chat_of(request, tokenizer)
    return None if chat is None else chat.rendered(prompt)


if __name__ == "__main__":
    sys.modules["torch"] = None  # type: ignore[assignment]  # tokenizers do not need it, and importing it takes seconds
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    main()
