"""Run the actions of live sessions in the worker, which holds some sessions between their jobs."""

from __future__ import annotations

import ctypes
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import torch

from kvlab.live.answer_attention import token_heads
from kvlab.live.answers import Sampling
from kvlab.live.events import Event
from kvlab.live.keep_lane import keep_lane
from kvlab.live.log import append_event, heads_path, read_events
from kvlab.live.prefix_session import PrefixSession
from kvlab.live.reporter import SessionReporter
from kvlab.live.session import LiveSession
from kvlab.live.transcript import Transcript
from kvlab.models.chat import chat_of
from kvlab.models.load import LoadedModel, held_model, when_dropped
from kvlab.requests.compare import Progress
from kvlab.requests.live_session import LiveJob
from kvlab.views.frames.token_heads import write_token_heads

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
when_dropped(_held.clear)  # sessions hold their model's weights


@torch.inference_mode(False)
def run_live(job: LiveJob, root: Path, progress: Callable[[Progress], None], cancelled: Callable[[], bool]) -> None:
    """Carry out one action; its events go to the session's log. Cancelling ends the answers that are being written.

    It may run between the steps of another job, whose inference mode must not mark the tensors of the session.

    Raises UserError as `LiveSession`, `PrefixSession.of_request` and `keep_lane` do.
    """
    progress(Progress(stage="the model is loaded", done=0, total=1))
    loaded = held_model(job.request)
    drop_idle()
    held = _held.get((root, job.session))
    if held is None or job.action == "start":
        held = _start(job, root, loaded, progress)
    held.used = time.monotonic()
    _held.move_to_end((root, job.session))
    for _ in held.reporter.follow(_events(job, held.reporter, cancelled)):
        if cancelled():
            held.session.stop()
    if job.action == "heads" and job.lane is not None:
        write_token_heads(heads_path(root, job.session, job.lane), token_heads(held.session, job.lane))
        held.reporter.tell({"kind": "heads_read", "lane": job.lane, "turn": held.session.turn})
    elif job.action == "keep" and job.lane is not None:
        progress(Progress(stage="the lane is written to the disk", done=0, total=1))
        path = keep_lane(held.session, job.request, job.lane, root, job.name, job.owner)
        size = path.stat().st_size
        held.reporter.tell({"kind": "kept", "lane": job.lane, "name": job.name, "bytes": size})
    # Let glibc return freed memory to the system.
    if sys.platform == "linux" and hasattr(_c_library(), "malloc_trim"):
        _c_library().malloc_trim(0)
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


def _events(job: LiveJob, reporter: SessionReporter, cancelled: Callable[[], bool]) -> Iterator[Event]:
    session = reporter.session
    sampling = Sampling(job.temperature, job.seed, job.max_new_tokens)

    def ask(question: str) -> Iterator[Event]:
        reporter.question(question)
        yield from session.ask(question, sampling)

    if job.action == "ask":
        yield from ask(job.question)
    elif job.action == "again":
        session.go_back(session.turn - 1 if job.turn is None else job.turn)
        yield from ask(job.question)
    elif job.action == "lane":
        assert job.lane and job.choice is not None  # checked by the request
        yield from session.change_lane(job.lane, job.choice)
        reporter.tell({"kind": "lane_changed", "lane": job.lane, "choice": job.choice.model_dump(mode="json")})
        yield from session.answer_again(job.lane, sampling)
    elif job.action == "restart":
        session.go_back(0)
        reporter.tell({"kind": "went_back", "turn": 0})


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)
