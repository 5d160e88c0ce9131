"""The page Live: its form, a conversation drawn from events, actions as jobs, and whose sessions are seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app.live.answers import answer_html, answer_note
from kvlab import jobs
from kvlab.core.choice import MethodChoice
from kvlab.core.restore import Restore
from kvlab.library.prompts import save_prompt
from kvlab.live.events import append_event, heads_path, read_events
from kvlab.live.transcript import Answer, BranchState, Word, codes_of, merge_notes
from kvlab.requests.compare import CompareRequest, OnePrompt
from kvlab.requests.live_session import LiveJob, LiveRequest, edit_tokens
from kvlab.views.frames.token_heads import MERGED, OWN, TokenHeads, write_token_heads
from tests.pages.conftest import switch_to

Open = Callable[..., AppTest]
REQUEST = LiveRequest(context="a b c", choices=(MethodChoice(method="h2o", budget=0.2),))
TEXTS = ["a", " b", " c"]


def told(page: AppTest) -> str:
    assert not page.exception, page.exception[0].value
    kinds = (page.markdown, page.caption, page.info, page.error, page.text, page.get("html"))
    shown = [
        getattr(element, "value", None) or getattr(element.proto, "body", "") for kind in kinds for element in kind
    ]
    return "\n".join(map(str, shown)).replace("\\", "").replace("\u00a0", " ")


def write_session(root: Path, *events: dict[str, Any], owner: str = "", name: str = "one") -> str:
    for event in ({"kind": "opened", "owner": owner, "request": REQUEST.model_dump(mode="json")}, *events):
        append_event(root, name, event)
    return name


def talked(root: Path) -> str:
    settled = [
        {"kind": "branch_settled", "branch": branch, "label": label, "live_bytes": size, "full_bytes": 1000}
        for branch, label, size in ((0, "full 100 %", 1000), (1, "h2o 20 %", 200))
    ]
    words = [
        {"kind": "token", "turn": 0, "branch": branch, "token": 5, "text": text, "kl": kl, "leaves": leaves}
        for branch, text, kl, leaves in ((0, "yes <b>", None, False), (1, "yes ", 0.2, False), (1, "no", 3.0, True))
    ]
    ended = {"turn": 0, "reason": "end", "tokens_seen": 9, "live_bytes": 300, "seconds": 1.25}
    return write_session(
        root,
        {"kind": "context_read", "tokens": 3, "seconds": 0.5},
        *settled,
        {"kind": "context_texts", "texts": TEXTS},
        {"kind": "held", "branch": 1, "per_mille": [1000, 50, 0]},
        {"kind": "merged", "branch": 1, "per_mille": [0, 250, 500], "into": [-1, 0, 1]},
        {"kind": "question", "turn": 0, "text": "Is it <i>?"},
        *words,
        {"kind": "answer_ended", "branch": 1, **ended},
    )


def test_a_token_says_what_it_was_merged_into() -> None:
    branch = BranchState(held=np.array([1, 0.05, 0, 0]), merged=np.array([0, 0.25, 0.5, 0]), into=[-1, 0, 1, 0])
    assert codes_of(branch).tolist() == [6, 2, 1, 0]
    notes = merge_notes(branch, ["One", " two", " three", " four"])
    assert notes[1:3] == [
        "merged in 25 % of heads, mostly into 0 “One”",
        "merged in 50 % of heads, mostly into 1 “two”",
    ]
    assert [notes[0], notes[3]] == ["", ""]


def test_a_session_is_replayed_as_a_page_of_its_own(runs_root: Path, open_page: Open) -> None:
    page = open_page("live", session=talked(runs_root))
    page = page.toggle(key="replay").set_value(True).run()
    assert not page.exception
    assert "plays without a server" in told(page)


def test_the_form_opens_a_session_whose_context_is_read_by_a_job(runs_root: Path, open_page: Open) -> None:
    page = open_page("live")
    assert not page.exception
    page = page.multiselect(key="methods").set_value(["h2o"]).run()
    page = page.button(key="live-start").click().run()
    assert not page.exception
    (job,) = jobs.list_jobs(runs_root)
    request = jobs.request_of(runs_root, job.job_id)
    assert isinstance(request, LiveJob)
    assert request.action == "start"
    assert "Question:" not in request.request.context, "it is asked in the conversation"
    assert page.query_params["session"] in (request.session, [request.session])
    assert "number 1 in the queue" in told(page)


def test_the_form_takes_a_saved_prompt_and_refuses_too_many_branches(runs_root: Path, open_page: Open) -> None:
    save_prompt(runs_root, "mine", OnePrompt(prompt="A text of my own."))
    page = open_page("live", source="Saved", budgets="10%,20%,30%,40%")
    page = page.multiselect(key="methods").set_value(["h2o"]).run()
    page = page.button(key="live-start").click().run()
    assert "That would be 4 branches beside the full cache: choose at most 3." in told(page)
    page = page.text_input(key="budgets").input("10%").run()
    told(page.button(key="live-start").click().run())
    job = the_job(runs_root)
    assert (job.request.context, job.request.choices) == (
        "A text of my own.",
        (MethodChoice(method="h2o", budget=0.1),),
    )


def test_a_conversation_is_drawn_from_its_events(runs_root: Path, open_page: Open) -> None:
    page = open_page("live", session=talked(runs_root))
    words = told(page)
    assert "Is it <i>?" in words
    assert "yes &lt;b&gt;" in words
    assert "20 % of the full cache" not in words and "30 % of the full cache · 100 bytes over its budget" in words
    assert "leaves the full cache&#x27;s text at token 2" in words
    expected = "0 % of the tokens are in no slot, 33 % are only in slots that they were merged into; a head holds 35 %"
    assert expected in words
    assert page.button(key="live-stop").disabled
    assert not page.button(key="live-again").disabled


def test_a_question_becomes_a_job_and_a_second_one_waits_for_it(runs_root: Path, open_page: Open) -> None:
    page = open_page("live", session=talked(runs_root), new_tokens="7")
    page = page.chat_input[0].set_value("And why?").run()
    (job,) = jobs.list_jobs(runs_root)
    request = jobs.request_of(runs_root, job.job_id)
    assert isinstance(request, LiveJob)
    assert (request.action, request.question, request.max_new_tokens) == ("ask", "And why?", 7)
    assert page.button(key="live-again").disabled
    page = page.button(key="live-stop").click().run()
    assert jobs.status(runs_root, job.job_id).state == "cancelled"


def the_job(root: Path) -> LiveJob:
    """The only job of the queue."""
    (job,) = jobs.list_jobs(root)
    request = jobs.request_of(root, job.job_id)
    assert isinstance(request, LiveJob)
    return request


def test_a_question_is_edited(runs_root: Path, open_page: Open) -> None:
    page = open_page("live", session=talked(runs_root))
    page = page.text_area(key="live-turn-0-text").input("Is it not?").run()
    told(page.button(key="live-turn-0-ask").click().run())
    job = the_job(runs_root)
    assert (job.action, job.turn, job.question) == ("again", 0, "Is it not?")


def test_a_fork_is_a_session_of_its_own(runs_root: Path, open_page: Open) -> None:
    page = open_page("live", session=talked(runs_root))
    page = page.button(key="live-turn-0-fork").click().run()
    words = told(page)
    assert "Is it <i>?" not in words
    assert "30 % of the full cache" not in words and "20 % of the full cache" in words
    session = "".join(page.query_params["session"])
    assert session != "one"
    page.chat_input[0].set_value("And why?").run()
    assert (the_job(runs_root).session, the_job(runs_root).request) == (session, REQUEST)


def test_a_branch_gets_another_method_and_later_jobs_know_it(runs_root: Path, open_page: Open) -> None:
    page = open_page("live", session=talked(runs_root))
    page = page.selectbox(key="live-branch-1-method").set_value("keepkv").run()
    page = page.text_input(key="live-branch-1-budget").input("50%").run()
    page = page.selectbox(key="live-branch-1-settings").set_value("paper").run()
    told(page.button(key="live-branch-1-apply").click().run())
    job = the_job(runs_root)
    changed = MethodChoice(method="keepkv", budget=0.5, hyper_parameters={"preset": "paper"})
    assert (job.action, job.branch, job.choice) == ("branch", 1, changed)
    append_event(runs_root, "one", {"kind": "branch_changed", "branch": 1, "choice": changed.model_dump(mode="json")})
    jobs.cancel(runs_root, jobs.list_jobs(runs_root)[0].job_id)
    open_page("live", session="one").chat_input[0].set_value("And why?").run()
    requests = [jobs.request_of(runs_root, one.job_id) for one in jobs.list_jobs(runs_root)]
    assert any(isinstance(one, LiveJob) and one.request.choices == (changed,) for one in requests)


def test_the_chosen_word_asks_for_its_heads_and_shows_them(runs_root: Path, open_page: Open) -> None:
    page = open_page("live", session=talked(runs_root), token="1")
    assert "“b” (token 1)" in told(page)
    assert "Shows which heads hold it." in told(page)
    told(page.button(key="live-heads").click().run())
    assert (the_job(runs_root).action, the_job(runs_root).branch) == ("heads", 1)
    jobs.cancel(runs_root, jobs.list_jobs(runs_root)[0].job_id)
    states = np.zeros((2, 2, 3), np.uint8)
    states[0, 1, 1], states[1, 1, 1] = OWN, MERGED
    attention = np.zeros((2, 2, 3), np.float32)
    attention[0, 1, 1] = 0.25
    write_token_heads(heads_path(runs_root, "one", 1), TokenHeads(1, np.array([0, 3]), states, attention))
    append_event(runs_root, "one", {"kind": "heads_read", "branch": 1, "turn": 1})
    words = told(open_page("live", session="one", token="1"))
    assert "This token is still held by 2 of the 4 heads." in words
    assert "This token is looked at most in layer 0, head 1." in words


def test_chosen_words_are_kept_and_dropped_in_one_branch(runs_root: Path, open_page: Open) -> None:
    page = open_page("live", session=talked(runs_root), token="2", span="1-2")
    assert "“b c” (tokens 1-2)" in told(page)
    assert page.button(key="live-undo").disabled
    told(page.button(key="live-keep").click().run())
    kept = REQUEST.choices[0].model_copy(update={"force_keep": (1, 2)})
    assert (the_job(runs_root).action, the_job(runs_root).choice) == ("branch", kept)
    append_event(runs_root, "one", {"kind": "branch_changed", "branch": 1, "choice": kept.model_dump(mode="json")})
    jobs.cancel(runs_root, jobs.list_jobs(runs_root)[0].job_id)
    page = open_page("live", session="one", token="2")
    assert "Edits of this branch: keeps tokens 1-2." in told(page)
    told(page.button(key="live-drop").click().run())
    dropped = edit_tokens(kept, "drop", [2])
    requested = [getattr(jobs.request_of(runs_root, job.job_id), "choice", None) for job in jobs.list_jobs(runs_root)]
    assert dropped in requested
    assert (dropped.force_keep, dropped.returned) == ((1,), Restore(kind="drop", tokens=(2,)))
    for job in jobs.list_jobs(runs_root, open_only=True):
        jobs.cancel(runs_root, job.job_id)
    told(open_page("live", session="one", token="2").button(key="live-merge").click().run())
    (job,) = jobs.list_jobs(runs_root, open_only=True)
    assert getattr(jobs.request_of(runs_root, job.job_id), "choice", None) == edit_tokens(kept, "merge", [2])


def test_a_branch_that_is_compressed_again_stays_in_view(runs_root: Path, open_page: Open) -> None:
    session = talked(runs_root)
    again = {"kind": "branch_settled", "branch": 1, "label": "h2o 30 %", "live_bytes": 300, "full_bytes": 1000}
    append_event(runs_root, session, again)
    assert "What is left of the text" in [header.value for header in open_page("live", session=session).header]


def test_a_job_that_has_not_begun_to_write_is_named(
    runs_root: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = talked(runs_root)
    append_event(runs_root, session, {"kind": "answer_ended", "branch": 0, "turn": 0, "reason": "end", "tokens_seen": 9,
                                      "live_bytes": 1000, "seconds": 1.0})  # fmt: skip
    page = open_page("live", session=session)
    assert "at work" not in told(page) and "in the queue" not in told(page)
    page = page.chat_input[0].set_value("And *then*?").run()
    assert "Waiting: number 1 in the queue." in told(page)
    (job,) = jobs.list_jobs(runs_root)
    monkeypatch.setattr("app.live.sessions.running_job", lambda session: job.model_copy(update={"position": None}))
    assert "The worker is at work: And *then*?" in told(page.run())


def test_what_another_tab_asks_is_followed_here(runs_root: Path, open_page: Open) -> None:
    page = open_page("live", session=talked(runs_root))
    page = page.chat_input[0].set_value("Mine?").run()
    jobs.cancel(runs_root, jobs.list_jobs(runs_root)[0].job_id)
    page = page.run()
    assert not page.button(key="live-again").disabled
    jobs.submit(runs_root, LiveJob(session="one", action="ask", question="Theirs?", request=REQUEST))
    assert page.run().button(key="live-again").disabled


def test_a_session_is_recorded_as_a_comparison_of_its_branches(runs_root: Path, open_page: Open) -> None:
    page = open_page("live", session=talked(runs_root), new_tokens="9", token="2", span="1-2", layer="0", head="1")
    page = page.button(key="live-compare").click().run()
    request = jobs.request_of(runs_root, jobs.list_jobs(runs_root)[0].job_id)
    assert isinstance(request, CompareRequest)
    assert request.prompt == "a b c\n\nIs it <i>?"
    assert request.runs == REQUEST.branches
    assert request.max_new_tokens == 9
    job = jobs.list_jobs(runs_root)[0].job_id
    shown = {"job": job, "run": f"{job}-01-h2o", "token": "2", "layer": "0", "head": "1"}
    assert {name: "".join(page.query_params[name]) for name in shown} == shown
    again = switch_to(page, "live").run()
    assert "".join(again.query_params["session"]) == "one", "the menu leads back to the session"
    assert "“c” (token 2)" in told(again), "with the word that was chosen"


def test_a_failed_job_says_why_and_keeps_what_was_said(
    runs_root: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_page("live", session=talked(runs_root))
    page = page.chat_input[0].set_value("And why?").run()
    failed = jobs.status(runs_root, jobs.list_jobs(runs_root)[0].job_id).model_copy(
        update={"state": "failed", "message": "The worker process ended."}
    )
    monkeypatch.setattr("kvlab.jobs.status", lambda *_: failed)
    words = told(page.run())
    assert "The worker process ended." in words
    assert "Is it <i>?" in words


def test_an_unknown_session_and_another_users_get_one_sentence_and_the_form(
    runs_root: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.live.sessions.is_owner", lambda owner: owner != "somebody else")
    for session in ("nobody", write_session(runs_root, owner="somebody else", name="theirs")):
        page = open_page("live", session=session)
        assert "There is no such session here: begin a new one." in told(page)
        assert page.button(key="live-start")


def test_words_are_shaded_by_their_kl_and_escaped() -> None:
    shades = (("a<", 0.001, False), (" b", 0.5, False), (" c", 2.0, True), (" d", None, False))
    answer = Answer([Word(*one, token=5) for one in shades])
    html = answer_html(answer, "light", is_written=True)
    assert "a&lt;" in html
    assert html.count("background:") == 2
    assert html.count("border-bottom") == 1
    assert "Here the text leaves the full cache&#x27;s. KL 2 nats" in html
    assert html.endswith("▍")
    answer.reason, answer.seconds = "end", 2.0
    assert "▍" not in answer_html(answer, "dark", is_written=True)
    ends = "leaves the full cache's text at token 3, where shading ends"
    assert answer_note(answer, True) == f"4 tokens · 2.0 s for all branches together · {ends}"
    blank = Answer([Word(" \n", None, False, token=5)])
    assert answer_note(blank, is_written=True) == "1 token · only white space · writing"
    assert answer_note(blank, is_written=False) == "1 token · only white space · interrupted"
    assert "▍" not in answer_html(blank, "dark", is_written=False)


def test_a_link_of_before_names_the_branch_by_its_label(runs_root: Path, open_page: Open) -> None:
    choices = (*REQUEST.choices, MethodChoice(method="keepkv", budget=0.3))
    request = REQUEST.model_copy(update={"choices": choices})
    session = talked(runs_root)
    append_event(runs_root, "two", {"kind": "opened", "owner": "", "request": request.model_dump(mode="json")})
    events, _ = read_events(runs_root, session)
    settled = {"kind": "branch_settled", "branch": 2, "label": "keepkv 30 %", "live_bytes": 300, "full_bytes": 1000}
    for event in (*events[1:4], settled, *events[4:6], {"kind": "held", "branch": 2, "per_mille": [1000, 0, 0]}):
        append_event(runs_root, "two", event)
    page = open_page("live", session="two", lane="keepkv 30 %")
    assert not page.exception
    assert page.session_state["branch"] == "2"


def test_a_session_is_presented_in_large_type_led_by_keys(runs_root: Path, open_page: Open) -> None:
    page = open_page("live", session=talked(runs_root), present="yes")
    words = told(page)
    assert "Is it &lt;i&gt;?" in words and "What is left of the text" not in [header.value for header in page.header]
    focus = '<div class="answer in-focus"'
    assert "h2o 20 %" in words.partition(focus)[2].partition('<div class="answer"')[0], (
        "the first beside the full cache"
    )
    page = page.button(key="live-next-branch").click().run()
    assert "full 100 %" in told(page).partition(focus)[2].partition('<div class="answer"')[0]
    assert page.button(key="live-present-stop").disabled
    former = told(open_page("live", session="one", present="yes", lane="0"))
    assert "full 100 %" in former.partition(focus)[2].partition('<div class="answer"')[0], "a link of before"
    page = page.chat_input[0].set_value("And why?").run()
    assert the_job(runs_root).question == "And why?"
    page = page.button(key="live-present-stop").click().run()
    assert jobs.list_jobs(runs_root)[0].state == "cancelled"
    page = page.button(key="live-present-leave").click().run()
    assert "present" not in page.query_params and page.button(key="live-present-now")


def test_a_session_and_the_wall_of_its_recording_share_run_and_word(synthetic_runs: Path, open_page: Open) -> None:
    runs = ["newer-full-100pc-0", "newer-h2o-25pc-0"]
    talked(synthetic_runs)
    append_event(synthetic_runs, "one", {"kind": "recorded", "comparison": "newer", "runs": runs})
    page = open_page("live", session="one", token="1")
    links = [one.proto for one in page.get("page_link") if "wall" in one.proto.page]
    assert any(f"run={runs[1]}" in one.query_string and "token=1" in one.query_string for one in links)
    page.query_params["run"], page.query_params["token"] = runs[1], "2"
    page = switch_to(page, "wall").run()
    assert not page.exception
    page.query_params.clear()
    page = switch_to(page, "live").run()
    assert "“c” (token 2)" in told(page)
    assert page.session_state["branch"] == "1"
    page.query_params.clear()
    page = switch_to(page, "wall").run()
    assert {name: "".join(page.query_params[name]) for name in ("run", "token")} == {"run": runs[1], "token": "2"}
