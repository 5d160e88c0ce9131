"""EpiKV: scores of tokens by the residual stream, against the authors' rule in a plain loop."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.fan_out.fan_out_cache import FanOutCache
from kvlab.core.cache.residual_stream import depths_of
from kvlab.core.contract.token_scores import ResidualRule
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.core.methods.eviction.epikv import Epiphany
from kvlab.models.load import prepare
from tests.families import tiny_model

TOKENS, STEPS, WINDOW, SINKS, RECENT = 20, 14, 5, 2, 3
EARLY, LATE = 1, 2  # of the 3 layers of the tiny model: 11 and 22 of 32
OPTIONS: dict[str, Any] = {"window": WINDOW, "sinks": SINKS, "recent": RECENT}
LAB = prepare(tiny_model("llama", torch.float32))


def text(rows: int, tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 97, (rows, tokens), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def run(cache: Any, ids: Tensor, sizes: Sequence[int], mask: Tensor | None = None, begun: int = 0) -> list[Any]:
    """Passes of these sizes; returns what each gives after every layer."""
    found = []
    for size in sizes:
        end = begun + size
        given = {}
        if mask is not None:
            given = {"attention_mask": mask[:, :end], "position_ids": (mask.cumsum(-1) - 1)[:, begun:end].clamp_min(0)}
        piece = ids[:, begun:end]
        found.append(LAB(piece, past_key_values=cache, output_hidden_states=True, **given).hidden_states)
        begun = end
    return found


def kept(cache: CompressedCache, row: int = 0) -> list[int]:
    """Positions that all layers and heads hold, which must be the same."""
    held = []
    for layer in cache.compressed_layers():
        slots = layer.slots
        assert slots is not None
        for head in range(slots.position.shape[1]):
            held.append(sorted(slots.position[row, head][slots.valid[row, head]].tolist()))
    assert all(positions == held[0] for positions in held)
    return held[0]


def scores_of(states: Sequence[Tensor]) -> list[float]:
    """Scores of tokens from their states (tokens + 1, hidden) at two depths; the first row is the token before."""

    def z_scores(rows: Tensor) -> list[float]:
        changes, found = [math.dist(one, two) for one, two in zip(rows[1:].tolist(), rows.tolist(), strict=False)], []
        for last in range(len(changes)):
            near = changes[max(last + 1 - WINDOW, 0) : last + 1]
            mean = sum(near) / len(near)
            deviation = math.sqrt(sum((change - mean) ** 2 for change in near) / len(near))
            found.append((near[-1] - mean) / (deviation + 1e-6) if len(near) > 1 else 0.0)
        return found

    early, late = (z_scores(rows) for rows in states)
    return [round((one - other) * 2**16) / 2**16 for one, other in zip(early, late, strict=True)]


def joined(found: list[Any], depth: int) -> Tensor:
    return torch.cat([states[depth] for states in found], 1)[0]


@pytest.mark.parametrize(("prompt", "budget"), [("compete", 12), ("keep", TOKENS + 6)])
def test_epikv_keeps_what_the_loop_keeps(prompt: str, budget: int) -> None:
    """After the prompt and after every step. A step decides by what is known after its pass, its own token included."""
    ids = text(1, TOKENS + STEPS)
    cache = make_cache(LAB, "epikv", budget, prompt=prompt, **OPTIONS)
    found, ours = run(cache, ids, [TOKENS]), []
    for step in range(STEPS + 1):
        ours.append(kept(cache))
        if step < STEPS:
            found += run(cache, ids, [1], begun=TOKENS + step)
    states = [joined(found, depth) for depth in (EARLY, LATE)]
    if prompt == "compete":  # nothing comes before the first token: its change is 0
        score = dict(enumerate(scores_of([torch.cat([rows[:1], rows]) for rows in states])))
    else:
        after = scores_of([rows[TOKENS - 1 :] for rows in states])
        score = {TOKENS + place: one for place, one in enumerate(after)}
    recent = min(RECENT, budget // 4)
    alive: list[int] = []
    for step in range(STEPS + 1):
        now = TOKENS + step
        alive = list(range(TOKENS)) if step == 0 else [*alive, now - 1]
        safe = SINKS if prompt == "compete" else TOKENS
        while len(alive) > budget:
            alive.remove(min((token for token in alive if safe <= token < now - recent), key=lambda t: score[t]))
        assert ours[step] == alive, step


def test_chunks_padding_and_turns_give_the_scores_of_one_row_alone() -> None:
    """A padded row beside another, in chunks of which the first holds none of its tokens, and a turn of 4 tokens."""
    ids, pads = text(2, 29), 9
    mask = torch.ones_like(ids)
    mask[1, :pads] = 0
    together = make_cache(LAB, "epikv", 200, **OPTIONS)
    together.expect(23)
    run(together, ids, [8, 8, 7, 1, 4, 1], mask)
    alone = make_cache(LAB, "epikv", 200, **OPTIONS)
    run(alone, ids[1:, pads:], [14, 1, 1, 1, 1, 1, 1])
    ours, theirs = together.compressed_layers()[0].slots, alone.compressed_layers()[0].slots
    assert ours is not None and theirs is not None
    for head in range(2):
        both = [
            dict(zip(slots.position[row, head].tolist(), slots.score[row, head].tolist(), strict=True))
            for slots, row in ((ours, 1), (theirs, 0))
        ]
        assert max(abs(both[0][place] - both[1][place]) for place in range(19)) < 1e-4  # the newest has none yet


def test_a_turn_decides_alike_in_all_layers() -> None:
    """Its own tokens have no score yet in any layer: they stay, the newest first, and are scored by the next pass."""
    ids, budget = text(1, 40), 8
    cache = make_cache(LAB, "epikv", budget, **OPTIONS)
    cache.expect(TOKENS)
    run(cache, ids, [TOKENS, 10])
    assert kept(cache) == [0, 1, *range(24, 30)]
    run(cache, ids, [1], begun=30)
    assert len(kept(cache)) == budget
    slots = cache.compressed_layers()[0].slots
    assert slots is not None
    scored = {place: float(one) for place, one in zip(slots.position[0, 0].tolist(), slots.score[0, 0], strict=True)}
    assert all(abs(scored[place]) < 2 * math.sqrt(WINDOW - 1) for place in kept(cache) if 1 < place < 30)


def test_rows_can_be_reordered_repeated_and_copied() -> None:
    ids = text(2, TOKENS + 6)
    cache = make_cache(LAB, "epikv", 9, **OPTIONS)
    run(cache, ids, [TOKENS, 1, 1])
    cache.batch_repeat_interleave(2)
    cache.reorder_cache(torch.tensor([2, 0, 1, 3]))
    cache.batch_select_indices(torch.tensor([0, 1]))  # the rows of the text, exchanged
    run(cache, ids.flip(0), [1, 1, 1, 1], begun=TOKENS + 2)
    for row in (0, 1):
        alone = make_cache(LAB, "epikv", 9, **OPTIONS)
        run(alone, ids[1 - row, None], [TOKENS, *[1] * 6])
        assert kept(cache, row) == kept(alone)


def test_branches_of_one_batch_follow_their_own_rows() -> None:
    """Two caches of one prompt decode together, one leaves, and the other is forked."""
    ids = text(1, TOKENS + 6)
    caches = [make_cache(LAB, "epikv", budget, **OPTIONS) for budget in (12, 9)]
    joined = FanOutCache(caches, torch.device("cpu"))
    joined.expect(TOKENS)
    run(joined, ids, [TOKENS])
    joined.split()
    run(joined, ids.expand(2, -1), [1, 1, 1], begun=TOKENS)
    joined.drop(joined.branches[:1])
    fork = joined.fork(joined.branches[0])
    run(joined, ids.expand(2, -1), [1, 1, 1], begun=TOKENS + 3)
    alone = make_cache(LAB, "epikv", 9, **OPTIONS)
    run(alone, ids, [TOKENS, *[1] * 6])
    assert kept(caches[1]) == kept(fork.cache) == kept(alone)


def test_a_pass_that_was_given_up_leaves_nothing_behind() -> None:
    """States of a pass through a plain cache, or of one that was stopped, are not those of the next pass."""
    ids = text(1, TOKENS + 4)
    first, second = (make_cache(LAB, "epikv", 9, **OPTIONS) for _ in range(2))
    run(first, ids, [TOKENS, 1, 1, 1, 1])
    for size in (TOKENS, 1, 1, 1, 1):
        with torch.inference_mode():
            LAB(text(1, 3, seed=size), past_key_values=DynamicCache(config=LAB.config))
        begun = second.get_seq_length()
        run(second, ids, [size], begun=begun)
    assert kept(first) == kept(second)


def test_the_cache_holds_two_states_and_a_window() -> None:
    cache = make_cache(LAB, "epikv", 9, **OPTIONS)
    run(cache, text(1, TOKENS + 3), [TOKENS, 1, 1, 1])
    stream = cache.settings.stream
    assert stream is not None and stream.depths == (EARLY, LATE) and stream.changes is not None
    assert {state.shape for state in stream.last.values()} == {(1, LAB.config.hidden_size)}
    assert stream.changes.shape == (1, 2, WINDOW - 1) and len(stream.scores) == 2
    assert stream.row_bytes == stream.nbytes
    memory, held = cache.memory(), (2 * LAB.config.hidden_size + 2 * (WINDOW - 1)) * 4 + 8  # and a count of int64
    for total in ("live_bytes", "allocated_bytes", "bytes_read"):
        assert getattr(memory, total) == sum(getattr(layer, total) for layer in memory.layers) + held
    cache.reset()
    assert not stream.last and not stream.scores and stream.nbytes == 0


def test_depths_follow_the_models_and_lie_before_its_last_compressed_layer() -> None:
    rule = ResidualRule((11 / 32, 22 / 32), 64, lambda changes, real: changes[:, 0, :, 0])
    places = {layers: depths_of(rule, layers, layers - 1) for layers in (2, 3, 6, 30, 32, 64)}
    assert places == {2: (0, 1), 3: (1, 2), 6: (2, 4), 30: (10, 21), 32: (11, 22), 64: (22, 44)}
    assert depths_of(rule, 32, 17) == (11, 17)
    with pytest.raises(UserError, match="too few layers: choose another method"):
        depths_of(rule, 3, 0)


def test_a_model_that_does_not_pass_its_stream_on_is_refused() -> None:
    model = copy.deepcopy(prepare(tiny_model("llama", torch.float32)))
    earlier = copy.deepcopy(model)
    cache = make_cache(model, "epikv", 9)
    with pytest.raises(UserError, match=r"needs the model's residual stream.*not to an earlier copy"):
        earlier(text(1, TOKENS), past_key_values=cache)


def test_one_number_has_no_z_score_and_many_are_bounded() -> None:
    changes = torch.zeros(1, 2, 1, 7)
    changes[:, 0, :, -1] = 5.0
    rule = Epiphany(window=7)
    alone, all_real = torch.zeros(1, 1, 7, dtype=torch.bool), torch.ones(1, 1, 7, dtype=torch.bool)
    alone[..., -1] = True
    assert rule.epiphany(changes, alone).item() == 0
    assert rule.epiphany(changes, all_real).item() == pytest.approx(math.sqrt(6), rel=1e-5)
    assert make_method("epikv", preset="paper").prompt == "keep"
