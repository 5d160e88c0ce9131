"""Whether the prompts of an evaluation can be made, before any weights are loaded."""

from __future__ import annotations

from itertools import groupby, islice

from kvlab.common.errors import UserError
from kvlab.evaluate.plan import make_plan
from kvlab.evaluate.request import EvalRequest
from kvlab.models.chat import chat_of
from kvlab.models.tokenizer import load_tokenizer

TRIED = 4  # prompts of each task, length and depth: names and numbers differ, and with them what a prompt needs


def check_tasks(request: EvalRequest) -> None:
    """Make the first prompts of every task.

    A model whose tokenizer cannot be had is not judged, nor are files: whoever loads it says what is wrong.

    Raises:
        UserError: a length cannot hold its task, does not fit the model, or a task or its difficulty is unknown.
    """
    if not request.tasks:
        return
    try:
        tokenizer, window = load_tokenizer(request.model, request.revision, request.cache_dir)
    except UserError:
        return
    chat = chat_of(request, tokenizer)
    turn = 0 if chat is None else sum(map(len, chat.around()))
    few = request.model_copy(update={"files": (), "samples": min(request.samples, TRIED)})
    plan = make_plan(few, tokenizer, window - turn)
    for _, cell in groupby(plan.prompts, lambda prompt: (prompt.identity.task, prompt.identity.length)):
        for prompt in islice(cell, TRIED):
            prompt.make()
