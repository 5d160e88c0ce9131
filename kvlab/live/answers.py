"""One question: its tokens in every branch, chosen, compared with the full cache's, and reported as events."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.engine.prompt import divergence
from kvlab.live.branch import LiveBranch, next_logits
from kvlab.live.events import AnswerEnded, BranchFailed, Event, TokenWritten
from kvlab.models.load import LoadedModel


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: the likeliest at temperature 0. Branches draw with the same noise, so that equal
    predictions write equal tokens.
    """

    temperature: float = 0.0
    seed: int = 0
    max_new_tokens: int = 128


@dataclass(frozen=True)
class Reference:
    """The full cache that branches are compared with; with `known` it writes those tokens again and is not reported.

    `logits` (V,) of each token are added while it writes; where they are held with `known`, it need not write again.
    """

    branch: LiveBranch
    known: Sequence[int] | None = None
    logits: list[Tensor] = field(default_factory=list)

    def is_silent(self, branch: LiveBranch) -> bool:
        """Whether this branch is not reported."""
        return branch is self.branch and self.known is not None


@dataclass(frozen=True)
class Answers:
    """Writes answers of branches. `number` gives a branch's number; `stopped`, once set, ends them after this token."""

    loaded: LoadedModel
    end_ids: Collection[int]
    number: Callable[[LiveBranch], int]
    stopped: threading.Event = field(default_factory=threading.Event)

    def write(
        self, turn: int, branches: Sequence[LiveBranch], ids: list[int], sampling: Sampling, reference: Reference
    ) -> Iterator[Event]:
        """The events of one question in `branches`."""
        begun = time.perf_counter()
        rows = next_logits(self.loaded, branches, [ids] * len(branches))
        active = list(branches)
        for index in range(sampling.max_new_tokens):
            reported = [branch for branch in active if not reference.is_silent(branch)]
            yield from (BranchFailed(self.number(branch), branch.failure) for branch in reported if branch.failure)
            active = [branch for branch in active if not branch.failure]
            tokens = {branch: self._choose(rows[branch], turn, index, sampling) for branch in active}
            if reference.known is not None and reference.branch in tokens:
                tokens[reference.branch] = reference.known[index]
            yield from self._written(turn, index, active, rows, tokens, reference)
            is_last = index == sampling.max_new_tokens - 1
            reason = "length" if is_last else "stopped" if self.stopped.is_set() else ""
            ends = {branch: "end" if tokens[branch] in self.end_ids else reason for branch in active}
            over = {branch: end for branch, end in ends.items() if end}
            # The model's own end token is part of the text before the next question; any other token is read now.
            reading = [branch for branch in active if over.get(branch) != "end"]
            rows = next_logits(self.loaded, reading, [[tokens[branch]] for branch in reading])
            seconds = time.perf_counter() - begun
            for branch in reported:
                if branch in over:
                    number = self.number(branch)
                    yield AnswerEnded(turn, number, over[branch], branch.tokens_seen, branch.live_bytes, seconds)
            active = [branch for branch in active if branch not in over]
            is_compared = any(branch.follows for branch in active if branch is not reference.branch)
            active = [branch for branch in active if is_compared or not reference.is_silent(branch)]
            if all(reference.is_silent(branch) for branch in active):
                return

    def _written(
        self,
        turn: int,
        index: int,
        active: Sequence[LiveBranch],
        rows: dict[LiveBranch, Tensor],
        tokens: dict[LiveBranch, int],
        reference: Reference,
    ) -> Iterator[Event]:
        """The events of one token of every branch that writes, compared with the full cache's while texts agree."""
        full = reference.branch
        expected = None
        written = tokens.get(reference.branch)
        if reference.known and len(reference.logits) >= len(reference.known):
            # The full cache's text and its logits are known, so that it does not run.
            expected = torch.log_softmax(reference.logits[index], -1) if index < len(reference.logits) else None
            written = reference.known[index] if index < len(reference.known) else None
        elif full in active:
            expected = torch.log_softmax(rows[full], -1)
            if reference.known is None:
                reference.logits.append(rows[full].clone())  # a view would keep all rows
        for branch in active:
            if reference.is_silent(branch):
                continue
            token = tokens[branch]
            kl = None
            leaves = False
            if branch is not full and branch.follows:
                if expected is not None:
                    kl = divergence(expected, torch.log_softmax(rows[branch], -1))[0]
                leaves = token != written
                branch.follows = not leaves
            yield TokenWritten(turn, self.number(branch), token, branch.write(token, self.loaded), kl, leaves)

    def _choose(self, logits: Tensor, turn: int, index: int, sampling: Sampling) -> int:
        if sampling.temperature <= 0:
            return int(logits.argmax())
        generator = torch.Generator().manual_seed((sampling.seed * 1_000_003 + turn) * 1_000_003 + index)
        uniform = torch.rand(logits.shape[-1], generator=generator).clamp_min(1e-20)
        gumbel = -(-uniform.log()).log()  # the largest sum of logit and this noise is a sample of the softmax
        return int((logits.cpu() / sampling.temperature + gumbel).argmax())
