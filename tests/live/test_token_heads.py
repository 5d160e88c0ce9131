"""Attention of an answer to the context's tokens, and which heads hold them: against transformers, and in loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.live.answers import Sampling
from kvlab.live.job import token_heads
from kvlab.live.session import LiveSession
from kvlab.models.load import LoadedModel, load_model
from kvlab.views.frames.token_heads import MERGED, NO_SLOT, OWN

CONTEXT = "The old house stood on the hill. Nobody had lived in it for years, and its doors were closed. " * 3
QUESTIONS = ("Who lived there?", "And then?")


@pytest.fixture(scope="module")
def session() -> LiveSession:
    choices = tuple(MethodChoice(method=name, budget=0.3) for name in ("h2o", "keepkv"))
    session = LiveSession(load_model("mini"), CONTEXT, choices)
    list(session.read_context())
    for question in QUESTIONS:
        list(session.ask(question, Sampling(max_new_tokens=6)))
    return session


def attention_of_model(lab: LoadedModel, session: LiveSession) -> np.ndarray:
    """(L, H, context tokens): mean attention of the last answer's tokens, by transformers over the whole text."""
    ids = list(session.ids)
    for turn, exchange in enumerate(session.history):
        ids += session.turns.question_ids(lab, exchange.question, is_first=turn == 0) + exchange.answers[0]
    lab.model.set_attn_implementation("eager")
    with torch.inference_mode():
        attentions = lab.model(torch.tensor([ids]), output_attentions=True).attentions
    rows = len(session.history[-1].answers[0])
    heads = lab.model.config.num_key_value_heads
    per_layer = [one[0, :, -rows:, : len(session.ids)].mean(1).unflatten(0, (heads, -1)).mean(1) for one in attentions]
    return torch.stack(per_layer).numpy()


def test_the_full_caches_attention_is_the_models(session: LiveSession) -> None:
    heads = token_heads(session, 0)
    assert (heads.states == OWN).all()
    assert heads.turn == 2
    np.testing.assert_allclose(heads.attention, attention_of_model(load_model("mini"), session), atol=2e-6)


@pytest.mark.parametrize("number", [1, 2])
def test_states_are_those_of_the_slots_and_attention_is_theirs(session: LiveSession, number: int) -> None:
    branch, heads = session.branches[number], token_heads(session, number)
    merged = 0
    for place, layer in enumerate(branch.cache.compressed_layers()):
        owners = branch.merges.owners.get(layer.layer_idx)
        for head in range(heads.states.shape[1]):
            (table,) = layer.tables  # all heads have equally many slots
            slots = table.visible()
            positions = set(slots.position[0, head][slots.valid[0, head]].tolist())
            for token in range(len(session.ids)):
                state = heads.states[place, head, token]
                owner = token if owners is None else int(owners[head, token])
                expected = OWN if token in positions else MERGED if owner in positions else NO_SLOT
                assert state == expected
                merged += state == MERGED
                if state == MERGED:
                    assert heads.attention[place, head, token] == heads.attention[place, head, owner]
    assert (merged > 0) == (number == 2)
    own = np.where(heads.states == OWN, heads.attention, 0).sum(-1)
    assert (own <= 1 + 1e-5).all()


def test_reading_heads_leaves_the_branch_as_it_is_and_unknown_branches_are_refused(session: LiveSession) -> None:
    before = token_heads(session, 2)
    after = token_heads(session, 2)
    np.testing.assert_array_equal(before.states, after.states)
    np.testing.assert_allclose(before.attention, after.attention)
    with pytest.raises(UserError, match="a branch that has not failed"):
        token_heads(session, 3)
