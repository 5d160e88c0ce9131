"""Keep a lane as a prefix: its cache as it was after the context, in the file that `kvlab prefix make` writes."""

from __future__ import annotations

from pathlib import Path

from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.engine.prefix import Prefix
from kvlab.engine.prefix.inputs import choice_of
from kvlab.engine.prefix.provenance import header_of
from kvlab.library.prefix_lanes import recorded_loading
from kvlab.library.prefixes import free_path
from kvlab.live.session import LiveSession
from kvlab.requests.live_session import LiveRequest


def keep_lane(session: LiveSession, request: LiveRequest, number: int, root: Path, name: str, owner: str = "") -> Path:
    """Write lane `number` as a prefix of the folder and return its file; questions and answers are not in it.

    The session goes on as it was. Raises UserError if the name is taken, the disk is full, or the lane has failed, is
    a prefix, was edited by hand, or has a method whose state no file can hold.
    """
    path = free_path(root, name)
    if not 0 <= number < len(session.lanes):
        raise UserError(f"There is no lane {number}: choose one from 0 to {len(session.lanes) - 1}.")
    lane = session.lanes[number]
    if lane.failure:
        raise UserError(f"This lane has failed, so there is nothing to keep: {lane.failure}")
    current = request.model_copy(update={"choices": session.choices})
    if why := current.why_not_kept(number):
        raise UserError(why)
    choice = choice_of(lane.choice.method, lane.choice.budget, lane.choice.hyper_parameters)
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
    cache = copy_cache(lane.checkpoints[0].cache)
    Prefix.of_cache(session.loaded, session.context, header, cache).save(path)
    return path
