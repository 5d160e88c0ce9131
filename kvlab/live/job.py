"""Run the actions of live sessions in the worker, which holds some sessions between their jobs."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvlab.analysis.attention.token_heads import write_token_heads
from kvlab.engine.prompt import prompt_pieces
from kvlab.live.answer_attention import token_heads
from kvlab.live.events import Event, LaneSettled, TokenWritten
from kvlab.live.log import append_event, heads_path, read_events
from kvlab.live.session import LiveSession, Sampling
from kvlab.live.transcript import Transcript
from kvlab.models.chat import chat_of
from kvlab.models.load import LoadedModel, held_model, when_dropped
from kvlab.requests.compare import Progress
from kvlab.requests.live_session import LiveJob

MOST_SESSIONS = 4  # held at a time
IDLE_SECONDS = 900.0  # after which a session gives its memory back
HELD_EVERY = 8  # tokens of an answer after which what is left of the context is told again
LOST = "The worker no longer held this session: the context and the conversation were read again."


@dataclass
class HeldSession:
    """A session in memory, and when it was last used.

    `told` is by lane what heads hold of each token of the context, as last told: (2, tokens) thousandths of all heads,
    in its own slot and in another's.
    """

    session: LiveSession
    used: float = field(default_factory=time.monotonic)
    told: dict[int, np.ndarray] = field(default_factory=dict)


Tell = Callable[[dict[str, Any]], None]
_held: OrderedDict[tuple[Path, str], HeldSession] = OrderedDict()
when_dropped(_held.clear)  # sessions hold their model's weights


@torch.inference_mode(False)
def run_live(job: LiveJob, root: Path, progress: Callable[[Progress], None], cancelled: Callable[[], bool]) -> None:
    """Carry out one action; its events go to the session's log. Cancelling ends the answers that are being written.

    It may run between the steps of another job, whose inference mode must not mark the tensors of the session.

    Raises UserError as `LiveSession` does.
    """
    progress(Progress(stage="the model is loaded", done=0, total=1))
    loaded = held_model(job.request)
    drop_idle()
    held = _held.get((root, job.session))

    def tell(event: dict[str, Any]) -> None:
        append_event(root, job.session, event)

    if held is None or job.action == "start":
        held = _start(job, root, loaded, tell, progress)
    held.used = time.monotonic()
    _held.move_to_end((root, job.session))
    written = 0
    for event in _events(job, held.session, tell, cancelled):
        tell(event.as_json())
        if cancelled():
            held.session.stop()
        if isinstance(event, LaneSettled):
            held.told.pop(event.lane, None)
        written += isinstance(event, TokenWritten)
        if written >= HELD_EVERY * len(held.session.lanes):
            written = 0
            _tell_held(held, tell)
    if job.action == "heads" and job.lane is not None:
        write_token_heads(heads_path(root, job.session, job.lane), token_heads(held.session, job.lane))
        tell({"kind": "heads_read", "lane": job.lane, "turn": held.session.turn})
    _tell_held(held, tell)
    progress(Progress(stage="done", done=1, total=1))


def drop_idle(seconds: float = IDLE_SECONDS) -> int:
    """Drop sessions that were not used for a while; returns how many are left."""
    now = time.monotonic()
    for key in [key for key, held in _held.items() if now - held.used > seconds]:
        del _held[key]
    return len(_held)


def _start(
    job: LiveJob, root: Path, loaded: LoadedModel, tell: Tell, progress: Callable[[Progress], None]
) -> HeldSession:
    """Read a new session's context; of one that was lost or forked, the conversation too."""
    request, events = job.request, read_events(root, job.session)[0]
    source = next((str(event["source"]) for event in events if event.get("kind") == "forked"), "")
    known = _held.get((root, source))
    if known is not None and known.session.choices == request.choices:
        session = known.session.fork()
    else:
        session = LiveSession(
            loaded, request.context, request.choices, chat_of(request, loaded.tokenizer), request.seed
        )
        progress(Progress(stage="the context is read", done=0, total=1))
        for event in session.read_context():
            tell(event.as_json())
        text = session.turns.opening + request.context
        tell({"kind": "context_texts", "texts": prompt_pieces(loaded.tokenizer, text, session.ids)})
        if job.action != "start" and not source:
            tell({"kind": "read_again", "message": LOST})
    if job.action != "start":
        said = Transcript().follow(events).exchanges()
        for number, exchange in enumerate(said, 1):
            progress(
                Progress(stage=f"question {number} of {len(said)} is read again", done=number - 1, total=len(said))
            )
            session.repeat(exchange)
    while len(_held) >= MOST_SESSIONS:
        _held.popitem(last=False)
    held = _held[root, job.session] = HeldSession(session)
    return held


def _events(job: LiveJob, session: LiveSession, tell: Tell, cancelled: Callable[[], bool]) -> Iterator[Event]:
    sampling = Sampling(job.temperature, job.request.seed, job.max_new_tokens)

    def ask(question: str) -> Iterator[Event]:
        tell({"kind": "question", "turn": session.turn, "text": question})
        yield from session.ask(question, sampling)

    if job.action == "ask":
        yield from ask(job.question)
    elif job.action == "again":
        session.go_back(session.turn - 1 if job.turn is None else job.turn)
        yield from ask(job.question)
    elif job.action == "lane":
        assert job.lane and job.choice is not None  # checked by the request
        questions = [exchange.question for exchange in session.history]
        yield from session.change_lane(job.lane, job.choice)
        tell({"kind": "lane_changed", "lane": job.lane, "choice": job.choice.model_dump(mode="json")})
        tell({"kind": "went_back", "turn": 0})
        for question in questions:
            if not cancelled():
                yield from ask(question)
    elif job.action == "restart":
        session.go_back(0)
        tell({"kind": "went_back", "turn": 0})


def _tell_held(held: HeldSession, tell: Tell) -> None:
    """Tell what heads hold of each token of the context, in every lane; after the first time only changes."""
    for number, lane in enumerate(held.session.lanes):
        if lane.failure:
            continue
        shares = lane.context_shares()
        now = (1000 * np.stack([shares.own, shares.merged])).round().astype(int)
        before = held.told.get(number)
        held.told[number] = now
        own, merged = now
        if before is None:
            tell({"kind": "held", "lane": number, "per_mille": own.tolist()})
            if merged.any():
                owners = lane.merges.most_common_owners().tolist()
                tell({"kind": "merged", "lane": number, "per_mille": merged.tolist(), "into": owners})
        elif (changed := np.flatnonzero((now != before).any(0))).size:
            changes = {"per_mille": own[changed].tolist(), "merged": merged[changed].tolist()}
            tell({"kind": "held_changes", "lane": number, "tokens": changed.tolist(), **changes})
