"""Live: talk to the full and to compressed caches side by side about one text."""

from functools import partial

import streamlit as st

from app.base.links import go
from app.base.text import plain, shorten
from app.base.theme import theme as page_theme
from app.base.widgets import attempt, button_unless, widget_options
from app.components import present_button
from app.figures.image_writer import browser
from app.live import sessions
from app.live.answers import PRESENT, YES, answers_html, present
from app.live.context_text import NEW_TOKENS, change_branch, change_question, known_heads, sampling, what_is_left
from app.live.start import start_form
from app.navigation import context_bar, page
from app.navigation.place import share_token
from app.navigation.selection import runs_root
from app.queue.job_panel import queue_job
from app.session.url_state import chosen_value, forget, get_param, go_to, in_url, remember, set_param
from kvlab import jobs
from kvlab.browser import read_static
from kvlab.common.formatting import format_bytes, model_title
from kvlab.common.lab import lab
from kvlab.core.errors import UserError
from kvlab.library.prefixes import free_path, proposed_name
from kvlab.live.events import append_event, read_events
from kvlab.live.transcript import BranchState, Transcript
from kvlab.report.live_replay import KEYS, live_gif, replay
from kvlab.requests.live_session import Action, LiveRequest, comparison_of, runs_of_branches
from kvlab.views.base.palette import SURFACES


def record_comparison(session: str, request: LiveRequest, transcript: Transcript, question: str) -> None:
    """Queue the comparison, note it in the session's log, and open the page that shows its progress."""
    comparison = comparison_of(request, question, int(sampling()["max_new_tokens"]))
    job_id = queue_job(lambda: comparison)
    if job_id is None:
        return
    runs = runs_of_branches(request, comparison, job_id)
    append_event(runs_root(), session, {"kind": "recorded", "comparison": job_id, "runs": runs})
    chosen = str(st.session_state.get(sessions.BRANCH))
    branch = int(chosen) if chosen.isdigit() else int(request.has_full_cache)
    words = sessions.chosen_words(transcript)
    if words is not None:
        share_token(job_id, words[1])
    heads = known_heads(session, transcript, branch)
    place = sessions.place_of(words, sessions.head_in_focus(heads, words and words[1]))
    for name in place.keys() & {"layer", "head"}:
        remember(name, place[name], url=False)
    go("compare", job=job_id, run=runs[branch], **place)


YOURS = " On this server you alone see it."


def keep_branch(session: str, request: LiveRequest, number: int, branch: BranchState, is_busy: bool) -> None:
    """A menu with the name of the prefix; its button lets the worker write the branch as it was after the context."""
    key = f"live-keep-{number}"
    why = request.why_not_kept(number)
    why = why or ("This branch has failed, so there is nothing to keep." if branch.failure else "")
    why = why or ("The worker is busy with this session." if is_busy else "")
    with st.popover("Keep as prefix", **widget_options(why, key=key)):
        proposed = proposed_name(runs_root(), request.context, request.branches[number])
        name = st.text_input("Name", proposed, key=f"{key}-name").strip()
        st.caption(
            "The branch is kept as it was after the context: questions and answers are not in it. It opens here as the "
            "context of a new session, and with kvlab prefix ask." + (YOURS if lab() is not None else "")
        )
        is_asked = button_unless("Keep", why, key=f"{key}-apply")
        is_free = is_asked and attempt(lambda: free_path(runs_root(), name))
        if is_free and sessions.act(session, request, "keep", branch=number, name=name):
            st.rerun()
        if branch.kept:
            st.success(plain(f"Kept as {branch.kept}."))
    if branch.kept:
        st.caption(plain(f"Kept as {branch.kept}."))


LAST_TURN = "live-last-turn"  # key of the last question with its answers, which live.css keeps in view
# answers, and what is left of the context
POLL_SECONDS = 0.15
CONTEXT_SECONDS = 0.75


def conversation(session: str, request: LiveRequest) -> None:
    """The whole conversation, followed while a job of the session waits or runs."""
    st.html(f"<style>:root {{ --kv-ground: {SURFACES[page_theme()]}; }} {read_static('live.css')}</style>")
    job = sessions.running_job(session)
    transcript = sessions.transcript_of(session)
    last_job = st.session_state.get(sessions.LAST_JOB)
    if last_job is not None and last_job[0] == session:
        status = jobs.status(runs_root(), last_job[1])
        if status.state == "failed" and status.message:
            st.error(plain(status.message))
    for note in transcript.notes[-1:]:
        st.info(plain(note), icon=":material/info:")
    if transcript.is_read:
        # Bytes of every branch beside the full cache's, and menus to change the branch and to keep it. A branch is over
        # its budget by what it has added since the context was compressed, such as tokens of answers.
        columns = st.columns(len(transcript.branches))
        for column, (number, branch) in zip(columns, sorted(transcript.branches.items()), strict=True):
            share = f"{100 * branch.live_bytes / max(transcript.full_bytes, 1):.0f} % of the full cache"
            detail = share if number else f"{transcript.tokens_seen:,} tokens seen"
            if number == 0 and not request.has_full_cache:
                detail += f" · {share}"
            if request.prefixes:
                detail += f" · prefix {request.prefixes[number]}"
            with column:
                if number and branch.live_bytes > branch.settled_bytes:
                    detail += f" · {format_bytes(branch.live_bytes - branch.settled_bytes)} over its budget"
                st.markdown(f"**{plain(branch.label)}**  \n{plain(format_bytes(branch.live_bytes))} · {plain(detail)}")
                if branch.failure:
                    st.error(plain(branch.failure))
                with st.container(horizontal=True, gap="small"):
                    if number:
                        change_branch(session, request, number, job is not None)
                    if not request.prefixes:
                        keep_branch(session, request, number, branch, job is not None)
        if not request.has_full_cache and request.choices:
            first = transcript.branches[0].label
            st.caption(plain(f"No branch is the full cache: the others are compared with the first, {first}."))
        if job is None:
            what_is_left(session, request, transcript, is_busy=False)
        else:
            # Less often than the answers, because it takes longer.
            st.fragment(
                lambda: what_is_left(session, request, sessions.transcript_of(session), is_busy=True),
                run_every=CONTEXT_SECONDS,
            )()
    if job is None:
        show_questions(session, request, transcript, None)
    else:
        st.fragment(_follow, run_every=POLL_SECONDS)(session, request, transcript.is_read)
    if transcript.is_read:
        controls(session, request, transcript, job)


def _follow(session: str, request: LiveRequest, is_read: bool) -> None:
    """Draw what the job has written so far; little is drawn again, as this runs several times per second."""
    job = sessions.running_job(session)
    transcript = sessions.transcript_of(session)
    if job is None or transcript.is_read != is_read:
        st.rerun()
    show_questions(session, request, transcript, job)


def show_questions(session: str, request: LiveRequest, transcript: Transcript, job: jobs.JobStatus | None) -> None:
    """Questions with their answers."""
    if not transcript.is_read:
        reading = "The context is read and compressed in every branch …"
        sessions.waiting(job, "The prefixes are opened and verified …" if request.prefixes else reading)
        return
    for number, turn in enumerate(transcript.turns):
        is_last = number == len(transcript.turns) - 1
        with st.container(key=LAST_TURN if is_last else None):
            with st.chat_message("user"), st.container(horizontal=True, gap="small", vertical_alignment="center"):
                st.text(turn.question, width="stretch")
                if job is None:
                    change_question(session, request, number, turn.question)
            st.html(answers_html(turn, transcript.branches, page_theme(), is_written=job is not None and is_last))
    answers = transcript.turns[-1].answers if transcript.turns else {}
    if job is not None and transcript.turns and not answers:
        sessions.waiting(job, "The question is read …")
    elif job is not None and all(answer.reason for answer in answers.values()):  # it has not begun to write
        sessions.waiting(job, f"The worker is at work: {job.title}")


def controls(session: str, request: LiveRequest, transcript: Transcript, job: jobs.JobStatus | None) -> None:
    """Buttons of the conversation, and how answers are drawn."""
    why = "" if job is None else "An answer is being written."
    with st.container(horizontal=True, gap="small", key="live-controls"):
        if button_unless("Stop", "" if job is not None else "Nothing is running.", key="live-stop"):
            assert job is not None
            attempt(lambda: jobs.cancel(runs_root(), job.job_id))
        last = transcript.turns[-1].question if transcript.turns else ""
        if button_unless("Answer again", why or ("" if last else "Nothing was asked yet."), key="live-again"):
            ask(session, request, "again", last)
        if button_unless("Begin again", why, key="live-restart") and sessions.act(session, request, "restart"):
            st.rerun()
        help_text = "Runs the branches on context and last question as one recorded prompt, for every other page."
        if button_unless(
            "Record a comparison", "" if last else "Ask a question first.", help=help_text, key="live-compare"
        ):
            record_comparison(session, request, transcript, last)
        if st.button("Present", help="The running session in large type, led by keys", key="live-present-now"):
            set_param(PRESENT, YES)
            st.rerun()
        if st.button("New session", key="live-new"):
            forget("session")
            st.rerun()
        if job is None:
            st.toggle("Replay", help="Play the session step by step, in a tab or as a file.", **in_url("replay"))
        with st.popover("Sampling"):
            st.number_input("Most new tokens", 1, 2048, NEW_TOKENS, **in_url("new_tokens"))
            st.number_input("Temperature", 0.0, 5.0, 0.0, 0.1, **in_url("temperature"))
            st.number_input("Seed", 0, 2**31 - 1, 0, **in_url("seed"))
    if job is None and st.session_state.get("replay"):
        # The session as a page that plays its steps: in a new tab, or as a file.
        events, _ = read_events(runs_root(), session)
        title = f"{model_title(request.model)}: {shorten(request.context.strip())}"
        page = replay(events, title, page_theme())
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            present_button(page, key="live-present")
            st.download_button("HTML", page, f"live-{session}.html", key="live-html", on_click="ignore")
            st.download_button(
                "GIF",
                partial(live_gif, events, title, page_theme()),
                f"live-{session}.gif",
                key="live-gif",
                on_click="ignore",
                disabled=browser() is None,
                help="Pictures of the steps, which take up to a minute",
            )
            st.caption(plain(f"{format_bytes(len(page.encode()))}; it plays without a server or network. {KEYS}."))


def ask(session: str, request: LiveRequest, action: Action, question: str) -> None:
    """Queue a question and show its answers."""
    if sessions.act(session, request, action, question=question, **sampling()):
        st.rerun()


def live_page() -> None:
    # Links of before call the branch a lane.
    if (former := get_param("lane")) is not None:
        set_param("lane", None)
        if get_param(sessions.BRANCH) is None:
            set_param(sessions.BRANCH, former)
            st.session_state[sessions.BRANCH] = former  # widgets take the parameters that a run begins with
    session = get_param("session") or chosen_value("session")
    is_presented = get_param(PRESENT) == YES
    if session is None or not is_presented:
        page.heading(
            "Live",
            "Read a text once, then ask questions: the full cache and compressed ones answer side by side, and "
            "follow-up questions meet what is left of the text. Words are shaded by the **KL** of a branch's "
            "prediction from the full cache's; the word at which a text leaves the full cache's is underlined.",
        )
    if session is None:
        start_form()
        return
    try:
        request = sessions.request_of(session)
    except UserError as error:
        st.error(plain(str(error)))
        forget("session")
        start_form()
        return
    remember("session", session)
    context_bar.clicks(lambda place: go_to(**place))
    if is_presented:
        present(session, POLL_SECONDS)
    else:
        conversation(session, request)
    if question := st.chat_input(
        "Ask all branches", disabled=sessions.running_job(session) is not None, key="live-question"
    ):
        ask(session, request, "ask", question)
