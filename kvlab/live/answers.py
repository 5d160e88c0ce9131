"""One question: its tokens in every lane, chosen, compared with the full cache's, and reported as events."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.engine.prompt import divergence
from kvlab.live.events import AnswerEnded, Event, LaneFailed, TokenWritten
from kvlab.live.lane import Lane, next_logits
from kvlab.models.load import LoadedModel


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: the likeliest at temperature 0. Lanes draw with the same noise, so that equal predictions
    write equal tokens.
    """

    temperature: float = 0.0
    seed: int = 0
    max_new_tokens: int = 128


@dataclass(frozen=True)
class Reference:
    """The full cache that lanes are compared with; with `known` it writes those tokens again and is not reported.

    `logits` (V,) of each token are added while it writes; where they are held with `known`, it need not write again.
    """

    lane: Lane
    known: Sequence[int] | None = None
    logits: list[Tensor] = field(default_factory=list)

    def is_silent(self, lane: Lane) -> bool:
        """Whether this lane is not reported."""
        return lane is self.lane and self.known is not None


@dataclass(frozen=True)
class Answers:
    """Writes answers of lanes. `number` gives a lane's number; `stopped`, once set, ends them after this token."""

    loaded: LoadedModel
    end_ids: Collection[int]
    number: Callable[[Lane], int]
    stopped: threading.Event = field(default_factory=threading.Event)

    def write(
        self, turn: int, lanes: Sequence[Lane], ids: list[int], sampling: Sampling, reference: Reference
    ) -> Iterator[Event]:
        """The events of one question in `lanes`."""
        begun = time.perf_counter()
        rows = next_logits(self.loaded, lanes, [ids] * len(lanes))
        active = list(lanes)
        for index in range(sampling.max_new_tokens):
            reported = [lane for lane in active if not reference.is_silent(lane)]
            yield from (LaneFailed(self.number(lane), lane.failure) for lane in reported if lane.failure)
            active = [lane for lane in active if not lane.failure]
            tokens = {lane: self._choose(rows[lane], turn, index, sampling) for lane in active}
            if reference.known is not None and reference.lane in tokens:
                tokens[reference.lane] = reference.known[index]
            yield from self._written(turn, index, active, rows, tokens, reference)
            is_last = index == sampling.max_new_tokens - 1
            reason = "length" if is_last else "stopped" if self.stopped.is_set() else ""
            ends = {lane: "end" if tokens[lane] in self.end_ids else reason for lane in active}
            over = {lane: end for lane, end in ends.items() if end}
            # The model's own end token is part of the text before the next question; any other token is read now.
            reading = [lane for lane in active if over.get(lane) != "end"]
            rows = next_logits(self.loaded, reading, [[tokens[lane]] for lane in reading])
            seconds = time.perf_counter() - begun
            for lane in reported:
                if lane in over:
                    number = self.number(lane)
                    yield AnswerEnded(turn, number, over[lane], lane.tokens_seen, lane.live_bytes, seconds)
            active = [lane for lane in active if lane not in over]
            is_compared = any(lane.follows for lane in active if lane is not reference.lane)
            active = [lane for lane in active if is_compared or not reference.is_silent(lane)]
            if all(reference.is_silent(lane) for lane in active):
                return

    def _written(
        self,
        turn: int,
        index: int,
        active: Sequence[Lane],
        rows: dict[Lane, Tensor],
        tokens: dict[Lane, int],
        reference: Reference,
    ) -> Iterator[Event]:
        """The events of one token of every lane that writes, compared with the full cache's as long as texts agree."""
        full = reference.lane
        expected = None
        written = tokens.get(reference.lane)
        if reference.known and len(reference.logits) >= len(reference.known):
            # The full cache's text and its logits are known, so that it does not run.
            expected = torch.log_softmax(reference.logits[index], -1) if index < len(reference.logits) else None
            written = reference.known[index] if index < len(reference.known) else None
        elif full in active:
            expected = torch.log_softmax(rows[full], -1)
            if reference.known is None:
                reference.logits.append(rows[full].clone())  # a view would keep all rows
        for lane in active:
            if reference.is_silent(lane):
                continue
            token = tokens[lane]
            kl = None
            leaves = False
            if lane is not full and lane.follows:
                if expected is not None:
                    kl = divergence(expected, torch.log_softmax(rows[lane], -1))[0]
                leaves = token != written
                lane.follows = not leaves
            yield TokenWritten(turn, self.number(lane), token, lane.write(token, self.loaded), kl, leaves)

    def _choose(self, logits: Tensor, turn: int, index: int, sampling: Sampling) -> int:
        if sampling.temperature <= 0:
            return int(logits.argmax())
        generator = torch.Generator().manual_seed((sampling.seed * 1_000_003 + turn) * 1_000_003 + index)
        uniform = torch.rand(logits.shape[-1], generator=generator).clamp_min(1e-20)
        gumbel = -(-uniform.log()).log()  # the largest sum of logit and this noise is a sample of the softmax
        return int((logits.cpu() / sampling.temperature + gumbel).argmax())
