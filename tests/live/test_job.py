"""Actions of sessions as jobs of the queue: their events, lost sessions, idle ones, and models that change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.jobs.size_check import too_big
from kvlab.jobs.work import read_request
from kvlab.live import job as jobs
from kvlab.live.events import append_event, fork_log, heads_path, log_path, read_events
from kvlab.live.transcript import Transcript
from kvlab.models.load import drop_model
from kvlab.requests.live_session import LiveJob, LiveRequest
from kvlab.views.frames.token_heads import OWN, read_token_heads

CONTEXT = "The old house stood on the hill. Nobody had lived in it for years. " * 6
REQUEST = LiveRequest(context=CONTEXT, choices=(MethodChoice(method="h2o", budget=0.3),))


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    jobs.drop_idle(-1)
    yield
    jobs.drop_idle(-1)


def action(root: Path, kind: str, **fields: object) -> Transcript:
    """Run one action in session "one"; the transcript afterwards."""
    fields = {"request": REQUEST, "max_new_tokens": 4} | fields
    job = LiveJob.model_validate({"session": "one", "action": kind, **fields})
    assert read_request(job.model_dump_json()) == job
    jobs.run_live(job, root, progress=lambda _: None, cancelled=lambda: False)
    return Transcript().follow(read_events(root, job.session)[0])


def test_a_conversation_is_told_in_events(tmp_path: Path) -> None:
    started = action(tmp_path, "start")
    assert started.is_read
    assert [branch.label for branch in started.branches.values()] == ["full 100 %", "h2o 30 %"]
    assert "".join(started.texts).endswith("for years. ")
    assert len(started.texts) == started.tokens == started.tokens_seen
    action(tmp_path, "ask", question="Who?")
    told = action(tmp_path, "ask", question="Why?")
    assert [turn.question for turn in told.turns] == ["Who?", "Why?"]
    assert all(len(answer.words) == 4 and answer.reason == "length" for answer in told.turns[1].answers.values())
    assert told.tokens_seen > started.tokens
    again = action(tmp_path, "again", question="Where?")
    assert [turn.question for turn in again.turns] == ["Who?", "Where?"]
    assert action(tmp_path, "restart").turns == []


def test_what_is_held_of_the_context_is_told_for_every_branch(tmp_path: Path) -> None:
    told = action(tmp_path, "start")
    full, branch = (told.branches[number].held for number in (0, 1))
    assert full is not None and branch is not None
    assert np.allclose(full, 1.0)
    assert abs(float(branch.mean()) - 0.3) < 0.02
    after = action(tmp_path, "ask", question="Who?").branches[1].held
    assert after is not None
    assert float(after.mean()) <= float(branch.mean())


def test_what_is_held_is_told_while_an_answer_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlab.live.job.HELD_SECONDS", 0)
    action(tmp_path, "start")
    told = action(tmp_path, "ask", question="Who?", max_new_tokens=24).branches
    kinds = [event["kind"] for event in read_events(tmp_path, "one")[0]]
    first = kinds.index("held_changes")
    assert first < kinds.index("answer_ended"), "before the answers end"
    assert kinds[:first].count("token") <= 4, "two branches, one or two tokens each"
    (held,) = jobs._held.values()
    for number, branch in enumerate(held.session.branches):
        shares = branch.context_shares().own_slots
        assert np.allclose(told[number].held, shares, atol=6e-4), "changes add up to what is held"
    action(tmp_path, "branch", branch=1, choice={"method": "snapkv", "budget": 0.5})
    shares = held.session.branches[1].context_shares().own_slots
    changed = action(tmp_path, "ask", question="Who?", max_new_tokens=24).branches[1].held
    assert changed is not None
    assert abs(float(changed.mean()) - float(shares.mean())) < 0.05


def test_another_method_of_a_branch_answers_the_questions_again(tmp_path: Path) -> None:
    action(tmp_path, "start")
    for question in ("Who?", "Why?"):
        before = action(tmp_path, "ask", question=question)
    told = action(tmp_path, "branch", branch=1, choice={"method": "snapkv", "budget": 0.5})
    assert told.branches[1].label == "snapkv 50 %"
    assert [turn.question for turn in told.turns] == ["Who?", "Why?"]
    assert [len(turn.answers) for turn in told.turns] == [2, 2]
    assert [turn.answers[0].text for turn in told.turns] == [turn.answers[0].text for turn in before.turns]
    changed = [event for event in read_events(tmp_path, "one")[0] if event["kind"] == "branch_changed"]
    assert [(event["branch"], event["choice"]["method"]) for event in changed] == [(1, "snapkv")]


def test_an_earlier_question_is_edited(tmp_path: Path) -> None:
    action(tmp_path, "start")
    for question in ("Who?", "Why?", "When?"):
        action(tmp_path, "ask", question=question)
    told = action(tmp_path, "again", question="Where?", turn=1)
    assert [turn.question for turn in told.turns] == ["Who?", "Where?"]


@pytest.mark.parametrize("is_held", [True, False])
def test_a_fork_goes_on_from_an_earlier_question(tmp_path: Path, is_held: bool) -> None:
    action(tmp_path, "start")
    for question in ("Who?", "Why?"):
        action(tmp_path, "ask", question=question)
    fork_log(tmp_path, "one", "two", turn=1, opened={"kind": "opened"})
    if not is_held:
        drop_model()
    told = action(tmp_path, "ask", session="two", question="Where?")
    assert [turn.question for turn in told.turns] == ["Who?", "Where?"]
    assert told.notes == [], "nothing was lost"
    again = action(tmp_path, "again", question="Where?")  # of the first session, whose log the fork left alone
    assert [turn.question for turn in again.turns] == ["Who?", "Where?"]
    for turn in (0, 1):
        assert again.turns[turn].answers[1].text == told.turns[turn].answers[1].text


def test_the_heads_that_hold_each_token_are_read(tmp_path: Path) -> None:
    action(tmp_path, "start")
    told = action(tmp_path, "ask", question="Who?")
    assert read_token_heads(heads_path(tmp_path, "one", 1)) is None
    assert action(tmp_path, "heads", branch=1).heads_read == {1: 1}
    heads = read_token_heads(heads_path(tmp_path, "one", 1))
    assert heads is not None
    assert told.branches[1].held is not None
    assert np.allclose((heads.states == OWN).mean((0, 1)), told.branches[1].held, atol=6e-4)
    assert len(heads.of_token(3)) == heads.states.shape[0] * heads.states.shape[1]
    heads_path(tmp_path, "one", 1).write_bytes(b"PK")
    assert read_token_heads(heads_path(tmp_path, "one", 1)) is None


def test_a_session_the_worker_no_longer_holds_is_read_again_and_says_so(tmp_path: Path) -> None:
    action(tmp_path, "start")
    action(tmp_path, "ask", question="Who?")
    drop_model()  # as when a job with another model ran in between
    told = action(tmp_path, "ask", question="Why?")
    assert [turn.question for turn in told.turns] == ["Who?", "Why?"], "what was said is kept"
    assert told.notes == [jobs.LOST]
    drop_model()
    again = action(tmp_path, "again", question="Why?")
    assert again.turns[1].answers[1].text == told.turns[1].answers[1].text, "it goes on from the same state"


def test_idle_sessions_and_the_oldest_give_their_memory_back(tmp_path: Path) -> None:
    for number in range(jobs.MOST_SESSIONS + 1):
        action(tmp_path, "start", session=f"number-{number}")
    assert jobs.drop_idle() == jobs.MOST_SESSIONS
    assert jobs.drop_idle(0.0) == 0


def test_a_cancelled_job_keeps_what_was_said(tmp_path: Path) -> None:
    action(tmp_path, "start")
    job = LiveJob(session="one", action="ask", request=REQUEST, question="Who?", max_new_tokens=50)
    jobs.run_live(job, tmp_path, progress=lambda _: None, cancelled=lambda: True)
    answers = Transcript().follow(read_events(tmp_path, "one")[0]).turns[0].answers
    assert [answer.reason for answer in answers.values()] == ["stopped"] * 2
    assert all(0 < len(answer.words) < 5 for answer in answers.values())


def test_events_are_read_from_any_place_and_a_line_cut_off_is_left(tmp_path: Path) -> None:
    assert read_events(tmp_path, "one") == ([], 0)
    append_event(tmp_path, "one", {"kind": "note", "text": "ä\n"})
    events, end = read_events(tmp_path, "one")
    assert events == [{"kind": "note", "text": "ä\n"}]
    with log_path(tmp_path, "one").open("a") as file:
        file.write('{"kind": "cut')
    assert read_events(tmp_path, "one", end) == ([], end)
    with log_path(tmp_path, "one").open("a") as file:
        file.write('\n[1]\n{"kind": "b"}\n')
    assert [event["kind"] for event in read_events(tmp_path, "one", end)[0]] == ["b"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"action": "ask"}, "the question is empty"),
        ({"action": "branch", "branch": 1}, "a branch beside the full cache and its new method"),
        ({"action": "start", "session": "../x"}, "pattern"),
        ({"action": "start", "request": {"context": "", "choices": [{"method": "h2o"}]}}, "at least 1"),
        ({"action": "start", "request": {"context": "a", "choices": []}}, "at least 1"),
    ],
)
def test_a_bad_action_is_refused(fields: dict[str, object], sentence: str) -> None:
    given = {"session": "one", "request": json.loads(REQUEST.model_dump_json()), **fields}
    with pytest.raises(ValidationError, match=sentence):
        LiveJob.model_validate(given)


def test_a_session_is_planned_as_a_comparison_and_refusals_are_sentences(tmp_path: Path) -> None:
    assert too_big(LiveJob(session="one", action="start", request=REQUEST)) == ""
    with pytest.raises(UserError, match="There is no method called"):
        action(tmp_path, "start", request=REQUEST.model_copy(update={"choices": (MethodChoice(method="no"),)}))


FORMER_LOG = """\
{"kind": "context_read", "tokens": 3, "seconds": 0.5}
{"kind": "lane_settled", "lane": 0, "label": "full 100 %", "live_bytes": 100, "full_bytes": 100}
{"kind": "lane_settled", "lane": 1, "label": "h2o 20 %", "live_bytes": 20, "full_bytes": 100}
{"kind": "held", "lane": 1, "per_mille": [1000, 500, 0]}
{"kind": "question", "turn": 0, "text": "Who?"}
{"kind": "token", "turn": 0, "lane": 1, "token": 7, "text": "Ann", "kl": 0.5, "leaves": true}
{"kind": "answer_ended", "turn": 0, "lane": 1, "reason": "end", "tokens_seen": 5, "live_bytes": 25, "seconds": 1.0}
{"kind": "recorded", "comparison": "c", "runs": ["c-full", "c-h2o"]}
{"kind": "lane_changed", "lane": 1, "choice": {"method": "snapkv", "budget": 0.5}}
{"kind": "lane_failed", "lane": 1, "message": "no more"}
{"kind": "heads_read", "lane": 1, "turn": 1}
"""


def test_logs_heads_and_jobs_that_call_branches_lanes_are_read(tmp_path: Path) -> None:
    path = log_path(tmp_path, "former")
    path.parent.mkdir(parents=True)
    path.write_text(FORMER_LOG, encoding="utf-8")
    session = Transcript().follow(read_events(tmp_path, "former")[0])
    branch = session.branches[1]
    assert session.branches[0].label == "full 100 %" and branch.held is not None
    assert (branch.label, branch.settled_bytes, branch.live_bytes, branch.failure) == ("h2o 20 %", 20, 25, "no more")
    assert session.turns[0].answers[1].text == "Ann"
    assert (session.runs, session.heads_read) == ({0: "c-full"}, {1: 1})
    former = path.with_suffix(".lane-1.npz")
    former.write_bytes(b"")
    assert heads_path(tmp_path, "former", 1) == former
    assert heads_path(tmp_path, "former", 0) == path.with_suffix(".branch-0.npz")
    choice = '{"method": "h2o", "budget": 0.3}'
    request = f'{{"context": "A text.", "choices": [{choice}]}}'
    job = f'{{"kind": "live", "session": "one", "action": "lane", "lane": 1, "choice": {choice}, "request": {request}}}'
    read = read_request(job)
    assert isinstance(read, LiveJob) and (read.action, read.branch) == ("branch", 1)
