"""Puts a prompt into a model's chat template, for a process without torch: `python -m kvlab.models.render`.

Reads a JSON object from standard input (prompt, model, chat, system, thinking, turns) and writes one with `text`, null
where the prompt is read as it stands, or with `error`. A template is a program of the model's, so whoever asks sets a
limit.
"""

from __future__ import annotations

import json
import os
import sys

from kvlab.common.errors import UserError
from kvlab.requests.compare import ChatRequest


def main() -> None:
    """One question, one answer."""
    asked = json.load(sys.stdin)
    prompt, request = asked.pop("prompt"), ChatRequest(**asked)
    try:
        answer = {"text": rendered(prompt, request)}
    except UserError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


def rendered(prompt: str, request: ChatRequest) -> str | None:
    """What the tokenizer is given; None for the prompt itself. Raises UserError as `kvlab.models.chat` does."""
    from transformers import AutoTokenizer

    from kvlab.models.chat import chat_of
    from kvlab.models.sources import Source

    source = Source(request.model, request.revision, request.cache_dir)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.where, **source.options)
    except Exception:  # whoever loads the model says what is wrong with its files
        return None
    chat = chat_of(request, tokenizer)
    return None if chat is None else chat.rendered(prompt)


if __name__ == "__main__":
    sys.modules["torch"] = None  # type: ignore[assignment]  # tokenizers do not need it, and it takes seconds to import
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    main()
