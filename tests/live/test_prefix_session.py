"""A live session over kept prefixes answers as one that reads the text, and as the prefixes themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.engine.prefix import Prefix
from kvlab.live.events import AnswerEnded, BranchSettled, ContextRead, TokenWritten
from kvlab.live.session import LiveSession, PrefixSession
from kvlab.models.load import LoadedModel
from tests.engine.test_prefix import TEXT

QUESTIONS = ("Who was late?", "And why?")


def tokens_of(session: LiveSession, most: int = 4) -> list[list[tuple[int, int]]]:
    """(branch, token) of every answer, in order, after checking that each branch's answer ended."""
    from kvlab.live import session as live

    sampling = live.Sampling(max_new_tokens=most)
    found = []
    for question in QUESTIONS:
        events = list(session.ask(question, sampling))
        assert sum(isinstance(event, AnswerEnded) for event in events) == len(session.branches)
        found.append([(event.branch, event.token) for event in events if isinstance(event, TokenWritten)])
    return found


def test_kept_prefixes_are_branches_that_read_nothing(tiny: LoadedModel, tmp_path: Path) -> None:
    for name, method, budget in (("full", "full", 1.0), ("h2o", "h2o", 0.3)):
        Prefix.make(tiny, TEXT, method, budget).save(tmp_path / f"{name}.safetensors")
    prefixes = [Prefix.load(tmp_path / f"{name}.safetensors", tiny) for name in ("full", "h2o")]
    session = PrefixSession(prefixes)
    read, *settled = list(session.read_context())
    assert isinstance(read, ContextRead) and read.tokens == prefixes[0].header.tokens
    assert [event.label for event in settled if isinstance(event, BranchSettled)] == ["full 100 %", "h2o 30 %"]
    shares = [event.live_bytes / event.full_bytes for event in settled if isinstance(event, BranchSettled)]
    assert shares[0] == 1 and 0.3 < shares[1] < 0.33, "each is compared with a full cache"
    reading = LiveSession(tiny, TEXT, [MethodChoice(method="h2o", budget=0.3)])
    list(reading.read_context())
    found = tokens_of(session)
    assert found == tokens_of(reading)
    assert tuple(token for branch, token in found[0] if branch == 1) == prefixes[1].ask(QUESTIONS[0], 4).token_ids
    session.go_back(0)
    assert tokens_of(session) == found
    with pytest.raises(UserError, match="make another with `kvlab prefix make`"):
        session.change_branch(1, MethodChoice(method="snapkv"))


def test_prefixes_that_no_session_can_show_are_refused(tiny: LoadedModel) -> None:
    one, other = (Prefix.make(tiny, text, "h2o", 0.3) for text in (TEXT, TEXT[:300]))
    with pytest.raises(UserError, match="not of one text"):
        PrefixSession([one, other])
    one.ask("Who?", 1, keep=True)
    with pytest.raises(UserError, match="holds a conversation"):
        PrefixSession([one])
