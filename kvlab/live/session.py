"""A conversation with one model through several caches: the context is read once, every question answered in all lanes.

All lanes are rows of one batch wherever the model's layers allow it. A lane continues from its own compressed cache in
every turn, so that questions which were not in sight when the context was compressed meet what is left of it.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.cache.fan_out.fan_out_cache import FanOutCache, shares_passes
from kvlab.common.errors import UserError
from kvlab.engine.forward import end_ids
from kvlab.engine.prompt import divergence
from kvlab.engine.read_on import read_on
from kvlab.live.events import AnswerEnded, ContextRead, Event, Exchange, LaneFailed, LaneSettled, TokenWritten
from kvlab.live.lane import Lane
from kvlab.models.chat import Chat
from kvlab.models.load import LoadedModel
from kvlab.models.turns import Turns
from kvlab.requests.compare import FULL, MethodChoice

MOST_CHECKPOINT_BYTES = 2**30  # of all lanes together; older questions are then answered from the context on


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: the likeliest at temperature 0. Lanes draw with the same noise, so that equal predictions
    write equal tokens.
    """

    temperature: float = 0.0
    seed: int = 0
    max_new_tokens: int = 128


class LiveSession:
    """Lanes over one context; lane 0 is the full cache. Use it from one thread; `stop` may be called from any."""

    def __init__(
        self,
        loaded: LoadedModel,
        context: str,
        choices: Sequence[MethodChoice],
        chat: Chat | None = None,
        seed: int = 0,
    ) -> None:
        """Check the request; nothing is read before `read_context`.

        Raises UserError for an empty context, one that exceeds the model's window, or a method that refuses the model.
        """
        if not context.strip():
            raise UserError("The context is empty: paste some text or choose a file.")
        self.loaded, self.context, self.seed, self.turns = loaded, context, seed, Turns.of(chat)
        self.ids = self.turns.context_ids(loaded, context)
        self._check_window(len(self.ids), "The context")
        self.lanes = [Lane.new(loaded, choice, seed, len(self.ids)) for choice in (FULL, *choices)]
        self.history: list[Exchange] = []
        self.end_ids = end_ids(loaded)
        self._stop = threading.Event()

    @property
    def choices(self) -> tuple[MethodChoice, ...]:
        """The methods beside the full cache."""
        return tuple(lane.choice for lane in self.lanes[1:])

    @property
    def turn(self) -> int:
        """The number of questions that have been answered."""
        return len(self.history)

    def stop(self) -> None:
        """End the answers that are being written, after the present token."""
        self._stop.set()

    def read_context(self) -> Iterator[Event]:
        """Read and compress the context in every lane, once for all that can share the pass."""
        begun = time.perf_counter()
        together = [lane for lane in self.lanes if shares_passes(lane.cache)]
        for group in [together, *([lane] for lane in self.lanes if lane not in together)]:
            self._read(group)
        yield ContextRead(len(self.ids), time.perf_counter() - begun)
        for number in range(len(self.lanes)):
            yield self._settled(number)

    def change_lane(self, number: int, choice: MethodChoice) -> Iterator[Event]:
        """Give a lane another method or budget: it alone reads the context; the conversation begins again in all lanes.

        Raises UserError for the full cache's lane, or a method that refuses the model.
        """
        if not 0 < number < len(self.lanes):
            raise UserError(f"Choose a lane from 1 to {len(self.lanes) - 1}: lane 0 is the full cache.")
        lane = self.lanes[number] = Lane.new(self.loaded, choice, self.seed, len(self.ids))
        self._read([lane])
        self.go_back(0)
        yield self._settled(number)

    def fork(self) -> LiveSession:
        """Another session over the same compressed context, before its first question."""
        other = copy.copy(self)
        other.lanes, other.history = [lane.fork() for lane in self.lanes], []
        other._stop = threading.Event()
        return other

    def go_back(self, turn: int) -> None:
        """Return to the state before question `turn`, counted from 0: as if the later ones had not been asked.

        Where that state is no longer in memory, earlier questions and answers are read again. Raises UserError for a
        question that was not asked.
        """
        if not 0 <= turn <= self.turn:
            raise UserError(f"Choose a question from 1 to {self.turn}." if self.turn else "Nothing was asked yet.")
        kept = self.history[:turn]
        known = max(number for number in range(turn + 1) if self._has_checkpoint(number))
        for lane in self.lanes:
            lane.return_to(known)
        self.history = kept[:known]
        for exchange in kept[known:]:
            self.repeat(exchange)

    def repeat(self, exchange: Exchange) -> None:
        """Read a question and the answers that were given to it, token by token, as when they were written."""
        lanes = [lane for lane in self.lanes if not lane.failure]
        answers = {lane: exchange.answers.get(self._number(lane), []) for lane in lanes}
        self._begin(lanes)
        self.forward(lanes, [self._question_ids(exchange.question)] * len(lanes))
        for index in range(max(map(len, answers.values()))):
            here = {lane: answer[index] for lane, answer in answers.items() if index < len(answer)}
            reading = [lane for lane, token in here.items() if token not in self.end_ids]
            self.forward(reading, [[here[lane]] for lane in reading])
        for lane, answer in answers.items():
            lane.answer = list(answer)
            lane.follows = lane.follows and answer == answers.get(self.lanes[0])
        self.history.append(exchange)

    def ask(self, question: str, sampling: Sampling | None = None) -> Iterator[Event]:
        """Answer a question in all lanes, token by token.

        Raises UserError for an empty question or one that exceeds the model's window.
        """
        sampling = sampling or Sampling()
        if not question.strip():
            raise UserError("The question is empty: type one.")
        ids = self._question_ids(question)
        lanes = [lane for lane in self.lanes if not lane.failure]
        tokens = max(lane.tokens_seen for lane in lanes) + len(ids) + sampling.max_new_tokens
        self._check_window(tokens, "This question")
        self._stop.clear()
        try:
            self._begin(lanes)
            yield from self._answer(lanes, ids, sampling)
        except Exception:
            self.go_back(self.turn)
            raise
        self.history.append(Exchange(question, {self._number(lane): list(lane.answer) for lane in lanes}))

    def _question_ids(self, question: str) -> list[int]:
        return self.turns.question_ids(self.loaded, question, is_first=self.turn == 0)

    def _begin(self, lanes: Sequence[Lane]) -> None:
        """Prepare lanes for a question."""
        for lane in lanes:
            lane.begin_answer(self.turn)
        self._drop_old_checkpoints()

    def _has_checkpoint(self, turn: int) -> bool:
        return all(turn in lane.checkpoints for lane in self.lanes if not lane.failure)

    def _drop_old_checkpoints(self) -> None:
        """Drop the oldest checkpoints, but for the context's and the newest, until they take little enough memory."""
        sizes = {
            turn: sum(lane.checkpoints[turn].cache.memory().live_bytes for lane in self.lanes if not lane.failure)
            for turn in range(1, self.turn + 1)
            if self._has_checkpoint(turn)
        }
        for turn in sorted(sizes)[:-1]:
            if sum(sizes.values()) <= MOST_CHECKPOINT_BYTES:
                return
            del sizes[turn]
            for lane in self.lanes:
                lane.checkpoints.pop(turn, None)

    # passes

    @torch.inference_mode()
    def _read(self, lanes: Sequence[Lane]) -> None:
        """Read and compress the context in lanes that share the pass."""
        if not lanes:
            return
        fan_out = FanOutCache([lane.cache for lane in lanes], self.loaded.device)
        branches = list(fan_out.branches)
        fan_out.expect(len(self.ids))
        try:
            ids = torch.tensor([self.ids], device=self.loaded.device)
            self.loaded.model(ids, past_key_values=fan_out, use_cache=True, logits_to_keep=1)
        except Exception:
            if any(branch.error is None for branch in branches):
                raise
        for lane, branch in zip(lanes, branches, strict=True):
            if branch.error is not None:
                lane.fail(branch.error)
        fan_out.copy_recurrent_states()
        for lane in lanes:
            if not lane.failure:
                lane.settle()

    def _settled(self, number: int) -> Event:
        lane = self.lanes[number]
        if lane.failure:
            return LaneFailed(number, lane.failure)
        return LaneSettled(number, lane.choice.label, lane.live_bytes, self.lanes[0].live_bytes)

    def _answer(self, lanes: Sequence[Lane], ids: list[int], sampling: Sampling) -> Iterator[Event]:
        begun = time.perf_counter()
        rows, active = self.forward(lanes, [ids] * len(lanes)), list(lanes)
        for index in range(sampling.max_new_tokens):
            yield from (LaneFailed(self._number(lane), lane.failure) for lane in active if lane.failure)
            active = [lane for lane in active if not lane.failure]
            tokens = {lane: self._choose(rows[lane], index, sampling) for lane in active}
            yield from self._written(active, rows, tokens)
            is_last = index == sampling.max_new_tokens - 1
            over = {lane: reason for lane in active if (reason := self._end_of(tokens[lane], is_last))}
            # The model's own end token is part of the text before the next question; any other token is read now.
            reading = [lane for lane in active if over.get(lane) != "end"]
            rows = self.forward(reading, [[tokens[lane]] for lane in reading])
            for lane, reason in over.items():
                seconds = time.perf_counter() - begun
                yield AnswerEnded(self.turn, self._number(lane), reason, lane.tokens_seen, lane.live_bytes, seconds)
            active = [lane for lane in active if lane not in over]
            if not active:
                return

    def _end_of(self, token: int, is_last: bool) -> str:
        """Why an answer ends with this token; "" if it goes on."""
        if token in self.end_ids:
            return "end"
        return "length" if is_last else "stopped" if self._stop.is_set() else ""

    def _written(self, active: Sequence[Lane], rows: dict[Lane, Tensor], tokens: dict[Lane, int]) -> Iterator[Event]:
        """The events of one token of every lane that writes, compared with the full cache's as long as texts agree."""
        full = self.lanes[0]
        reference = torch.log_softmax(rows[full], -1) if full in active else None
        for lane in active:
            token, kl, leaves = tokens[lane], None, False
            if lane is not full and lane.follows:
                if reference is not None:
                    kl = divergence(reference, torch.log_softmax(rows[lane], -1))[0]
                leaves = token != tokens.get(full)
                lane.follows = not leaves
            yield TokenWritten(self.turn, self._number(lane), token, lane.write(token, self.loaded), kl, leaves)

    def _number(self, lane: Lane) -> int:
        return self.lanes.index(lane)

    def forward(self, lanes: Sequence[Lane], ids: Sequence[list[int]]) -> dict[Lane, Tensor]:
        """Logits (V,) of each lane after its tokens, equally many in every lane; a lane that fails has none."""
        caches, seen = [lane.cache for lane in lanes], [lane.tokens_seen for lane in lanes]
        found: dict[Lane, Tensor] = {}
        results = read_on(self.loaded.model, self.loaded.device, caches, seen, ids)
        for lane, given, logits in zip(lanes, ids, results, strict=True):
            lane.tokens_seen += len(given)
            if isinstance(logits, Exception):
                lane.fail(logits)
            else:
                found[lane] = logits
        return found

    def _choose(self, logits: Tensor, index: int, sampling: Sampling) -> int:
        if sampling.temperature <= 0:
            return int(logits.argmax())
        generator = torch.Generator().manual_seed((sampling.seed * 1_000_003 + self.turn) * 1_000_003 + index)
        uniform = torch.rand(logits.shape[-1], generator=generator).clamp_min(1e-20)
        gumbel = -(-uniform.log()).log()  # the largest sum of logit and this noise is a sample of the softmax
        return int((logits.cpu() / sampling.temperature + gumbel).argmax())

    def _check_window(self, tokens: int, what: str) -> None:
        window = getattr(self.loaded.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        if isinstance(window, int) and tokens > window:
            raise UserError(
                f"{what} needs {tokens:,} tokens, answers included, but the context window of {self.loaded.name} is "
                f"{window:,}: shorten it, or begin a new session."
            )
