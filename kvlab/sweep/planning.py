"""Plan a sweep from evaluation requests; reads a model's tokenizer and config, not its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvlab.core.errors import UserError
from kvlab.engine.environment import versions
from kvlab.evaluate.harness import check_passes, settings_of
from kvlab.evaluate.plan import BLOCK, PlannedPrompt, blocks, make_plan
from kvlab.evaluate.request import EvalRequest
from kvlab.evaluate.results.rows import ANY_LENGTH, row_key
from kvlab.models.chat import chat_of
from kvlab.models.load import load_tokenizer
from kvlab.models.tokenizer import window_of
from kvlab.sweep.plan import Shard, SweepPlan, shard_name

CHARACTERS_PER_TOKEN = 4  # estimate for a user's own prompt, which is not tokenized for the plan


def make_sweep(requests: Sequence[EvalRequest], block: int = BLOCK) -> tuple[SweepPlan, list[str]]:
    """Return the plan, with one request per model, and a note for each line or part of a file that is skipped.

    Raises UserError as `kvlab.evaluate.harness.evaluate` does, except for errors that only the weights reveal.
    """
    if block < 1:
        raise UserError(f"--block is a number of prompts of at least 1, not {block}.")
    shards: list[Shard] = []
    notes: dict[str, None] = {}
    for number, request in enumerate(requests):
        tokenizer, config = load_tokenizer(request.model, request.revision, request.cache_dir)
        chat = chat_of(request, tokenizer)
        turn = 0 if chat is None else sum(map(len, chat.around()))
        plan = make_plan(request, tokenizer, window_of(config) - turn, chat is not None)
        check_passes(request, plan)
        cut = request_shards(request, number, plan.prompts, None if chat is None else chat.settings, block)
        shards += sorted(cut, key=lambda shard: -shard.cost)
        notes |= dict.fromkeys(plan.notes)
    return SweepPlan(versions=versions(), requests=tuple(requests), block=block, shards=tuple(shards)), list(notes)


def request_shards(
    request: EvalRequest, number: int, prompts: Sequence[PlannedPrompt], chat: Mapping[str, object] | None, block: int
) -> list[Shard]:
    """Return the shards of one request, in the order of its prompts; planner and workers must agree on them."""
    shards = []
    settings = [settings_of(choice) for choice in request.all_choices]
    others = request.question_aware, request.model, "", request.prefill_chunk, chat
    for start, stop in blocks([prompt.identity for prompt in prompts], block):
        part = prompts[start:stop]
        first = part[0].identity
        same_task = all(prompt.identity.task == first.task for prompt in part)
        keys = [
            [row_key(prompt.identity, choice, own, *others) for prompt in part]
            for choice, own in zip(request.all_choices, settings, strict=True)
        ]
        shards.append(
            Shard(
                name=shard_name(keys),
                request=number,
                start=start,
                stop=stop,
                task=first.task if same_task else f"{first.task} and others",
                length=first.length,
                cost=sum(map(_tokens, part)),
            )
        )
    return shards


def _tokens(prompt: PlannedPrompt) -> int:
    if prompt.identity.length != ANY_LENGTH:
        return prompt.identity.length
    sample = prompt.make()
    return (len(sample.context) + len(sample.question)) // CHARACTERS_PER_TOKEN
