"""A live session: its answers are those of the model alone, branches do not disturb each other, and turns continue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
import torch

import kvlab.live.session as sessions
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.restore import Restore
from kvlab.live.answers import Sampling
from kvlab.live.branch import LiveBranch
from kvlab.live.events import AnswerEnded, BranchFailed, BranchSettled, ContextRead, Event, QuestionAgain, TokenWritten
from kvlab.live.session import LiveSession
from kvlab.models.chat import Chat
from kvlab.models.load import LoadedModel, load_model
from tests.families import tiny_folder

CONTEXT = "The old house stood on the hill. Nobody had lived in it for years, and its doors were closed. " * 6
SHORT = Sampling(max_new_tokens=6)
TEMPLATE = (
    "{% for message in messages %}<turn>{{ message.role }} {{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant {% endif %}"
)
CHOICES = tuple(MethodChoice(method=name, budget=0.3) for name in ("h2o", "keepkv", "snapkv"))


@pytest.fixture(scope="module")
def lab() -> LoadedModel:
    """mini."""
    return load_model("mini")


def started(lab: LoadedModel, *choices: MethodChoice, chat: Chat | None = None) -> LiveSession:
    session = LiveSession(lab, CONTEXT, choices, chat)
    list(session.read_context())
    return session


def ask_again(session: LiveSession, question: str, sampling: Sampling) -> list[Event]:
    """Answer a question in place of the last one."""
    session.go_back(session.turn - 1)
    return list(session.ask(question, sampling))


def tokens(events: Iterable[Event], branch: int) -> list[int]:
    return [event.token for event in events if isinstance(event, TokenWritten) and event.branch == branch]


def generated(lab: LoadedModel, ids: list[int], count: int) -> list[int]:
    """What transformers' own `generate` adds to these tokens."""
    given = torch.tensor([ids], device=lab.device)
    found = lab.model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False)
    return found[0, len(ids) :].tolist()


def test_the_full_branch_answers_as_the_model_does_in_every_turn(lab: LoadedModel) -> None:
    session, read = started(lab, *CHOICES), []
    read += session.ids
    for turn, question in enumerate(("Who lived there?", "And then?")):
        answer = tokens(list(session.ask(question, SHORT)), 0)
        read += session.turns.question_ids(lab, question, is_first=turn == 0)
        assert answer == generated(lab, read, 6)
        read += answer
        assert session.branches[0].tokens_seen == len(read)


def test_branches_together_write_what_each_writes_alone(lab: LoadedModel) -> None:
    together = started(lab, *CHOICES)
    alone = [started(lab, choice) for choice in CHOICES]
    for question in ("Who lived there?", "And then?"):
        events = list(together.ask(question, SHORT))
        for number, session in enumerate(alone, 1):
            assert tokens(events, number) == tokens(session.ask(question, SHORT), 1), CHOICES[number - 1].method
            assert together.branches[number].live_bytes == session.branches[1].live_bytes


def test_a_branch_that_keeps_everything_never_leaves_the_full_cache(lab: LoadedModel) -> None:
    session = started(lab, MethodChoice(method="h2o", budget=1.0))
    for question in ("Who lived there?", "And then?"):
        written = [event for event in session.ask(question, SHORT) if isinstance(event, TokenWritten) and event.branch]
        assert len(written) == 6
        assert not any(event.leaves for event in written)
        assert max(event.kl for event in written if event.kl is not None) < 1e-5


def test_kl_is_told_until_texts_differ_and_one_token_leaves(lab: LoadedModel) -> None:
    session = started(lab, MethodChoice(method="window", budget=20))
    events = [event for question in ("Who lived there?", "And then?", "Why?") for event in session.ask(question, SHORT)]
    mine = [event for event in events if isinstance(event, TokenWritten) and event.branch == 1]
    others = tokens(events, 0)
    differ = [place for place, event in enumerate(mine) if event.token != others[place]]
    assert differ, "choose a smaller window"
    first = differ[0]
    assert [event.leaves for event in mine] == [place == first for place in range(len(mine))]
    assert [event.kl is not None for event in mine] == [place <= first for place in range(len(mine))]


def test_a_follow_up_reads_only_its_own_tokens(lab: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    session = started(lab, *CHOICES)
    list(session.ask("Who lived there?", SHORT))
    passes: list[tuple[int, int]] = []
    forward = lab.model.forward

    def counted(ids: torch.Tensor, **options: object) -> object:
        passes.append(tuple(ids.shape))
        return forward(ids, **options)

    monkeypatch.setattr(lab.model, "forward", counted)
    list(session.ask("And then?", SHORT))
    question = session.turns.question_ids(lab, "And then?", is_first=False)
    assert passes == [(4, len(question)), *[(4, 1)] * 6]


def test_a_question_asked_again_starts_from_the_state_before_it(lab: LoadedModel) -> None:
    session = started(lab, *CHOICES)
    list(session.ask("Who lived there?", SHORT))
    first = list(session.ask("And then?", SHORT))
    again = ask_again(session, "And then?", SHORT)
    other = ask_again(session, "Where is the hill?", SHORT)
    fresh = started(lab, *CHOICES)
    list(fresh.ask("Who lived there?", SHORT))
    expected = list(fresh.ask("Where is the hill?", SHORT))
    for branch in range(4):
        assert tokens(first, branch) == tokens(again, branch)
        assert tokens(other, branch) == tokens(expected, branch)


QUESTIONS = ("Who lived there?", "And then?", "Where is the hill?")


@pytest.mark.parametrize("in_memory", [True, False])
def test_an_earlier_question_is_replaced_as_if_the_later_ones_had_not_been_asked(
    lab: LoadedModel, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    """Also where the state before it is no longer in memory, so that earlier answers are read again."""
    if not in_memory:
        monkeypatch.setattr(sessions, "MOST_CHECKPOINT_BYTES", 0)
    session, fresh = started(lab, *CHOICES), started(lab, *CHOICES)
    for question in QUESTIONS:
        list(session.ask(question, SHORT))
    assert set(session.branches[0].checkpoints) == ({0, 1, 2} if in_memory else {0, 2})
    session.go_back(1)
    assert [exchange.question for exchange in session.history] == [QUESTIONS[0]]
    list(fresh.ask(QUESTIONS[0], SHORT))
    for question in ("Why?", "And then?"):
        events, expected = (list(one.ask(question, SHORT)) for one in (session, fresh))
        for branch in range(4):
            assert tokens(events, branch) == tokens(expected, branch)
    with pytest.raises(UserError, match="Choose a question from 1 to 3"):
        session.go_back(4)


def test_a_fork_and_a_repeated_conversation_go_on_as_the_first(lab: LoadedModel) -> None:
    session = started(lab, *CHOICES)
    for question in QUESTIONS[:2]:
        list(session.ask(question, SHORT))
    fork, again = session.fork(), started(lab, *CHOICES)
    for exchange in session.history:
        fork.repeat(exchange)
        again.repeat(exchange)
    before = [branch.follows for branch in session.branches]
    expected = list(session.ask(QUESTIONS[2], SHORT))
    for other in (fork, again):
        assert [branch.follows for branch in other.branches] == before
        events = list(other.ask(QUESTIONS[2], SHORT))
        for branch in range(4):
            assert tokens(events, branch) == tokens(expected, branch)
            assert other.branches[branch].live_bytes == session.branches[branch].live_bytes


def test_after_an_error_of_the_model_the_conversation_is_as_before(
    lab: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, fresh = started(lab, *CHOICES), started(lab, *CHOICES)
    for one in (session, fresh):
        list(one.ask(QUESTIONS[0], SHORT))
    with monkeypatch.context() as patch:
        patch.setattr(lab.model, "forward", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("out of memory")))
        with pytest.raises(RuntimeError, match="out of memory"):
            list(session.ask(QUESTIONS[1], SHORT))
    events, expected = (list(one.ask(QUESTIONS[1], SHORT)) for one in (session, fresh))
    for branch in range(4):
        assert tokens(events, branch) == tokens(expected, branch)


def test_a_changed_branch_is_that_of_a_new_session_without_another_pass(
    lab: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ("keepkv", "kvmerger", "zsmerge", "pyramid-pool", "gvote", "pyramidkv", "d2o", "less", "exactmerge2")
    session = started(lab, *(MethodChoice(method=name, budget=0.3) for name in ("snapkv", "gvote")))
    for method in changes:
        changed = MethodChoice(method=method, budget=0.15)
        with monkeypatch.context() as patch:
            patch.setattr(sessions, "read_context", lambda *_: pytest.fail("the context was read again"))
            (settled,) = session.change_branch(1, changed)
        assert isinstance(settled, BranchSettled)
        fresh = started(lab, changed)
        for mine, other in zip(
            session.branches[1].cache.compressed_layers(), fresh.branches[1].cache.compressed_layers(), strict=True
        ):
            for one, two in zip(mine.tables, other.tables, strict=True):
                states = ((slots.keys, slots.values, slots.position) for slots in (one.visible(), two.visible()))
                for pair in zip(*states, strict=True):
                    # Attention of a pass that only this method reads also computes its sums: other rounding.
                    torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-4)
        shares, expected = (one.branches[1].context_shares() for one in (session, fresh))
        assert (shares.merged == expected.merged).all()
    with pytest.raises(UserError, match="branch 0 is the full cache"):
        list(session.change_branch(0, changed))


@pytest.mark.parametrize(("method", "budget", "is_held"), [("keepkv", 0.1, True), ("h2o", 1.0, False)])
def test_a_changed_branch_alone_answers_all_questions_again(
    lab: LoadedModel, method: str, budget: float, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_held:  # the full cache's predictions: it does not run again
        monkeypatch.delattr(LiveBranch, "fork")
    else:
        monkeypatch.setattr("kvlab.live.session.MOST_LOGIT_BYTES", 0)
    changed = MethodChoice(method=method, budget=budget)
    session, fresh = started(lab, *CHOICES), started(lab, CHOICES[0], changed, CHOICES[2])
    expected = [event for question in QUESTIONS for event in fresh.ask(question, SHORT)]
    for question in QUESTIONS:
        list(session.ask(question, SHORT))
    others = [list(branch.answer) for branch in (session.branches[0], session.branches[1], session.branches[3])]
    list(session.change_branch(2, changed))
    events = list(session.answer_again(2, SHORT))
    assert {event.branch for event in events} == {2}
    assert [event.turn for event in events if isinstance(event, QuestionAgain)] == [0, 1, 2]

    def written(events: Iterable[Event]) -> list[tuple[int, int, float | None, bool]]:
        mine = (event for event in events if isinstance(event, TokenWritten) and event.branch == 2)
        return [(one.turn, one.token, one.kl and round(one.kl, 4), one.leaves) for one in mine]

    assert written(events) == written(expected)
    assert [session.branches[branch].answer for branch in (0, 1, 3)] == others
    assert [one.answers[2] for one in session.history] == [one.answers[2] for one in fresh.history]
    third, expected = (list(one.ask("Why?", SHORT)) for one in (session, fresh))
    assert [tokens(third, branch) for branch in range(4)] == [tokens(expected, branch) for branch in range(4)]


def test_a_branch_keeps_and_drops_the_chosen_tokens(lab: LoadedModel) -> None:
    session = started(lab, CHOICES[2])
    before = session.branches[1].context_shares().own_slots
    kept, dropped = int(before[20:].argmin()) + 20, int(before[:-20].argmax())
    assert before[kept] < 1 and before[dropped] > 0
    drop = Restore(kind="drop", tokens=(dropped,))
    list(session.change_branch(1, CHOICES[2].model_copy(update={"force_keep": (kept,), "returned": drop})))
    after = session.branches[1].context_shares().own_slots
    assert (after[kept], after[dropped]) == (1, 0)
    assert abs(after.sum() - before.sum()) < 1e-9, "the budget stays"
    with pytest.raises(UserError, match="Token 9999 cannot be kept"):
        list(session.change_branch(1, CHOICES[2].model_copy(update={"force_keep": (9999,)})))
    assert session.branches[1].context_shares().own_slots[kept] == 1, "the branch stays as it was"


@pytest.mark.parametrize("change", ["keydiff", "gvote", "too large"])
def test_a_branch_that_cannot_be_settled_from_the_held_pass_reads_the_context_again(
    lab: LoadedModel, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = load_model("mini")  # no other method has asked this one to record hidden states
    if change == "too large":
        monkeypatch.setattr(sessions, "MOST_HELD_BYTES", 1000)
    method = "keepkv" if change == "too large" else change
    changed = MethodChoice(method=method, budget=0.3, hyper_parameters={"block": 64} if change == "keydiff" else {})
    session, fresh = started(own, CHOICES[2]), started(lab, changed)
    reads: list[int] = []
    read = sessions.read_context

    def counted(loaded: LoadedModel, branches: Sequence[LiveBranch], ids: Sequence[int]) -> None:
        reads.append(len(branches))
        read(loaded, branches, ids)

    monkeypatch.setattr(sessions, "read_context", counted)
    (settled,) = session.change_branch(1, changed)
    assert isinstance(settled, BranchSettled), settled
    assert reads == [1]
    assert session.branches[1].live_bytes == fresh.branches[1].live_bytes


def test_equal_predictions_draw_equal_tokens_and_a_seed_repeats_them(lab: LoadedModel) -> None:
    warm = Sampling(temperature=1.0, seed=3, max_new_tokens=8)
    session = started(lab, MethodChoice(method="h2o", budget=1.0))
    events = list(session.ask("Who lived there?", warm))
    assert tokens(events, 0) == tokens(events, 1)
    assert tokens(ask_again(session, "Who lived there?", warm), 0) == tokens(events, 0)
    other = Sampling(temperature=1.0, seed=4, max_new_tokens=8)
    assert tokens(ask_again(session, "Who lived there?", other), 0) != tokens(events, 0)


def test_stop_ends_the_answers_and_the_conversation_goes_on(lab: LoadedModel) -> None:
    session, seen = started(lab, *CHOICES), 0
    ended: list[AnswerEnded] = []
    for event in session.ask("Who lived there?", Sampling(max_new_tokens=50)):
        seen += isinstance(event, TokenWritten)
        if seen == 8:
            session.stop()
        ended += [event] if isinstance(event, AnswerEnded) else []
    assert [event.reason for event in ended] == ["stopped"] * 4
    assert seen < 20
    assert len(tokens(session.ask("And then?", SHORT), 3)) == 6


def test_a_method_that_raises_leaves_and_the_others_go_on(lab: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    session = started(lab, *CHOICES)
    expected = tokens(started(lab, *CHOICES).ask("Who lived there?", SHORT), 3)
    layer = session.branches[1].cache.layers[2]
    monkeypatch.setattr(layer, "attend", lambda *_: (_ for _ in ()).throw(RuntimeError("no more")))
    events = list(session.ask("Who lived there?", SHORT))
    assert [event for event in events if isinstance(event, BranchFailed)] == [BranchFailed(1, "no more")]
    assert tokens(events, 1) == []
    assert tokens(events, 3) == expected
    assert len(tokens(session.ask("And then?", SHORT), 2)) == 6


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3"])
def test_turns_of_a_chat_template_are_those_of_the_whole_conversation(tmp_path: Path, family: str) -> None:
    """Also with layers of sliding windows, whose branches run one by one, and where an answer ends by itself."""
    lab = load_model(str(tiny_folder(tmp_path, family, TEMPLATE)), device="cpu")
    chat = Chat(lab.tokenizer)
    session = LiveSession(lab, CONTEXT[:200], [MethodChoice(method="h2o", budget=0.5)], chat)
    read = list(session.read_context())
    assert isinstance(read[0], ContextRead)
    ids = list(session.ids)
    for turn, question in enumerate(("Who?", "Why?")):
        answer = tokens(session.ask(question, SHORT), 0)
        ids += session.turns.question_ids(lab, question, is_first=turn == 0)
        assert answer == generated(lab, ids, 6)[: len(answer)]
        ids += answer
    first = chat.rendered(CONTEXT[:200] + "\n\nWho?")
    asked = session.turns.question_ids(lab, "Who?", is_first=True)
    assert chat.ids(first) == [*session.ids, *asked]


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda lab: LiveSession(lab, " \n", CHOICES), "The context is empty"),
        (lambda lab: LiveSession(lab, "word " * 9000, CHOICES), "The context needs .* but the context window of mini"),
        (lambda lab: LiveSession(lab, CONTEXT, [MethodChoice(method="nothing")]), "no method called 'nothing'"),
        (lambda lab: list(started(lab).ask(" ")), "The question is empty"),
        (lambda lab: started(lab).go_back(-1), "Nothing was asked yet"),
        (lambda lab: list(started(lab).ask("Why?", Sampling(max_new_tokens=10**6))), "This question needs"),
    ],
)
def test_bad_input_is_one_sentence(lab: LoadedModel, act: Callable[[LoadedModel], object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        act(lab)
