"""Prefixes in the worker: a session over kept ones, and a branch that is kept as `kvlab prefix make` would make it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from kvlab.common.lab import ALONE, User, acting_as
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.engine.prefix import Prefix
from kvlab.engine.prefix.prefix import mapped_tensors
from kvlab.forms.plan_preview import check_work
from kvlab.jobs.access_check import check_access
from kvlab.library.prefixes import (
    PrefixFile,
    find_prefix,
    fork_prefix,
    in_order,
    kept_texts,
    list_prefixes,
    live_request,
    prefix_path,
    proposed_name,
    read_texts,
)
from kvlab.live import job as jobs
from kvlab.live.events import fork_log, heads_path, read_events
from kvlab.live.session import REPLACED
from kvlab.live.transcript import Transcript
from kvlab.models.load import drop_model, held_model
from kvlab.requests.live_session import EDITED, FIXED, KEPT_ALREADY, LiveJob, LiveRequest
from tests.engine.test_prefix import TEXT as EXCERPT
from tests.families import CHAT_TEMPLATE, tiny_folder

TEXT = EXCERPT[:320]  # tokens are characters, and the window has 512

CHOICES = (
    MethodChoice(method="snapkv", budget=0.3),
    MethodChoice(method="keepkv", budget=0.3, hyper_parameters={"store": "kivi4"}),
    MethodChoice(method="gvote", budget=0.2),
    MethodChoice(method="random", budget=24),
)


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    jobs.drop_idle(-1)
    yield
    jobs.drop_idle(-1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with a chat template."""
    return str(tiny_folder(tmp_path_factory.mktemp("chat") / "model", chat_template=CHAT_TEMPLATE))


def action(root: Path, kind: str, request: LiveRequest, **fields: object) -> Transcript:
    """Run one action in session "one"; the transcript afterwards."""
    given = {"session": "one", "action": kind, "request": request, "max_new_tokens": 4} | fields
    job = LiveJob.model_validate(given)
    jobs.run_live(job, root, progress=lambda _: None, cancelled=lambda: False)
    return Transcript().follow(read_events(root, job.session)[0])


def make(root: Path, request: LiveRequest, name: str, choice: MethodChoice) -> Prefix:
    """A prefix as the command makes it."""
    loading = {"placement": "single", "weights": None, "revision": None, "cache_dir": None}
    options: dict[str, Any] = {"chat": request.chat, "system": request.system, "seed": request.seed, "loading": loading}
    options |= choice.hyper_parameters
    prefix = Prefix.make(held_model(request), request.context, choice.method, choice.budget, **options)
    prefix.save(prefix_path(root, name))
    return prefix


def told(file: PrefixFile) -> dict[str, Any]:
    """A header without what differs between two times of making it."""
    return file.header.model_dump(exclude={"created", "seconds"})


def state_of_file(file: PrefixFile) -> dict[str, Any]:
    """Its state without the peaks of the last step, which a question that was asked has and making it has not."""
    state = json.loads(file.state)
    for layer in state["layers"]:
        layer.pop("peak_bytes")
    return state


def test_a_kept_branch_is_the_file_that_making_a_prefix_writes(tmp_path: Path, folder: str) -> None:
    """But for times and peaks of making, also after questions were asked and the branch was changed.

    Numbers are equal but for rounding: attention of a pass that only h2o reads also computes its sums.
    """
    request = LiveRequest(model=folder, context=TEXT, choices=CHOICES, device="cpu", system="Be brief.", seed=3)
    action(tmp_path, "start", request)
    before = action(tmp_path, "ask", request, question="Who was late?")
    changed = MethodChoice(method="h2o", budget=0.4)
    action(tmp_path, "branch", request, branch=1, choice=changed)
    request = request.model_copy(update={"choices": (changed, *CHOICES[1:])})
    for branch, choice in enumerate(request.branches):
        after = action(tmp_path, "keep", request, branch=branch, name=f"kept-{branch}")
        made = make(tmp_path, request, f"made-{branch}", choice)
        kept, expected = (find_prefix(tmp_path, f"{one}-{branch}") for one in ("kept", "made"))
        assert after.branches[branch].kept == f"kept-{branch}"
        assert told(kept) == told(expected)
        assert state_of_file(kept) == state_of_file(expected)
        ours, theirs = mapped_tensors(kept), mapped_tensors(expected)
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-4, msg=f"{choice.label}: {name}")
        assert read_texts(kept) == read_texts(expected)
        answer = Prefix.load(kept.path, held_model(request)).ask("Who was late?", 4)
        assert answer == made.ask("Who was late?", 4)
        if branch != 1:
            said = tuple(word.token for word in before.turns[0].answers[branch].words)
            assert answer.token_ids == said, "the session said the same"
    with pytest.raises(UserError, match="There is already a prefix 'kept-0'"):
        action(tmp_path, "keep", request, branch=0, name="kept-0")


def test_a_branch_that_no_prefix_can_hold_is_refused(tmp_path: Path, folder: str) -> None:
    edited = MethodChoice(method="h2o", budget=0.3, force_keep=(2,))
    request = LiveRequest(model=folder, context=TEXT[:200], choices=(edited,), device="cpu")
    action(tmp_path, "start", request)
    with pytest.raises(UserError, match=EDITED):
        action(tmp_path, "keep", request, branch=1, name="one")
    (held,) = jobs._held.values()
    held.session.branches[1].fail(RuntimeError("out of luck"))
    with pytest.raises(UserError, match="has failed, so there is nothing to keep: out of luck"):
        action(tmp_path, "keep", request, branch=1, name="one")
    with pytest.raises(UserError, match="There is no branch 4"):
        action(tmp_path, "keep", request, branch=4, name="one")
    assert list_prefixes(tmp_path) == ([], [])


def test_a_session_over_prefixes_goes_on_like_any_other(tmp_path: Path, folder: str) -> None:
    reading = LiveRequest(model=folder, context=TEXT, choices=CHOICES[:1], device="cpu")
    action(tmp_path, "start", reading, session="reading")
    expected = action(tmp_path, "ask", reading, session="reading", question="Who was late?")
    for name, choice in zip(("full", "snapkv"), reading.branches, strict=True):
        make(tmp_path, reading, name, choice)
    request = live_request(tmp_path, ["full", "snapkv"])
    assert (request.context, request.branches, request.model) == (TEXT, reading.branches, folder)
    check_work(LiveJob(session="one", action="start", request=request))
    started = action(tmp_path, "start", request)
    assert [branch.label for branch in started.branches.values()] == ["full 100 %", "snapkv 30 %"]
    assert "".join(started.texts).endswith(TEXT)
    asked = action(tmp_path, "ask", request, question="Who was late?")
    for branch, answer in asked.turns[0].answers.items():
        assert answer.words == expected.turns[0].answers[branch].words
    assert asked.full_bytes == expected.full_bytes
    assert action(tmp_path, "heads", request, branch=0).heads_read == {0: 1}
    assert heads_path(tmp_path, "one", 0).exists()
    action(tmp_path, "ask", request, question="And why?")
    fork_log(tmp_path, "one", "two", turn=1, opened={"kind": "opened"})
    drop_model()
    forked = action(tmp_path, "ask", request, session="two", question="And why?")
    again = action(tmp_path, "again", request, question="And why?", turn=1)
    assert again.notes == [jobs.LOST_PREFIX]
    assert again.turns[1].answers[1].words == forked.turns[1].answers[1].words
    with pytest.raises(UserError, match=FIXED):
        action(tmp_path, "branch", request, branch=1, choice={"method": "h2o"})
    with pytest.raises(UserError, match=KEPT_ALREADY):
        action(tmp_path, "keep", request, branch=1, name="other")
    assert action(tmp_path, "restart", request).turns == []
    make(tmp_path, reading, "snapkv", CHOICES[3])
    drop_model()
    with pytest.raises(UserError, match=REPLACED):
        action(tmp_path, "ask", request, question="Who?")


def test_without_the_full_cache_branches_are_compared_with_the_first(tmp_path: Path, folder: str) -> None:
    reading = LiveRequest(model=folder, context=TEXT, choices=CHOICES[:1], device="cpu")
    for name, budget in (("less", 0.2), ("more", 0.5)):
        make(tmp_path, reading, name, MethodChoice(method="h2o", budget=budget))
    request = live_request(tmp_path, ["more", "less"])
    started = action(tmp_path, "start", request)
    assert request.reference.budget == 0.5
    full = action(tmp_path, "start", reading, session="reading").full_bytes
    assert started.full_bytes == full
    asked = action(tmp_path, "ask", request, question="Who?")
    reread = action(tmp_path, "ask", reading, session="reading", question="Who?")
    assert asked.full_bytes / asked.tokens_seen == reread.full_bytes / reread.tokens_seen, "of as many tokens"
    assert all(word.kl is None for word in asked.turns[0].answers[0].words)
    assert asked.turns[0].answers[1].words[0].kl is not None


def test_bytes_are_those_of_compressed_layers_as_in_other_sessions(tmp_path: Path) -> None:
    """A layer with a window counts on neither side, so that a full cache is 100 % of itself."""
    windowed = str(tiny_folder(tmp_path / "model", "qwen3-windowed"))
    reading = LiveRequest(model=windowed, context=TEXT[:200], choices=CHOICES[:1], device="cpu")
    make(tmp_path, reading, "full", reading.reference)
    branch = action(tmp_path, "start", live_request(tmp_path, ["full"]))
    assert branch.branches[0].live_bytes == branch.full_bytes
    assert branch.full_bytes == action(tmp_path, "start", reading, session="reading").full_bytes


def test_prefixes_of_one_text_are_found_together_and_names_are_free(tmp_path: Path, folder: str) -> None:
    reading = LiveRequest(model=folder, context=TEXT[:150], choices=CHOICES[:1], device="cpu")
    make(tmp_path, reading, "h2o", MethodChoice(method="h2o", budget=0.3))
    make(tmp_path, reading, "full", reading.reference)
    make(tmp_path, reading.model_copy(update={"context": TEXT[150:300]}), "other", CHOICES[0])
    talk = Prefix.load(prefix_path(tmp_path, "h2o"), held_model(reading))
    talk.ask("Who?", 1, keep=True)
    talk.save(prefix_path(tmp_path, "talk"))
    found, problems = list_prefixes(tmp_path)
    assert not problems
    texts = kept_texts(found, folder)
    assert {tuple(file.name for file in one.files) for one in texts} == {("full", "h2o"), ("other",)}
    assert kept_texts(found, "mini") == []
    assert in_order(reversed(found))[0].name == "full"
    names = [proposed_name(tmp_path, "The old house, STOOD there.", one) for one in (*CHOICES, reading.reference)]
    assert names[0] == "the-old-house-stood-snapkv-30" and names[-1] == "the-old-house-stood-full"
    assert all(prefix_path(tmp_path, name) for name in (*names, proposed_name(tmp_path, "—", CHOICES[1])))
    prefix_path(tmp_path, names[0]).touch()
    assert proposed_name(tmp_path, "The old house stood", CHOICES[0]) == f"{names[0]}-2"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"prefixes": ["one"]}, "every prefix is a branch"),
        ({"prefixes": ["../one", "two"]}, "pattern"),
        ({"reference": {"method": "h2o", "budget": 0.5}}, "compared with the full cache"),
    ],
)
def test_a_bad_request_is_refused(changed: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        LiveRequest.model_validate({"context": "a", "choices": [{"method": "h2o"}], **changed})


def test_on_a_shared_server_a_prefix_is_its_owners_alone(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others neither list, find nor open it; administrators and the command line do, and it counts as the owner's."""
    monkeypatch.setattr("kvlab.jobs.access_check.lab", lambda: object())
    request = LiveRequest(model=folder, context=TEXT[:40], choices=CHOICES[:1], device="cpu")
    action(tmp_path, "start", request)
    branch = request.branches.index(CHOICES[0])
    action(tmp_path, "keep", request, branch=branch, name="anns", owner="ann")  # as the worker runs a job of ann's
    make(tmp_path, request, "nobodys", CHOICES[0])
    prefix_path(tmp_path, "broken").write_bytes(b"nothing")
    opened = live_request(tmp_path, ["anns"]).model_copy(update={"model": "mini"})
    job = LiveJob(session="s", action="start", request=opened)

    def seen(user: User) -> tuple[set[str], int]:
        with acting_as(user):
            files, problems = list_prefixes(tmp_path)
            return {file.name for file in files}, len(problems)

    assert seen(User("ann")) == ({"anns"}, 0)
    assert seen(User("ben")) == (set(), 0)
    assert seen(ALONE) == ({"anns", "nobodys"}, 1)
    with acting_as(User("ann")):
        check_access(tmp_path, job)
    with acting_as(User("ben")):
        for refused in (lambda: check_access(tmp_path, job), lambda: fork_prefix(tmp_path, "anns", "mine")):
            with pytest.raises(UserError, match="There is no prefix 'anns'"):
                refused()
    assert "owner" not in find_prefix(tmp_path, "nobodys").header.as_json(), "as older versions read it"
