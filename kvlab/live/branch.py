"""One branch of a live session: a cache, what it has read, and its answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from kvlab.core import MethodChoice, is_out_of_memory
from kvlab.core.attention.pass_view import PassView
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.cache.fan_out_cache import FanOutCache
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.prompt_pass import PromptPass
from kvlab.core.contract import Plan, Slots, View
from kvlab.core.methods import make_method
from kvlab.core.methods.wrappers.choice import check_tokens, sparse_attention_with_changes, with_changes
from kvlab.engine.forward import read_on
from kvlab.models.chat import decode_answer
from kvlab.models.load import LoadedModel

LONGEST_CHAIN = 16  # merges in one decision that follow one another


@dataclass
class ContextMerges:
    """Observer (`kvlab.core.cache.settings.Observer`) of one sequence while its context of `tokens` is compressed.

    `owners` is by layer the position (H, tokens) of the slot that holds each token, its own or another's.
    """

    tokens: int
    owners: dict[int, Tensor] = field(default_factory=dict)

    def attended(self, layer_idx: int, slots: Slots, layer_pass: PassView, output: Tensor) -> None:
        """Nothing to do."""

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Follow the merges of a decision."""
        if plan.edges is None:
            return
        position = before.position[0].long().clamp(0, self.tokens - 1)
        heads = position.shape[0]
        source, target = (position.gather(1, end[0]) for end in (plan.edges.source, plan.edges.target))
        tokens = torch.arange(self.tokens, device=position.device).expand(heads, -1)
        # Inactive edges write to a column that is cut off.
        source = torch.where(plan.edges.active[0], source, self.tokens)
        moved = torch.cat([tokens, tokens[:, :1]], 1).scatter(1, source, target)[:, :-1]
        for _ in range(LONGEST_CHAIN.bit_length() - 1):
            moved = moved.gather(1, moved)
        before_this = self.owners.get(layer_idx)
        self.owners[layer_idx] = moved if before_this is None else moved.gather(1, before_this)

    def most_common_owners(self) -> np.ndarray:
        """(tokens,) int64: the token whose slot most heads merged each token into; -1 where no head merged it."""
        found = np.full(self.tokens, -1)
        if not self.owners:
            return found
        owners = torch.cat(list(self.owners.values())).cpu().numpy()
        _, token = np.nonzero(owners != np.arange(self.tokens))
        owner = owners[owners != np.arange(self.tokens)]
        pairs, counts = np.unique(token * self.tokens + owner, return_counts=True)
        order = np.argsort(counts, kind="stable")  # the last assignment to a token is the most common
        found[pairs[order] // self.tokens] = pairs[order] % self.tokens
        return found


@dataclass(frozen=True)
class ContextShares:
    """Shares (tokens,) float64 of all layers and heads: `own` hold a token in its own slot, `merged` in another's."""

    own_slots: np.ndarray
    merged: np.ndarray


def presence(layer: CompressedLayer, tokens: int) -> Tensor:
    """(H, tokens) bool: which of the first `tokens` tokens have a slot of their own in each head."""
    slots = [table.visible() for table in layer.tables]
    position = layer.head_index.join_padded([torch.where(part.valid, part.position, -1).long() + 1 for part in slots])
    present = torch.zeros(position.shape[1], tokens + 1, dtype=torch.bool, device=position.device)
    present.scatter_(1, torch.where(position[0] <= tokens, position[0], 0), True)
    return present[:, 1:]


MOST_TOKENS = 1 << 20  # after the context, in heads that drop nothing
UNFINISHED = "\ufffd"  # what a tokenizer decodes an incomplete character to


@dataclass(frozen=True)
class Checkpoint:
    """A branch as it was before a question; the cache is not changed any more."""

    cache: CompressedCache
    tokens_seen: int
    follows: bool


@dataclass(eq=False)
class LiveBranch:
    """A method with its own cache. `tokens_seen` counts all tokens read; `answer` are ids of the present answer.

    `follows` is whether its text equals the full cache's so far. `merges` is what was merged when the context was
    compressed, `checkpoints` the state before some of the questions, and always before the first.
    """

    choice: MethodChoice
    cache: CompressedCache
    merges: ContextMerges
    tokens_seen: int = 0
    answer: list[int] = field(default_factory=list)
    text: str = ""
    follows: bool = True
    failure: str = ""
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)

    @classmethod
    def new(cls, loaded: LoadedModel, choice: MethodChoice, seed: int, tokens: int) -> "LiveBranch":
        """A branch that has read nothing yet of a context of so many tokens.

        Raises UserError if the method refuses the model or the budget, or for a changed token outside the context.
        """
        check_tokens(choice, tokens)
        method = make_method(choice.method, **choice.hyper_parameters)
        cache = make_cache(loaded, method, choice.budget, seed=seed)
        layers = [layer.layer_idx for layer in cache.compressed_layers()]
        cache.settings.pipeline = with_changes(cache.settings.pipeline, choice, layers, MOST_TOKENS)
        cache.settings.sparse_attention = sparse_attention_with_changes(cache.settings.sparse_attention, choice)
        cache.settings.observer = merges = ContextMerges(tokens)
        return cls(choice, cache, merges)

    def settle(self) -> None:
        """Remember the state after the context."""
        self.cache.settings.observer = None  # later decisions run in place, which an observer prevents
        self.tokens_seen = self.merges.tokens
        self.checkpoints = {}
        self.begin_answer(0)
        self.cache = copy_cache(self.cache)  # branches that read together share their layers without slots

    def return_to(self, turn: int) -> None:
        """Return to the state before question `turn`, which has a checkpoint; a branch that never settled stays."""
        self.answer = []
        self.text = ""
        if turn in self.checkpoints:
            known = self.checkpoints[turn]
            self.cache = copy_cache(known.cache)
            self.tokens_seen = known.tokens_seen
            self.follows = known.follows
            self.checkpoints = {number: one for number, one in self.checkpoints.items() if number <= turn}

    def fork(self) -> "LiveBranch":
        """A branch as this one was after the context; the context's checkpoint is shared."""
        other = replace(self, checkpoints={turn: one for turn, one in self.checkpoints.items() if turn == 0})
        other.return_to(0)
        return other

    def fail(self, error: Exception) -> None:
        """Note the error that ends the branch."""
        self.failure = str(error) or type(error).__name__

    def begin_answer(self, turn: int) -> None:
        """Remember the state from before question `turn`."""
        if turn not in self.checkpoints:
            self.checkpoints[turn] = Checkpoint(copy_cache(self.cache), self.tokens_seen, self.follows)
        self.answer = []
        self.text = ""

    def write(self, token: int, loaded: LoadedModel) -> str:
        """Append a token to the answer; returns the text it adds, once the characters are complete."""
        self.answer.append(token)
        whole = decode_answer(loaded.tokenizer, self.answer)
        if whole.endswith(UNFINISHED):
            return ""
        added = whole[len(self.text) :]
        self.text = whole
        return added

    def context_shares(self) -> ContextShares:
        """Shares of layers and heads that hold each token of the context.

        A token that was merged when the context was compressed counts as long as the slot it was merged into is there;
        merges of later steps are not followed.
        """
        own_slots = np.zeros(self.merges.tokens)
        merged = np.zeros(self.merges.tokens)
        heads = 0
        for layer in self.cache.compressed_layers():
            present = presence(layer, self.merges.tokens)
            heads += present.shape[0]
            own_slots += present.sum(0).cpu().numpy()
            owners = self.merges.owners.get(layer.layer_idx)
            if owners is not None:
                merged += (~present & present.gather(1, owners)).sum(0).cpu().numpy()
        return ContextShares(own_slots / max(heads, 1), merged / max(heads, 1))

    @property
    def live_bytes(self) -> int:
        """Bytes of the cache's valid slots."""
        return self.cache.memory().live_bytes


@torch.inference_mode()
def read_context(loaded: LoadedModel, branches: Sequence[LiveBranch], ids: Sequence[int]) -> None:
    """Read and compress the context `ids` in branches that share the pass."""
    fan_out = FanOutCache([branch.cache for branch in branches], loaded.device)
    pass_branches = list(fan_out.branches)
    fan_out.expect(len(ids))
    try:
        given = torch.tensor([list(ids)], device=loaded.device)
        loaded.model(given, past_key_values=fan_out, use_cache=True, logits_to_keep=1)
    except Exception:
        if any(pass_branch.error is None for pass_branch in pass_branches):
            raise
    for branch, pass_branch in zip(branches, pass_branches, strict=True):
        if pass_branch.error is not None:
            branch.fail(pass_branch.error)
    fan_out.copy_recurrent_states()
    for branch in branches:
        if not branch.failure:
            branch.settle()


def compress_context(
    loaded: LoadedModel, branch: LiveBranch, prompt_pass: PromptPass, full: CompressedCache, ids: Sequence[int]
) -> None:
    """Compress the context `ids` in a branch from a pass that is held, as `full` is."""
    try:
        prompt_pass.fill(branch.cache, full, torch.tensor([list(ids)], device=loaded.device), loaded.model)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        branch.fail(error)
    else:
        branch.settle()


def next_logits(
    loaded: LoadedModel, branches: Sequence[LiveBranch], ids: Sequence[list[int]]
) -> dict[LiveBranch, Tensor]:
    """Logits (V,) of each branch after its tokens, equally many in every branch; a branch that fails has none."""
    caches = [branch.cache for branch in branches]
    tokens_read = [branch.tokens_seen for branch in branches]
    found: dict[LiveBranch, Tensor] = {}
    results = read_on(loaded.model, loaded.device, caches, tokens_read, ids)
    for branch, given, logits in zip(branches, ids, results, strict=True):
        branch.tokens_seen += len(given)
        if isinstance(logits, Exception):
            branch.fail(logits)
        else:
            found[branch] = logits
    return found
