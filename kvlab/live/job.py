"""Run the actions of live sessions in the worker, which holds some sessions between their jobs."""

import ctypes
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvlab.core.attention.pass_view import PassView
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.contract import Plan, Slots, View
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.engine.prefix import Prefix
from kvlab.engine.prefix.provenance import choice_of, header_of
from kvlab.engine.progress import Pace
from kvlab.engine.prompt import prompt_pieces
from kvlab.library.prefixes import free_path, recorded_loading
from kvlab.live.answers import Sampling
from kvlab.live.branch import next_logits, presence
from kvlab.live.events import BranchSettled, ContextRead, Event, TokenWritten, append_event, heads_path, read_events
from kvlab.live.session import LiveSession, PrefixSession
from kvlab.live.transcript import Transcript
from kvlab.models.chat import chat_of
from kvlab.models.load import LoadedModel, held_model, when_dropped
from kvlab.requests.compare import Progress
from kvlab.requests.live_session import LiveJob, LiveRequest
from kvlab.views.frames.token_heads import MERGED, NO_SLOT, OWN, TokenHeads, write_token_heads

# What is left of the context is reported again while an answer is written: after so long, in this share of the time.
HELD_SECONDS = 0.1
HELD_SHARE = 0.05


class SessionReporter:
    """Passes events of one session on, and gives them to `tell` as JSON objects."""

    def __init__(self, session: LiveSession, tell: Callable[[dict[str, Any]], None]) -> None:
        self.session = session
        self.tell = tell
        # By branch what was reported last: (2, tokens) thousandths of all heads, in own slots and in others'.
        self._held: dict[int, np.ndarray] = {}

    def question(self, text: str) -> None:
        """Report a question that will be asked now."""
        self.tell({"kind": "question", "turn": self.session.turn, "text": text})

    def follow(self, events: Iterator[Event]) -> Iterator[Event]:
        """Report events of the session while they are taken from the result."""
        pace = Pace(seconds=HELD_SECONDS, share=HELD_SHARE)
        writing = set[int]()
        for event in events:
            self.tell(event.as_json())
            if isinstance(event, ContextRead):
                turns = self.session.turns
                tokenizer = self.session.loaded.tokenizer
                text = turns.opening + self.session.context
                texts = prompt_pieces(tokenizer, text, self.session.ids, special=turns.special)
                self.tell({"kind": "context_texts", "texts": texts})
            if isinstance(event, BranchSettled):
                self._held.pop(event.branch, None)
                self.tell_held([event.branch])
            if isinstance(event, TokenWritten):
                writing.add(event.branch)
                if pace.is_due():
                    with pace.spending():
                        self.tell_held(writing)
                    writing.clear()
            yield event
        self.tell_held(range(len(self.session.branches)))

    def tell_held(self, branches: Iterable[int]) -> None:
        """Report what heads hold of each token of the context, in these branches; after the first time only changes."""
        for number in sorted(branches):
            branch = self.session.branches[number]
            if branch.failure:
                continue
            shares = branch.context_shares()
            now = (1000 * np.stack([shares.own_slots, shares.merged])).round().astype(int)
            before = self._held.get(number)
            self._held[number] = now
            own_slots, merged = now
            if before is None:
                self.tell({"kind": "held", "branch": number, "per_mille": own_slots.tolist()})
                if merged.any():
                    owners = branch.merges.most_common_owners().tolist()
                    self.tell({"kind": "merged", "branch": number, "per_mille": merged.tolist(), "into": owners})
            elif (changed := np.flatnonzero((now != before).any(0))).size:
                changes = {"per_mille": own_slots[changed].tolist(), "merged": merged[changed].tolist()}
                self.tell({"kind": "held_changes", "branch": number, "tokens": changed.tolist(), **changes})


def keep_branch(
    session: LiveSession, request: LiveRequest, number: int, root: Path, name: str, owner: str = ""
) -> Path:
    """Write branch `number` as a prefix of the folder and return its file; questions and answers are not in it.

    The session goes on as it was. Raises UserError if the name is taken, the disk is full, or the branch has failed, is
    a prefix, was edited by hand, or has a method whose state no file can hold.
    """
    path = free_path(root, name)
    if not 0 <= number < len(session.branches):
        raise UserError(f"There is no branch {number}: choose one from 0 to {len(session.branches) - 1}.")
    branch = session.branches[number]
    if branch.failure:
        raise UserError(f"This branch has failed, so there is nothing to keep: {branch.failure}")
    current = request.model_copy(update={"choices": session.choices})
    if why := current.why_not_kept(number):
        raise UserError(why)
    choice = choice_of(branch.choice.method, branch.choice.budget, branch.choice.hyper_parameters)
    header = header_of(
        session.loaded,
        session.context,
        choice,
        make_method(choice.method, **choice.hyper_parameters),
        loading=recorded_loading(request),
        context_tokens=len(session.ids),
        chat=request.chat,
        system=request.system,
        thinking=request.thinking,
        seed=session.seed,
        seconds=session.read_seconds,
        owner=owner,
    )
    # A copy, because writing drops what kernels remember, and the session's next step would round differently.
    cache = copy_cache(branch.checkpoints[0].cache)
    Prefix.of_cache(session.loaded, session.context, header, cache).save(path)
    return path


MOST_HEAD_TOKENS = 50_000_000  # heads of all layers x tokens


@dataclass
class AnswerAttention:
    """Observer (`kvlab.core.cache.settings.Observer`) that sums attention of single queries to the context's slots.

    `sums` is by layer (H, tokens + 1) float32 by the position of the slot; the last column is of later tokens.
    """

    tokens: int
    sums: dict[int, Tensor] = field(default_factory=dict)

    def attended(self, layer_idx: int, slots: Slots, layer_pass: PassView, output: Tensor) -> None:
        """Add the attention of a pass over one token."""
        if layer_pass.num_new != 1:
            return
        mass = torch.where(slots.valid[0], layer_pass.last_mass()[0].float(), 0)
        if layer_idx not in self.sums:
            self.sums[layer_idx] = mass.new_zeros(mass.shape[0], self.tokens + 1)
        self.sums[layer_idx].scatter_add_(1, slots.position[0].long().clamp(0, self.tokens), mass)

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Nothing to do."""


@torch.inference_mode()
def token_heads(session: LiveSession, number: int) -> TokenHeads:
    """Which heads of branch `number` hold each token of the context, with the attention that its last answer gave it.

    The last question and answer are read once more by a copy of the branch. Raises UserError for a branch that failed
    or that there is not, or a context and model too large to show.
    """
    if not 0 <= number < len(session.branches) or session.branches[number].failure:
        raise UserError("Choose a branch that has not failed.")
    branch = session.branches[number]
    attention = AnswerAttention(len(session.ids))
    layers = branch.cache.compressed_layers()
    held = [presence(layer, len(session.ids)) for layer in layers]
    if sum(present.numel() for present in held) > MOST_HEAD_TOKENS:
        raise UserError("The tokens of the context times all heads are too many to show: use a shorter context.")
    answer: list[int] = []
    if session.history:
        # A copy of the branch, as it was before the last question, reads that and its answer under observation.
        exchange = session.history[-1]
        turn = session.turn - 1
        if turn not in branch.checkpoints:
            raise UserError("The state before the last question is no longer in memory: answer it again first.")
        before = branch.checkpoints[turn]
        watched = replace(branch, cache=copy_cache(before.cache, attention), tokens_seen=before.tokens_seen)
        ids = session.turns.question_ids(session.loaded, exchange.question, is_first=turn == 0)
        answer = [token for token in exchange.answers.get(number, []) if token not in session.end_ids]
        for tokens in (ids, *([token] for token in answer)):
            next_logits(session.loaded, [watched], [tokens])
    heads = max((len(present) for present in held), default=0)
    states = np.full((len(layers), heads, len(session.ids)), NO_SLOT, np.uint8)
    received = np.zeros(states.shape, np.float32)
    for place, (layer, present) in enumerate(zip(layers, held, strict=True)):
        # States and summed attention (H, tokens) of one layer.
        owners = branch.merges.owners.get(layer.layer_idx)
        sums = attention.sums.get(layer.layer_idx)
        state = torch.where(present, OWN, NO_SLOT)
        mass = torch.zeros(present.shape, device=present.device) if sums is None else sums[:, :-1]
        if owners is not None:
            state = torch.where(~present & present.gather(1, owners), MERGED, state)
            mass = torch.where(state == MERGED, mass.gather(1, owners), mass)
        states[place, : len(present)] = state.cpu().numpy()
        received[place, : len(present)] = (mass / max(len(answer), 1)).cpu().numpy()
    return TokenHeads(session.turn, np.array([layer.layer_idx for layer in layers], np.int64), states, received)


MOST_SESSIONS = 4  # held at a time
IDLE_SECONDS = 900.0  # after which a session gives its memory back
LOST = "The worker no longer held this session: the context and the conversation were read again."
LOST_PREFIX = "The worker no longer held this session: its prefixes were opened and the conversation was read again."


@dataclass
class HeldSession:
    """A session in memory, what reports it, and when it was last used."""

    session: LiveSession
    reporter: SessionReporter
    used: float = field(default_factory=time.monotonic)


_held: OrderedDict[tuple[Path, str], HeldSession] = OrderedDict()
when_dropped.append(_held.clear)  # sessions hold their model's weights


@torch.inference_mode(False)
def run_live(job: LiveJob, root: Path, progress: Callable[[Progress], None], cancelled: Callable[[], bool]) -> None:
    """Carry out one action; its events go to the session's log. Cancelling ends the answers that are being written.

    It may run between the steps of another job, whose inference mode must not mark the tensors of the session.

    Raises UserError as `LiveSession`, `PrefixSession.of_request` and `keep_branch` do.
    """
    progress(Progress(stage="the model is loaded", done=0, total=1))
    loaded = held_model(job.request)
    drop_idle()
    held = _held.get((root, job.session))
    if held is None or job.action == "start":
        held = _start(job, root, loaded, progress)
    held.used = time.monotonic()
    _held.move_to_end((root, job.session))
    for _ in held.reporter.follow(_events(job, held.reporter)):
        if cancelled():
            held.session.stop()
    if job.action == "heads" and job.branch is not None:
        write_token_heads(heads_path(root, job.session, job.branch), token_heads(held.session, job.branch))
        held.reporter.tell({"kind": "heads_read", "branch": job.branch, "turn": held.session.turn})
    elif job.action == "keep" and job.branch is not None:
        progress(Progress(stage="the branch is written to the disk", done=0, total=1))
        path = keep_branch(held.session, job.request, job.branch, root, job.name, job.owner)
        size = path.stat().st_size
        held.reporter.tell({"kind": "kept", "branch": job.branch, "name": job.name, "bytes": size})
    # Let glibc return freed memory to the system.
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)
    progress(Progress(stage="done", done=1, total=1))


def drop_idle(seconds: float = IDLE_SECONDS) -> int:
    """Drop sessions that were not used for a while; returns how many are left."""
    now = time.monotonic()
    for key in [key for key, held in _held.items() if now - held.used > seconds]:
        del _held[key]
    return len(_held)


def _start(job: LiveJob, root: Path, loaded: LoadedModel, progress: Callable[[Progress], None]) -> HeldSession:
    """Read a new session's context; of one that was lost or forked, the conversation too."""
    request = job.request
    events = read_events(root, job.session)[0]
    source = next((str(event["source"]) for event in events if event.get("kind") == "forked"), "")
    known = _held.get((root, source))
    is_known = known is not None and known.session.choices == request.choices
    is_opened = bool(request.prefixes)
    if known is not None and is_known:
        session = known.session.fork()
    elif is_opened:
        session = PrefixSession.of_request(request, root, loaded)
    else:
        chat = chat_of(request, loaded.tokenizer)
        session = LiveSession(loaded, request.context, request.choices, chat, request.seed)
    reporter = SessionReporter(session, partial(append_event, root, job.session))
    if not is_known:
        stage = "the prefixes are opened" if is_opened else "the context is read"
        progress(Progress(stage=stage, done=0, total=1))
        deque(reporter.follow(session.read_context()), maxlen=0)
    if job.action != "start":
        if not source:
            reporter.tell({"kind": "read_again", "message": LOST_PREFIX if is_opened else LOST})
        said = Transcript().follow(events).exchanges()
        for number, exchange in enumerate(said, 1):
            stage = f"question {number} of {len(said)} is read again"
            progress(Progress(stage=stage, done=number - 1, total=len(said)))
            session.repeat(exchange)
    while len(_held) >= MOST_SESSIONS:
        _held.popitem(last=False)
    held = _held[root, job.session] = HeldSession(session, reporter)
    return held


def _events(job: LiveJob, reporter: SessionReporter) -> Iterator[Event]:
    session = reporter.session
    sampling = Sampling(job.temperature, job.seed, job.max_new_tokens)
    if job.action == "again":
        session.go_back(session.turn - 1 if job.turn is None else job.turn)
    if job.action in ("ask", "again"):
        reporter.question(job.question)
        yield from session.ask(job.question, sampling)
    elif job.action == "branch":
        assert job.branch and job.choice is not None  # checked by the request
        yield from session.change_branch(job.branch, job.choice)
        reporter.tell({"kind": "branch_changed", "branch": job.branch, "choice": job.choice.model_dump(mode="json")})
        yield from session.answer_again(job.branch, sampling)
    elif job.action == "restart":
        session.go_back(0)
        reporter.tell({"kind": "went_back", "turn": 0})
