"""Hidden statements are found in the prompt, and followed to where their tokens end up."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import kvlab
from kvlab.cli.options.tables import as_table, frame_of
from kvlab.common.intervals import wilson
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.engine.recording.shadow import Shadow
from kvlab.evaluation.harness import evaluate
from kvlab.evaluation.plan import make_plan
from kvlab.evaluation.prepare import prepare
from kvlab.evaluation.request import EvalRequest, TaskChoice
from kvlab.evaluation.results.rows import ROWS, read_results
from kvlab.evaluation.scoring.survival import HiddenTokenTracker, Survival
from kvlab.evaluation.shared_prompt import SharedPrompt
from kvlab.models.chat import Chat
from kvlab.models.load import LoadedModel
from kvlab.results.part_tables import part_rows, part_table
from kvlab.results.survival import survival_table
from kvlab.tasks.registry import get_task
from kvlab.tasks.tokens import hidden_positions, prompt_ids
from kvlab.views.base.view import find_view
from tests.evaluation.one_cache import generate_answers

NEW = {"hidden_own", "hidden_merged", "unreachable", "consensus"}
METHODS = {"h2o": {}, "kvmerger": {"loosest": -1.0}, "keepkv": {"threshold": -1.0}, "zsmerge": {}, "full": {}}


class Both:
    """Lets the run's shadow, which knows where every token lives, watch beside `HiddenTokenTracker`."""

    def __init__(self, followed: HiddenTokenTracker, capacity: int) -> None:
        self.followed, self.capacity = followed, capacity
        self.shadows: dict[int, Shadow] = {}

    def attended(self, layer_idx, slots, seen, output) -> None:
        self.shadows.setdefault(layer_idx, Shadow(self.capacity)).append(slots, seen.num_new)

    def compressed(self, layer_idx, view, plan, before, after) -> None:
        self.shadows[layer_idx].follow(before, plan, (before.valid & ~plan.keep)[0])
        self.followed.compressed(layer_idx, view, plan, before, after)


@pytest.mark.parametrize("method", METHODS)
def test_shares_are_those_of_the_shadow(tiny: LoadedModel, method: str) -> None:
    prompt = torch.randint(5, 300, (120,), generator=torch.Generator().manual_seed(3)).tolist()
    chosen = [3, 17, 40, 41, 42, 90, 119]
    cache = kvlab.make_cache(tiny, make_method(method, **METHODS[method]), 0.3)
    parts = [chosen[:2], chosen[2:5], [90]]
    both = Both(HiddenTokenTracker([chosen], tiny.model.device, [parts]), 140)
    cache.settings.observer = both
    generate_answers(tiny, [prompt], cache, len(prompt), 6, None)
    (found,) = both.followed.survival(cache)
    own, merged, held = [], [], []
    for layer in cache.compressed_layers():
        owner = both.shadows[layer.layer_idx].owned().numpy()
        for head in range(owner.shape[0]):
            alive = np.bincount(owner[head][owner[head] < 140], minlength=140)
            mine = owner[head, chosen]
            own += [bool(slot < 140 and alive[slot] == 1) for slot in mine]
            merged += [bool(slot < 140 and alive[slot] > 1) for slot in mine]
            held.append(dict(zip(chosen, mine < 140, strict=True)))
    assert found.own_slots == pytest.approx(np.mean(own))
    assert found.merged == pytest.approx(np.mean(merged))
    for part, tokens in zip((found, *found.parts), (chosen, *parts), strict=True):
        holders = [sum(bool(head[token]) for head in held) for token in tokens]
        reached = [count / len(held) for count in holders if count]
        assert part.own_slots + part.merged == pytest.approx(sum(holders) / len(held) / len(tokens))
        assert part.unreachable == pytest.approx(holders.count(0) / len(tokens))
        assert part.consensus == (pytest.approx(np.mean(reached)) if reached else None)
    if method == "full":
        assert found.own_slots == 1 and found.unreachable == 0 and found.consensus == 1
    if method in ("kvmerger", "keepkv", "zsmerge"):
        assert found.merged > 0


DRAWN = {"draws": "anew", "recent": 4, "buffer": 6}
BUDGET, PROMPT, DECODED = 24, 30, 40


def drawn_survival(tiny: LoadedModel, seed: int, chosen: list[int]) -> Survival:
    """What `random` leaves of tokens of a text of which the last `DECODED` tokens enter one by one."""
    text = torch.randint(5, 300, (PROMPT + DECODED,), generator=torch.Generator().manual_seed(9)).tolist()
    cache = kvlab.make_cache(tiny, make_method("random", **DRAWN), BUDGET, seed=seed)
    protected = cache.settings.pipeline.can.select.protected
    tracker = HiddenTokenTracker([chosen], tiny.model.device, protected=protected)
    cache.settings.observer = tracker
    shared = SharedPrompt(tiny, [cache], [text], PROMPT, decoded=DECODED)
    shared.read()
    return tracker.survival(cache)[0]


@pytest.mark.parametrize("place", [31, 38, 50, 68])
def test_the_closed_form_is_that_of_the_formula(tiny: LoadedModel, place: int) -> None:
    """In a plain loop: a cut whenever 6 tokens wait, of 30 slots less the 4 newest; 20 of 26 stay."""
    cuts = [length for length in range(PROMPT + 6, PROMPT + DECODED + 1, 6) if place < length - DRAWN["recent"]]
    kept = BUDGET - DRAWN["recent"]
    alone = (kept / (kept + DRAWN["buffer"])) ** len(cuts)
    draws = drawn_survival(tiny, 0, [place]).draws
    assert draws is not None and draws.evictions == len(cuts) and draws.tokens == 1
    if cuts:
        assert (draws.kept, draws.dropped) == (kept, DRAWN["buffer"])
    assert draws.one_head == pytest.approx(alone)
    assert draws.any_head == pytest.approx(1 - (1 - alone) ** draws.heads)


def test_random_survives_as_often_as_the_closed_form_says(tiny: LoadedModel) -> None:
    """Over seeds: every head of every layer is a trial, and so is every token."""
    chosen = list(range(31, 65, 3))
    found = [drawn_survival(tiny, seed, chosen) for seed in range(24)]
    draws = found[0].draws
    assert draws is not None
    for measured, expected, trials in (
        (np.mean([one.own_slots for one in found]), draws.one_head, 24 * len(chosen) * draws.heads),
        (np.mean([1 - one.unreachable for one in found]), draws.any_head, 24 * len(chosen)),
    ):
        _, low, high = wilson(float(measured) * trials, trials)
        assert low <= expected <= high


def test_decoded_tokens_enter_as_if_the_model_had_written_them(tiny: LoadedModel, tmp_path: Path) -> None:
    """The slots that stay are those of a loop of single steps."""
    sample = get_task("needle_decoded").generate(tiny.tokenizer, 400, 0, 1, decoded=120)
    context, rest = prompt_ids(tiny.tokenizer, sample)
    decoded = len(tiny.tokenizer(sample.decoded, add_special_tokens=False)["input_ids"])
    caches = [kvlab.make_cache(tiny, make_method("h2o"), 0.3) for _ in range(2)]
    SharedPrompt(tiny, caches[:1], [context + rest[:decoded]], len(context), decoded=decoded).read()
    with torch.inference_mode():
        tiny.model(torch.tensor([context]), past_key_values=caches[1])
        for token in rest[:decoded]:
            tiny.model(torch.tensor([[token]]), past_key_values=caches[1])
    for one, other in zip(*(cache.compressed_layers() for cache in caches), strict=True):
        assert torch.equal(one.slots.position.sort(-1).values, other.slots.position.sort(-1).values)
    request = EvalRequest(
        tasks=(TaskChoice(task="needle_decoded", difficulty={"decoded": 120}),),
        choices=(MethodChoice(method="streaming-llm", budget=64), MethodChoice(method="h2o", budget=64)),
        lengths=(400,),
        depths=(0.1,),
        samples=2,
    )
    rows = evaluate(request, tmp_path, loaded=tiny).rows
    assert (rows["hidden_at"] >= rows["tokens_in_sight"]).all() and not rows["question_aware"].any()
    table = survival_table(rows)
    pd.testing.assert_frame_equal(survival_table(rows.set_index(rows["index"])), table)  # also joined from files
    assert set(table["arm"]) == {"streaming-llm", "h2o"} and (table["samples"] == 2).all()
    window = table[table["arm"] == "streaming-llm"]
    assert (window["survived"] == 0).all() and (window["expected"] > 0).all()
    assert not window["within"].any()
    drawn = find_view("survival").draw(rows, "dark")
    assert "streaming-llm" in drawn.caption and "fewer" in drawn.caption and len(drawn.frame) == 4
    assert as_table(frame_of(rows, "survival"), "survival").row_count == 2
    with pytest.raises(UserError, match="evictions counted"):
        frame_of(rows.assign(draws=None), "survival")


def test_rows_of_a_batch_are_followed_apart(tiny: LoadedModel) -> None:
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(5, 300, (80,), generator=generator).tolist() for _ in range(2)]
    chosen = [[4, 5, 6], [60, 61, 62, 63, 70]]

    def survival(rows: list[int]) -> list:
        cache = kvlab.make_cache(tiny, make_method("kvmerger", loosest=-1.0), 0.3)
        first = [[chosen[row][:2], chosen[row][2:]] for row in rows]
        followed = HiddenTokenTracker([chosen[row] for row in rows], tiny.model.device, first)
        cache.settings.observer = followed
        generate_answers(tiny, [prompts[row] for row in rows], cache, 80, 3, None)
        return followed.survival(cache)

    together, alone = survival([0, 1]), [survival([0])[0], survival([1])[0]]
    assert [s.own_slots for s in together] == pytest.approx([s.own_slots for s in alone])
    assert [s.merged for s in together] == pytest.approx([s.merged for s in alone])
    assert [s.parts for s in together] == [s.parts for s in alone]


def test_hidden_tokens_are_those_of_the_statement(tiny: LoadedModel) -> None:
    sample = get_task("needle").generate(tiny.tokenizer, 400, 0, 1, depth=0.5)
    context, question = prompt_ids(tiny.tokenizer, sample)
    positions = hidden_positions(tiny.tokenizer, sample)
    text = tiny.tokenizer.decode([(context + question)[place] for place in positions])
    assert sample.meta["statements"][0] in text
    assert len(text) < len(sample.meta["statements"][0]) + 12
    assert positions == list(range(positions[0], positions[-1] + 1))
    plain = get_task("key_value").generate(tiny.tokenizer, 300, 0, 0, pairs=4)
    assert hidden_positions(tiny.tokenizer, plain) == []


def test_results_hold_shares_where_something_was_hidden(tiny: LoadedModel, tmp_path: Path) -> None:
    request = EvalRequest(
        tasks=(TaskChoice(task="needle"), TaskChoice(task="key_value", difficulty={"pairs": 4})),
        choices=(MethodChoice(method="streaming-llm", budget=0.2),),
        lengths=(400,),
        depths=(0.5,),
        samples=2,
    )
    rows = evaluate(request, tmp_path, loaded=tiny).rows.set_index(["task", "method"]).sort_index()
    assert rows.loc[("key_value",), list(NEW)].isna().all(axis=None)
    needle = rows.loc[("needle",)]
    assert (needle.loc["full", "hidden_own"] == 1).all()
    assert (needle.loc["streaming-llm", "hidden_own"] == 0).all(), "a window keeps nothing of the middle"
    assert (needle["hidden_merged"] == 0).all()
    assert (needle.loc["full", ["unreachable", "consensus"]] == [0, 1]).all(axis=None)
    assert (needle.loc["streaming-llm", "unreachable"] == 1).all(), "no head of a window holds the needle"
    assert needle.loc["streaming-llm", "consensus"].isna().all()


def test_rules_of_a_system_prompt_are_found_in_the_chats_system_turn(tiny: LoadedModel) -> None:
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.chat_template = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} </> {% endfor %}<model> "
    request = EvalRequest(model="tiny", tasks=(TaskChoice(task="instructions"),), samples=1, lengths=(400,))
    loaded = replace(tiny, tokenizer=tokenizer)
    for chat in (Chat(tokenizer), None):
        (planned,) = make_plan(request, tokenizer, 1000, chat is not None).prompts
        prompt = prepare(planned, loaded, chat)
        for part, places in zip(prompt.sample.parts, prompt.parts, strict=True):
            text = tokenizer.decode([prompt.context[place] for place in places])
            assert part.text in text and len(text) < len(part.text) + 8
        assert sorted({place for part in prompt.parts for place in part}) == list(prompt.hidden)
        if chat is not None:
            system, _, user = tokenizer.decode(prompt.context).partition("</>")
            assert prompt.sample.system in system and prompt.sample.parts[0].text not in user
            assert user.lstrip().startswith("<user> ") and prompt.sample.context[-40:] in user


def test_rows_hold_the_score_and_the_survival_of_every_rule(tiny: LoadedModel, tmp_path: Path) -> None:
    request = EvalRequest(
        tasks=(TaskChoice(task="rules_recited", difficulty={"rules": 3}),),
        choices=(MethodChoice(method="streaming-llm", budget=0.2), MethodChoice(method="snapkv", budget=0.2)),
        lengths=(300,),
        samples=2,
    )
    rows = evaluate(request, tmp_path, loaded=tiny).rows
    for row in rows.itertuples():
        parts = json.loads(row.parts)
        assert [part["order"] for part in parts] == [1, 2, 3] and row.score == pytest.approx(
            np.mean([p["score"] for p in parts])
        )
        assert [part["answer"] for part in parts] == json.loads(row.answer)
        places = [part["position"] for part in parts]
        assert places == sorted(places) and places[0] > 0 and row.answer_tokens > 0 <= row.loop_tokens
        whole = np.average([part["own"] for part in parts], weights=[part["tokens"] for part in parts])
        assert whole == pytest.approx(row.hidden_own)
    found = part_table(rows, ("order",))
    assert len(found) == 9 and (found.loc[found["method"] == "full", "held"] == 1).all()


def test_results_of_before_are_still_read(tmp_path: Path) -> None:
    old = pa.schema([field for field in ROWS if field.name not in NEW])
    row = {"key": "a", "task": "needle", "score": 1.0, "method": "full"}
    pq.write_table(pa.Table.from_pylist([row], schema=old), tmp_path / "part-000000.parquet")
    frame = read_results(tmp_path)
    assert frame["score"].tolist() == [1.0]
    assert frame["hidden_own"].isna().all() and frame["parts"].isna().all() and part_rows(frame).empty
