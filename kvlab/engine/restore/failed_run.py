"""Evidence about a failed run before anything is restored: its text, the lost attention, and which heads need it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from kvlab.common.answer_match import find_answer
from kvlab.common.formatting import shared_prefix
from kvlab.common.thoughts import Tags, declared_tags, hide_in, hide_thinking
from kvlab.core import Restore, UserError
from kvlab.core.attention.pass_view import PassView
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.cache_copy import PromptCache
from kvlab.core.cache.fan_out_cache import FanOutCache, shares_passes
from kvlab.core.cache.fan_out_layer import Branch
from kvlab.core.cache.settings import Observer
from kvlab.core.contract import Pipeline, Slots
from kvlab.core.methods import make_method
from kvlab.core.methods.wrappers.choice import keeping
from kvlab.core.methods.wrappers.read_back import with_slots_read
from kvlab.core.methods.wrappers.restore import giving_back
from kvlab.engine.forward import Choose, Ended, chooser, decode_one, end_check, end_ids, prefill
from kvlab.engine.prompt import continuation, divergence, encode_prompt
from kvlab.models.chat import chat_of
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import CompareRequest
from kvlab.trace import Run
from kvlab.trace.user_labels import Labels
from kvlab.views.frames.board import ends_in_thinking
from kvlab.views.frames.board import expected_answer as wanted_of
from kvlab.views.frames.facts import fact_positions
from kvlab.views.frames.verdict import answer_tokens, judge

EVERYTHING = Restore(kind="heads")


@dataclass(frozen=True)
class Prompt:
    """The read prompt; `first` (V,) are the logits after it, independent of the decision.

    `choosing` creates the token chooser of one text, `has_ended` says whether its tokens end it.
    """

    loaded: LoadedModel
    tokens: int
    most: int
    prefix: PromptCache
    first: Tensor
    pipeline: Pipeline
    choosing: Callable[[], Choose]
    has_ended: Ended

    @property
    def layers(self) -> tuple[int, ...]:
        """The compressed layers."""
        return tuple(layer.layer_idx for layer in self.prefix.prompt_cache.compressed_layers())

    def cache(self, returned: Restore | None, observer: Observer | None = None) -> CompressedCache:
        """The run's cache after the prompt with `returned` restored; with `EVERYTHING`, the full cache."""
        cache = self.prefix.cache(giving_back(self.pipeline, returned, self.layers, self.most), observer)
        if returned is not None:
            cache.settings.sparse_attention = with_slots_read(cache.settings.sparse_attention, returned)
        return cache

    def write(self, returned: Restore | None, ended: Callable[[list[int]], bool]) -> list[int]:
        """Token ids of the greedy continuation, until `ended` returns true."""
        return self.write_together([returned], ended)[0]

    @torch.inference_mode()
    def write_together(self, returned: Sequence[Restore | None], ended: Callable[[list[int]], bool]) -> list[list[int]]:
        """Token ids of each greedy continuation, until `ended` returns true; all are rows of one batch."""
        caches = [self.cache(one) for one in returned]
        if len(caches) > 1 and not shares_passes(caches[0]):
            return [self.write(one, ended) for one in returned]
        writing = FanOutCache.of_filled(caches, self.loaded.device)
        texts: dict[Branch, list[int]] = {branch: [] for branch in writing.branches}
        choose = {branch: self.choosing() for branch in writing.branches}
        rows = self.first.expand(len(caches), -1)
        for index in range(self.most):
            for branch, row in zip(writing.branches, rows, strict=True):
                texts[branch].append(int(choose[branch](row)))
            last = index == self.most - 1
            over = [one for one in writing.branches if last or self.has_ended(texts[one]) or ended(texts[one])]
            writing.drop(over)
            if not writing.branches:
                break
            tokens = torch.tensor([[texts[branch][-1]] for branch in writing.branches], device=self.loaded.device)
            rows = self.loaded.model(tokens, past_key_values=writing, use_cache=True).logits[:, -1].float()
            for branch in writing.branches:
                if branch.error is not None:
                    raise branch.error
        return list(texts.values())

    def along(self, cache: CompressedCache, ids: list[int], observer: "AnswerAttention | None" = None) -> list[Tensor]:
        """Log-probabilities (V,) that predict each of `ids` when `cache`, which `observer` observes, decodes them."""
        rows = [torch.log_softmax(self.first, -1)]
        for token in ids[:-1]:
            if observer is not None:
                observer.step += 1
            rows.append(decode_one(self.loaded, cache, torch.tensor(token, device=self.loaded.device)))
        return rows

    def texts(self, ids: list[int]) -> list[str]:
        """The text that each of the generated tokens adds, without special tokens and the end token."""
        return continuation(self.loaded.tokenizer, ids, end_ids(self.loaded)).pieces


def read_prompt(loaded: LoadedModel, request: CompareRequest) -> Prompt:
    """Prefill the prompt for the only choice of `request`. Raises UserError as a comparison does."""
    ids = encode_prompt(loaded, request.prompt, request.max_new_tokens, chat_of(request, loaded.tokenizer))
    choice = request.choices[0]
    method = make_method(choice.method, **choice.hyper_parameters)
    cache = make_cache(loaded, method, choice.budget, compress_every=request.compress_every, seed=request.seed)
    pipeline = keeping(cache.settings.pipeline, choice.force_keep)
    cache.settings.pipeline = giving_back(pipeline, None, (), 0)
    cache.settings.stays_pending = True
    next_logits = prefill(loaded, cache, ids)
    choosing = partial(chooser, loaded, ids, request.max_new_tokens, request.generation_config)
    has_ended = end_check(loaded, ids, request.generation_config)
    return Prompt(
        loaded,
        ids.shape[1],
        request.max_new_tokens,
        PromptCache(cache),
        next_logits,
        pipeline,
        choosing,
        has_ended,
    )


# What, after an answer, could still be the rest of a number: 48213 may become 48213.5.
_MORE_OF_A_NUMBER = re.compile(r"[\s\d.,:'’_/⁄^*eE+-]*")


@dataclass(eq=False)
class AnswerAttention(Observer):
    """Observer of attention to prompt tokens while a continuation is decoded.

    Step r predicts token r; steps `first` to `last` are summed, except step 0, which is the prompt's. A merged slot's
    attention counts for the token at its position. `shares` are sums of the share of the group's query heads that read
    the token's slot.
    """

    tokens: int
    first: int
    last: int
    step: int = 0
    sums: dict[int, Tensor] = field(default_factory=dict)
    shares: dict[int, Tensor] = field(default_factory=dict)
    compressed = Observer.compressed  # decisions do not matter

    def attended(self, layer_idx: int, slots: Slots, layer_pass: PassView, output: Tensor) -> None:
        """Add this step's attention if it predicts a token of the answer."""
        if self.first <= self.step <= self.last:
            read = layer_pass.share_read()
            share = torch.ones_like(slots.position, dtype=torch.float32) if read is None else read
            for sums, numbers in ((self.sums, layer_pass.last_mass()), (self.shares, share)):
                row = by_token(slots, numbers, self.tokens)
                sums[layer_idx] = row if layer_idx not in sums else sums[layer_idx] + row

    def mean(self, sums: dict[int, Tensor], layers: tuple[int, ...], heads: int) -> np.ndarray:
        """(layers, heads, prompt tokens) mean over the steps; zeros if the answer is the first token alone."""
        if not sums:
            return np.zeros((len(layers), heads, self.tokens), np.float32)
        count = self.last - max(self.first, 1) + 1
        return np.stack([sums[layer].cpu().numpy() for layer in layers]) / count


def by_token(slots: Slots, of_slots: Tensor, tokens: int) -> Tensor:
    """Scatter (1, H, S) numbers of slots to prompt tokens: (H, `tokens`)."""
    valid = (slots.valid & (slots.position < tokens))[0]
    place = slots.position[0].long().clamp(0, tokens - 1)
    nothing = torch.zeros(valid.shape[0], tokens, device=valid.device)
    return nothing.scatter_add(1, place, of_slots[0].float() * valid)


Head = tuple[int, int]


@dataclass(frozen=True)
class ForcedDecoding:
    """A cache decoding the full cache's continuation: KL of each token, and the attention of the answer's queries."""

    kl: tuple[float, ...]
    look: np.ndarray  # (layers, heads, prompt tokens)
    read: np.ndarray  # the same shape: share of the group's query heads that read the token's slot
    own_slots: np.ndarray  # the same shape, bool, at the end
    held: int  # slots after the prompt


@dataclass(frozen=True)
class Evidence:
    """`lost` (layers, heads, tokens): the full cache's attention to tokens without a slot of their own in the run, and
    `unread` that to those that had one which the run's sparse attention left out."""

    wanted: "Wanted"
    reference: list[int]
    rows: list[Tensor]
    answer_rows: tuple[int, int]
    own_text: str
    fact: tuple[int, ...]
    full: ForcedDecoding
    before: ForcedDecoding
    lost: np.ndarray
    unread: np.ndarray

    def tokens(self, most: int, attention: np.ndarray | None = None) -> list[int]:
        """Prompt tokens by `attention` (default: lost), summed over heads, most first."""
        lost = (self.lost if attention is None else attention).sum((0, 1))
        order = np.argsort(-lost, kind="stable")[:most]
        return [int(token) for token in order if lost[token] > 0]

    def heads(
        self, layers: tuple[int, ...], tokens: tuple[int, ...] | None = None, attention: np.ndarray | None = None
    ) -> list[Head]:
        """All (layer, KV head) by `attention` (default: lost) to `tokens` (default all), most first."""
        attention = self.lost if attention is None else attention
        lost = attention.sum(2) if tokens is None else attention[:, :, list(tokens)].sum(2)
        order = np.argsort(-lost, axis=None, kind="stable")
        return [(layers[rank], head) for rank, head in zip(*divmod(order, lost.shape[1]), strict=True)]

    def reader(self, layers: tuple[int, ...]) -> Head:
        """The head whose answer queries attend most to the fact, or else to the most lost token, in the full cache."""
        mass = self.full.look[:, :, list(self.fact) or self.tokens(1)].sum(2)
        rank, head = np.unravel_index(int(mass.argmax()), mass.shape)
        return layers[int(rank)], int(head)


def gather_evidence(run: Run, labels: Labels, prompt: Prompt) -> Evidence:
    """Generate two texts and decode two forced ones. Raises UserError if there is nothing to restore."""
    expected = wanted_of([run], labels)
    whole, compressed = (prompt.write(back, lambda ids: False) for back in (EVERYTHING, None))
    texts = prompt.texts(whole)
    wanted = Wanted(None)
    if expected is not None:
        tags = declared_tags(run.record.chat)
        wanted = Wanted(expected.answer, (), expected.others, ends_in_thinking(run), tags)
    if expected is None:
        same = shared_prefix(compressed, whole)
        if same == len(whole):
            raise UserError(f"{run.record.label} writes the same text as the full cache: there is nothing to restore.")
        wanted = Wanted(None, tuple(whole[: same + 1]))
    elif not wanted.is_there(whole, texts):
        wrote = "".join(texts).strip()[:60]
        raise UserError(
            f"The full cache does not give the answer either: it writes “{wrote}”, so restoring tokens cannot help."
        )
    if wanted.is_there(compressed, prompt.texts(compressed)):
        raise UserError(f"{run.record.label} gives the right answer: there is nothing to restore.")
    rows = prompt.along(prompt.cache(EVERYTHING), whole)
    answer = wanted.rows(texts)
    full, before = (decode_forced(prompt, back, whole, rows, answer) for back in (EVERYTHING, None))
    look = full.look
    if not answer[0]:  # with the attention of the prompt's last query, before the decision
        held = prompt.prefix.prompt_cache.settings.pending
        assert held is not None
        masses = [held[rank].layer_pass.last_mass()[0] for rank in range(len(prompt.layers))]
        look = (full.look + np.stack([mass.float().cpu().numpy() for mass in masses])) / 2
    fact = () if expected is None else tuple(fact_positions(run.tokens, run.record.prompt, expected.facts).tolist())
    own_text = "".join(prompt.texts(compressed))
    lost = look * ~before.own_slots
    unread = look * before.own_slots * (1 - before.read)
    return Evidence(wanted, whole, rows, answer, own_text, fact, full, before, lost, unread)


def decode_forced(
    prompt: Prompt, returned: Restore | None, ids: list[int], full: list[Tensor], answer: tuple[int, int]
) -> ForcedDecoding:
    """Decode `ids` with `returned` restored; `full` are the full cache's log-probabilities."""
    observer = AnswerAttention(prompt.tokens, *answer)
    cache = prompt.cache(returned, observer)
    held = sum(int(table.live().sum()) for layer in cache.compressed_layers() for table in layer.tables)
    rows = prompt.along(cache, ids, observer)
    kl = tuple(divergence(one, other)[0] for one, other in zip(full, rows, strict=True))
    heads = int(prompt.prefix.prompt_cache.compressed_layers()[0].head_index.heads)
    look = observer.mean(observer.sums, prompt.layers, heads)
    read = observer.mean(observer.shares, prompt.layers, heads)
    masks = []
    for layer in cache.compressed_layers():
        slots = layer.slots
        assert slots is not None
        masks.append((by_token(slots, (slots.votes <= 1).float(), prompt.tokens) > 0).cpu().numpy())
    return ForcedDecoding(kl, look, read, np.stack(masks), held)


@dataclass(frozen=True)
class Wanted:
    """The expected text: `answer` or one of `others` anywhere, or, without an answer, the leading tokens `ids`.

    `thinks`: the prompt ends within thinking, which is no answer. `tags`: those that only the chat template declares.
    """

    answer: str | None
    ids: tuple[int, ...] = ()
    others: tuple[str, ...] = ()
    thinks: bool = False
    tags: Tags | None = None

    @property
    def answers(self) -> tuple[str, ...]:
        return () if self.answer is None else (self.answer, *self.others)

    def is_there(self, ids: list[int], texts: list[str]) -> bool:
        """Whether this continuation contains the expected text."""
        if self.answer is not None:
            return any(judge(hide_in(texts, self.thinks, self.tags), one).kind == "right" for one in self.answers)
        return tuple(ids[: len(self.ids)]) == self.ids

    def is_settled(self, texts: Callable[[list[int]], list[str]], ids: list[int]) -> bool:
        """Whether more tokens can no longer change the verdict on a continuation, of which `texts` gives the pieces."""
        if self.answer is None:
            return tuple(ids) != self.ids[: len(ids)] or len(ids) >= len(self.ids)
        text = hide_thinking("".join(texts(ids)), self.thinks, self.tags).rstrip("\ufffd")
        found = filter(None, (find_answer(text, one) for one in self.answers))
        return any(_MORE_OF_A_NUMBER.fullmatch(text, stop) is None for _, stop in found)

    def rows(self, texts: list[str]) -> tuple[int, int]:
        """(first, last) token of the answer in the full cache's continuation."""
        last = max(len(self.ids) - 1, 0)
        shown = hide_in(texts, self.thinks, self.tags)
        return next(filter(None, (answer_tokens(shown, one) for one in self.answers)), (last, last))
