"""Samples whose text's end is forced and scored, and the tasks on a book's text: perplexity, KL to the full cache."""

from transformers import PreTrainedTokenizerBase

from kvlab.core.errors import UserError
from kvlab.tasks.draft import Draft, drafted
from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import count_tokens, token_starts

CONTINUATION = 128  # tokens scored per sample: enough for a stable mean, few enough to decode one by one
SHORTEST_PREFIX = 32  # with fewer tokens there is nothing to compress


@drafted("perplexity", "bits per byte of a book's continuation (lower is better)")
def perplexity(draft: Draft, *, continuation: int = CONTINUATION) -> Sample:
    """The last `continuation` tokens are scored in bits per byte, after a compressed prefix."""
    text = draft.filled(lambda window: window.text)
    place = draft.task, draft.index, draft.seed
    return text_sample(draft.tokenizer, text, *place, "bits_per_byte", continuation, draft.length)


@drafted("next_token_kl", "KL to the full cache on a book's continuation (lower is better)")
def next_token_kl(draft: Draft, *, continuation: int = CONTINUATION) -> Sample:
    """KL(full || compressed) in nats is measured over the last `continuation` tokens; no labels are needed."""
    text = draft.filled(lambda window: window.text)
    place = draft.task, draft.index, draft.seed
    return text_sample(draft.tokenizer, text, *place, "kl", continuation, draft.length)


def text_sample(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    task: str,
    index: int,
    seed: int,
    metric: str,
    continuation: int = CONTINUATION,
    length: int | None = None,
) -> Sample:
    """Return the sample that forces the last `continuation` tokens of `text`; raises UserError for too short a text."""
    starts = token_starts(tokenizer, text)
    if continuation < 2 or len(starts) < continuation + SHORTEST_PREFIX:
        need = max(continuation, 2) + SHORTEST_PREFIX
        raise UserError(f"{task}: {len(starts)} tokens are too few: give at least {need} or a smaller continuation.")
    cut = starts[-continuation]
    found = count_tokens(tokenizer, text[:cut], text[cut:])
    return Sample(
        task=task,
        index=index,
        seed=seed,
        length=length or found,
        context=text[:cut],
        question="",
        answers=[text[cut:]],
        metric=metric,
        max_new_tokens=0,
        stop=None,
        meta={"continuation": continuation},
    )
