"""Compositions: what fits together works, what does not says why, and every method is one."""

from __future__ import annotations

from functools import cache as once
from itertools import product

import pytest
import torch
from transformers import PreTrainedModel

from kvlab.core.cache import make_cache
from kvlab.core.errors import UserError
from kvlab.core.methods import Method, make_method, registered
from kvlab.core.methods.composition.composed import PARTS, PLAIN_NAMES, choices, compose
from kvlab.core.methods.eviction.snapkv import SnapKV
from kvlab.core.methods.eviction.window import Window
from kvlab.core.methods.merging.cam import ACCUMULATED
from kvlab.core.methods.merging.keepkv import KeepKV
from kvlab.core.methods.merging.pyramid_pool import Pool
from kvlab.core.methods.scorers.ema import EMA, RAW_EMA, SEEN_ROWS
from kvlab.models.load import prepare
from tests.families import ON_ANY_MODEL, tiny_model
from tests.methods.merging import ROTARY, Layer, column_mass, prompt

METHODS = [name for name in registered() if name not in ("full", "packed", "sparse", "compose", "exactmerge")]
BUDGET, TOKENS = 14, 40
ALL = {part: [name for name in names if name != "exactmerge"] for part, names in choices().items()}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_a_composition(method: str) -> None:
    """Its own four choices put together again are its pipeline, exactly."""
    # "window" as a score means SnapKV's observation window; the local window's own score is recency.
    score = "recency" if method == "window" else method
    assert compose(score, method, method, method).pipeline() == make_method(method).pipeline()


@pytest.mark.parametrize("method", METHODS)
def test_hyper_parameters_find_their_part(method: str) -> None:
    """Any single number changed gives the method with that number changed."""
    fields = registered()[method].model_fields
    for name, field in fields.items():
        if name in Method.model_fields or isinstance(field.default, bool) or not isinstance(field.default, int | float):
            continue
        other = field.default * 0.5 if isinstance(field.default, float) else field.default + 2
        expected = make_method(method, **{name: other}).pipeline()
        assert compose(method, method, method, method, **{name: other}).pipeline() == expected


# Scores that ask for hidden states, or for the output projection.
IN_A_MODEL = ("gvote", "expected-attention", "kvzap", "fast-kvzip", "lukv", "cap", "defensivekv")


@pytest.mark.parametrize(
    ("score", "settle"), list(product([s for s in ALL["score"] if s not in IN_A_MODEL], ALL["settle"]))
)
def test_any_score_with_any_settling(score: str, settle: str) -> None:
    """Budgets hold, votes add up, numbers stay finite; the prompt, decoding, and two tokens at once."""
    needed = {f"settle_{name}": value for name, value in ON_ANY_MODEL.get(settle, {}).items()}
    needed |= {f"score_{name}": value for name, value in ON_ANY_MODEL.get(score, {}).items()}
    method = compose(score=score, settle=settle, **needed)
    layer = Layer(method, BUDGET, ROTARY)
    layer.feed(*prompt(0, TOKENS, 2, 2))
    seen = TOKENS
    for step, count in enumerate([1, 1, 2, 1]):
        output = layer.feed(*prompt(50 + step, count, 2, 2))
        seen += count
        assert torch.isfinite(output).all()
        on_top = method.pipeline().buffer if method.pipeline().decode else seen - TOKENS
        assert (layer.slots.live() <= BUDGET + on_top).all()
        layer.check_votes(seen)


@once
def three_layers() -> PreTrainedModel:
    return prepare(tiny_model("llama"))


@pytest.mark.parametrize("allocate", ALL["allocate"])
@pytest.mark.parametrize("settle", ["evict", "zsmerge", "keepkv", "sets", "pool", "values", "d2o"])
def test_any_allocation_with_any_settling_in_a_model(allocate: str, settle: str) -> None:
    lab = three_layers()
    ids = torch.randint(3, 97, (1, 48), generator=torch.Generator().manual_seed(3))
    score = "gvote" if allocate == "gvote" else "accumulated"
    fitted = {"profile": "profile", "headkv": "profile", "curves": "curves"}  # what names the file, by allocation
    needed = {fitted[allocate]: "even"} if allocate in fitted else {}
    method = compose(score=score, allocate=allocate, settle=settle, **needed)
    cache = make_cache(lab, method, 0.25)
    with torch.inference_mode():
        for step in range(3):
            logits = lab(ids if step == 0 else ids[:, step : step + 1], past_key_values=cache).logits
    assert torch.isfinite(logits).all()
    layers = cache.compressed_layers()
    on_top = 0 if method.pipeline().decode else 2
    for layer in layers:
        assert layer.slots is not None
        assert (layer.slots.live() <= layer.budget + on_top).all()
    if method.needs_budget:
        assert sum(float(layer.budget.float().mean()) for layer in layers) == pytest.approx(12 * 3)


def test_the_issues_example() -> None:
    lab = prepare(tiny_model("llama"))
    ids = torch.randint(3, 97, (1, 90), generator=torch.Generator().manual_seed(3))
    cache = make_cache(lab, compose(score="snapkv", allocate="adakv", select="topk", settle="keepkv"), 0.5)
    with torch.inference_mode():
        lab(ids, past_key_values=cache)
    for layer in cache.compressed_layers():
        assert layer.budget is not None
        assert layer.budget.sum() == 45 * 2
    unequal = [layer for layer in cache.compressed_layers() if layer.budget.unique().numel() > 1]
    assert unequal, "heads compete"


def test_a_merge_that_predicts_gets_its_averages_beside_any_score() -> None:
    pipeline = compose(score="accumulated", settle="keepkv").pipeline()
    assert {EMA, SEEN_ROWS} <= set(pipeline.score.state)
    assert RAW_EMA in compose(score="ema", settle="keepkv", rule="paper").pipeline().score.state
    assert not compose(score="accumulated", settle="keepkv", predict="current").pipeline().score.state


def test_the_averages_beside_a_score_are_those_of_keepkv_itself() -> None:
    """Counts of queries too, which are held beside a score and follow from positions where KeepKV is alone."""
    plain = Layer(make_method("keepkv", window=8), TOKENS + 20)
    beside = Layer(compose(settle="keepkv", settle_window=8), TOKENS + 20)
    for layer in (plain, beside):
        layer.feed(*prompt(0, TOKENS))
        for step, rows in enumerate((1, 1, 5, 1)):
            layer.feed(*prompt(10 + step, rows))
    (table,) = plain.layer.tables
    assert SEEN_ROWS not in table.slots.extra
    for name in (EMA, SEEN_ROWS):
        given, expected = (layer.slots.extra[name][layer.slots.valid] for layer in (beside, plain))
        torch.testing.assert_close(given, expected, check_dtype=False)


def test_the_score_beside_averages_is_the_chosen_one() -> None:
    layer = Layer(compose(score="h2o", settle="keepkv", threshold=1.0, sinks=0, recent=7), BUDGET)
    query, key, value = prompt(0, TOKENS)
    layer.feed(query, key, value)
    score = column_mass(query, key)
    for head in range(2):
        context = sorted(range(TOKENS - 7), key=lambda p: -score[head, p].item())[: BUDGET - 7]
        assert sorted(layer.table(head)) == sorted([*context, *range(TOKENS - 7, TOKENS)])


def test_a_merged_slot_has_its_parts_accumulated_score() -> None:
    """Not KeepKV's own, which is a log mass."""
    layer = Layer(compose(score="h2o", settle="keepkv", threshold=-1.0), BUDGET)
    query, key, value = prompt(0, TOKENS)
    layer.feed(query, key, value)
    given = layer.slots.score.masked_fill(~layer.slots.valid, 0).sum(-1)[0]
    torch.testing.assert_close(given, column_mass(query, key).sum(-1))


def test_value_merging_compares_accumulated_attention_whatever_the_score() -> None:
    layer = Layer(compose(score="recency", settle="values"), BUDGET)
    query, key, value = prompt(0, TOKENS)
    layer.feed(query, key, value)
    layer.feed(*prompt(1, 1))
    first = layer.notes.decisions[0][2]
    torch.testing.assert_close(first.extra[ACCUMULATED][0], column_mass(query, key))
    expected = Layer(make_method("cam"), BUDGET)
    expected.feed(query, key, value)
    expected.feed(*prompt(1, 1))
    torch.testing.assert_close(layer.ask(prompt(9, 1)[0]), expected.ask(prompt(9, 1)[0]))


def test_the_variances_are_of_attention_whatever_the_score() -> None:
    lab = prepare(tiny_model("llama"))
    ids = torch.randint(3, 97, (1, 48), generator=torch.Generator().manual_seed(3))
    given = []
    for score in ("accumulated", "recency"):
        cache = make_cache(lab, compose(score=score, allocate="variance"), 0.25)
        with torch.inference_mode():
            lab(ids, past_key_values=cache)
        given.append(cache.compressed_layers()[0].settings.statistics[0])
    torch.testing.assert_close(given[0], given[1])


def test_choices_are_different_from_each_other_and_complete() -> None:
    for part in PARTS:
        assert len(choices()[part]) == len(set(choices()[part]))
        assert set(PLAIN_NAMES.get(part, ())) <= set(choices()[part])
    assert {"accumulated", "recency", "decayed", "window", "ema"} <= set(choices()["score"])
    assert {"uniform", "pyramid", "linear", "variance", "adakv"} <= set(choices()["allocate"])
    assert {"evict", "zsmerge", "keepkv", "d2o"} <= set(choices()["settle"])


def test_a_composition_can_be_made_by_name() -> None:
    """So runs, the command line and evaluations need nothing else."""
    made = make_method("compose", score="snapkv", settle="zsmerge", residual=0.1, sinks=2)
    assert made == compose(score="snapkv", settle="zsmerge", residual=0.1, sinks=2)
    assert make_method("compose", **made.model_dump()) == made
    assert registered()["compose"].describe()["parameters"]["properties"]["settle"]["enum"] == choices()["settle"]


def test_values_that_belong_together_are_taken_together() -> None:
    """A pool has a mass only where means are taken; the value alone is refused."""
    made = compose(score="snapkv", settle="pool", settle_pooling="mean", mass="votes").pipeline()
    assert isinstance(made.settle, Pool)
    assert (made.settle.pooling, made.settle.mass.rule) == ("mean", "votes")
    with pytest.raises(UserError, match="add pooling=mean"):
        compose(score="snapkv", settle="pool", mass="votes")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"score": "magic"}, "no score choice called 'magic'"),
        ({"score": "topk"}, "no score choice called 'topk'"),
        ({"allocate": "full"}, "no allocate choice called 'full'"),
        ({"select": "best"}, "no select choice called 'best'"),
        ({"settle": "compose"}, "no settle choice called 'compose'"),
        ({"score": "ema", "allocate": "gvote"}, "needs the votes of its own score"),
        ({"score": "ema", "settle": "keepkv", "settle_alpha": 0.5}, "must be equal"),
        ({"score": "snapkv", "settle": "pool", "window": 16}, "use score_window or settle_window"),
        (
            {"score": "kvmerger", "settle": "less", "weights": "untrained"},
            "only settle accepts 'untrained': use settle_w",
        ),
        ({"temperature": 1}, "None of these choices has a hyper-parameter 'temperature'"),
        ({"settle": "zsmerge", "settle_alpha": 7}, "'alpha' of zsmerge cannot be 7"),
        ({"settle": "sets", "heavy": 0.9}, "leave room"),
        ({"sinks": -1}, "sinks is -1"),
        ({"sinks": True}, "sinks is True"),
        ({"recent": 1.5}, "recent is 1.5"),
        ({"recent": 0}, "recent is 0"),
        ({"select": "oldest", "recent": 3}, "no"),
    ],
)
def test_what_cannot_be_combined_says_why(options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        compose(**options)
    assert str(error.value).count("\n") == 0


def test_methods_themselves_are_composed() -> None:
    """The same method as by names, so that a run or a link of it opens like any other."""
    made = compose(score=SnapKV(window=16), settle=KeepKV(threshold=0.5))
    assert made == compose(score="snapkv", settle="keepkv", score_window=16, settle_threshold=0.5)
    assert make_method("compose", **made.model_dump()) == made
    assert compose(score=Window()).pipeline().score == make_method("window").pipeline().score
    with pytest.raises(UserError, match="store belong"):
        compose(score=SnapKV(store="int8"))


def test_qualified_hyper_parameters_reach_one_part() -> None:
    pipeline = compose(score="snapkv", settle="pool", score_window=16, settle_window=3).pipeline()
    assert (pipeline.score.window, pipeline.settle.window) == (16, 3)
