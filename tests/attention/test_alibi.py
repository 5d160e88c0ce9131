"""ALiBi: every slot counts from where its token stood, whatever was dropped or merged around it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from kvlab.core.attention import slot_attention as attention_module
from kvlab.core.attention import tiles
from kvlab.core.attention.alibi import Alibi, query_positions
from kvlab.core.attention.layer_handoff import AttentionCall
from kvlab.core.attention.pass_view import PassView
from kvlab.core.cache import make_cache
from kvlab.core.cache.buckets import regroup
from kvlab.core.choice import MethodChoice
from kvlab.core.methods import make_method
from kvlab.engine import compare
from kvlab.models.load import load_model, prepare
from kvlab.requests.compare import CompareRequest
from kvlab.trace import open_run
from tests.cache.layers import DIM, draw
from tests.families import tiny_folder, tiny_model
from tests.methods.merging import Layer, prompt

SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
TOKENS, BUDGET, SCALING = 40, 14, DIM**-0.5


class AlibiLayer(Layer):
    """A hand-driven layer of a model with two KV heads of two query heads each."""

    slopes = SLOPES

    def feed(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None = None) -> Tensor:
        keys, values = self.layer.update(key.clone(), value.clone())
        return self.layer.attend(query, keys, values, AttentionCall(SCALING, None, padding, slopes=self.slopes))

    def ask(self, query: Tensor) -> Tensor:
        """What a query (1, 4, 1, d) just behind the text gets from the table as it is; float64."""
        slots, tokens = self.slots, int(self.layer.tokens_seen)
        return self.shares(query, tokens) @ slots.values.double().repeat_interleave(2, 1)

    def logits(self, query: Tensor, position: int) -> Tensor:
        """(1, 4, 1, S) float64, log mass not added."""
        slots = self.slots
        away = (slots.position.double() - position).repeat_interleave(2, 1)
        products = query.double() @ slots.keys.double().repeat_interleave(2, 1).transpose(-1, -2)
        return (products + (self.slopes.double()[:, None] * away)[:, :, None]) * SCALING

    def shares(self, query: Tensor, position: int) -> Tensor:
        bias = self.slots.log_mass.double().masked_fill(~self.slots.valid, -torch.inf).repeat_interleave(2, 1)
        return torch.softmax(self.logits(query, position) + bias[:, :, None], -1)


def eager(query: Tensor, key: Tensor, slopes: Tensor = SLOPES) -> Tensor:
    """(1, Hq, T, T) attention as the formula says."""
    rows = torch.arange(query.shape[2])
    logits = query @ key.repeat_interleave(2, 1).transpose(-1, -2)
    logits = (logits + slopes[:, None, None] * (rows[None] - rows[:, None])) * SCALING
    return torch.softmax(logits.masked_fill(rows[None] > rows[:, None], -torch.inf), -1)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "ROW_BLOCK", 7)
    monkeypatch.setitem(tiles.TILE, "cpu", (7, 1))


@pytest.mark.usefixtures("small_blocks")
def test_scores_and_output_equal_eager_attention() -> None:
    layer, (query, key, value) = AlibiLayer(make_method("h2o"), TOKENS), prompt(0, TOKENS, 2, 2)
    output = layer.feed(query, key, value)
    mass = eager(query, key)
    torch.testing.assert_close(output, mass @ value.repeat_interleave(2, 1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.slots.score[0], mass[0].unflatten(0, (2, 2)).mean(1).sum(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["window", "h2o", "keepkv", "zsmerge", "kvmerger"])
def test_distances_after_compression_are_those_in_the_text(method: str) -> None:
    """The output at each later step is that of the slots there are, at their own positions."""
    layer = AlibiLayer(make_method(method), BUDGET)
    layer.feed(*prompt(0, TOKENS, 2, 2))
    for step in range(5):
        query, key, value = prompt(50 + step, 1, 2, 2)
        before = layer.slots.map(torch.clone)
        output = layer.feed(query, key, value)
        away = [*(before.position[0, 0][before.valid[0, 0]] - (TOKENS + step)).tolist(), 0]
        slots = torch.cat([before.keys[0, 0][before.valid[0, 0]], key[0, 0]])
        values = torch.cat([before.values[0, 0][before.valid[0, 0]], value[0, 0]])
        mass = torch.cat([before.log_mass[0, 0][before.valid[0, 0]], torch.zeros(1)])
        for head in range(2):
            logits = (slots @ query[0, head, 0] + SLOPES[head] * torch.tensor(away)) * SCALING + mass
            torch.testing.assert_close(output[0, head, 0], torch.softmax(logits, 0) @ values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", ["bias", "paper", "min-norm"])
def test_keepkv_is_exact_although_merged_tokens_change_their_place(rule: str) -> None:
    options = {"rule": rule, "predict": "current", "threshold": -1.0, "sinks": 1, "recent": 0.3}
    layer = AlibiLayer(make_method("keepkv", **options), 9)
    layer.slopes = SLOPES[[0, 0, 1, 1]]  # exact for logits averaged over a group: here its heads are alike
    query, key, value = prompt(3, 20, 2, 2)
    query = query[:, [0, 0, 2, 2]]
    true = layer.feed(query, key, value)[:, :, -1:].double()
    assert layer.slots.votes[layer.slots.valid].max() > 1
    given = layer.shares(query[:, :, -1:], 19) @ layer.slots.values.double().repeat_interleave(2, 1)
    assert (given - true).norm() / true.norm() < 1e-5


@pytest.mark.parametrize("method", ["zsmerge", "kvmerger", "pyramid-pool", "d2o", "keepkv"])
def test_exact_mass_counts_the_place_a_merged_slot_stands_at(method: str) -> None:
    options = {
        "kvmerger": {"loosest": -1.0}, "keepkv": {"threshold": -1.0}, "pyramid-pool": {"pooling": "mean"},
    }  # fmt: skip
    layer = AlibiLayer(make_method(method, mass="exact", **options.get(method, {})), BUDGET)
    layer.slopes = SLOPES[[0, 0, 1, 1]]
    same = [0, 0, 2, 2]
    query, key, value = prompt(0, TOKENS, 2, 2)
    layer.feed(query[:, same], key, value)
    query, key, value = prompt(1, 1, 2, 2)
    layer.feed(query[:, same], key, value)
    view, plan, before, after = layer.notes.decisions[0]
    assert plan.edges is not None
    was, now = (
        _log_masses(layer, view.layer_pass.query, slots, int(view.tokens_seen) - 1) for slots in (before, after)
    )
    for head in range(2):
        found: dict[int, list[int]] = {}
        edges = zip(
            *(t[0, head].tolist() for t in (plan.edges.source, plan.edges.target, plan.edges.active)), strict=True
        )
        for source, target, active in edges:
            found.setdefault(target, []).extend([source] * active)
        merged = {target: sources for target, sources in found.items() if sources}
        assert merged
        for target, sources in merged.items():
            expected = torch.logsumexp(was[head, [target, *sources]], 0)
            torch.testing.assert_close(now[head, target], expected, rtol=1e-5, atol=1e-5)


def _log_masses(layer: AlibiLayer, query: Tensor, slots, position: int) -> Tensor:
    """(2, S) of the first query head of each KV head."""
    away = slots.position.double() - position
    products = (query[:, ::2, -1:].double() @ slots.keys.double().transpose(-1, -2))[:, :, 0]
    return ((products + layer.slopes[::2, None] * away) * SCALING + slots.log_mass.double())[0]


def test_exactmerge_gives_residual_slots_the_mass_their_parts_had() -> None:
    """Over the window, summed: the log mass is found from logits at the pivots' places."""
    layer = AlibiLayer(make_method("exactmerge", shares=(0.3,), window=6, refit=False, adaptive=False), 20)
    query, key, value = prompt(0, TOKENS, 2, 2)
    layer.feed(query, key, value)
    _, plan, before, after = layer.notes.decisions[0]
    assert plan.edges is not None
    mass, slots = eager(query, key)[0, :, -6:].double().unflatten(0, (2, 2)).sum((1, 2)), layer.slots
    normalizers = _normalizers(query, key)
    for head in range(2):
        merged = [s for s in range(slots.votes.shape[-1]) if slots.valid[0, head, s] and slots.votes[0, head, s] > 1]
        assert merged
        active = plan.edges.active[0, head]
        position = after.position[0, head]
        for slot in merged:
            pivot = int(slots.position[0, head, slot])
            sources = plan.edges.source[0, head][active & (position[plan.edges.target[0, head]] == pivot)]
            expected = mass[head, [pivot, *before.position[0, head, sources].tolist()]].sum()
            rows = [layer.logits(query[:, :, r : r + 1], r)[0, :, 0, slot] for r in range(TOKENS - 6, TOKENS)]
            logits = torch.stack(rows, -1)[2 * head : 2 * head + 2] + slots.log_mass[0, head, slot]
            given = (logits - normalizers[2 * head : 2 * head + 2]).exp().sum()
            torch.testing.assert_close(given, expected, rtol=1e-3, atol=1e-6)


def _normalizers(query: Tensor, key: Tensor) -> Tensor:
    """(4, 6) log-sum-exp of the last six rows of the whole text."""
    rows = torch.arange(TOKENS)
    logits = query.double() @ key.double().repeat_interleave(2, 1).transpose(-1, -2)
    logits = (logits + SLOPES[:, None, None] * (rows[None] - rows[:, None])) * SCALING
    return torch.logsumexp(logits.masked_fill(rows[None] > rows[:, None], -torch.inf), -1)[0, :, -6:]


def test_keys_that_no_model_rotated_are_averaged_as_they_are() -> None:
    """Both spaces are one."""
    outputs = []
    for space in ("rotated", "unrotated"):
        layer = AlibiLayer(make_method("zsmerge", residual=0.3, space=space), BUDGET)
        layer.feed(*prompt(0, TOKENS, 2, 2))
        outputs.append(layer.feed(*prompt(9, 1, 2, 2)))
    assert torch.equal(*outputs)


def test_queries_stand_where_their_tokens_do() -> None:
    valid = torch.tensor([[True] * 4, [False, False, True, True]])
    assert query_positions(torch.tensor([9, 5]), 4, valid)[0].tolist() == [5, 6, 7, 8]
    assert query_positions(torch.tensor([9, 5]), 4, valid)[1, 2:].tolist() == [3, 4]
    assert query_positions(torch.tensor([9, 5]), 1, None).tolist() == [[8], [4]]


def test_queries_further_on_get_the_same_attention() -> None:
    """So GVote's samples of text to come need no place of their own."""
    position = torch.arange(6).expand(1, 2, 6)
    near, far = (Alibi(SLOPES.view(1, 2, 2), position, torch.full((1, 2, 1), at)) for at in (5, 70))
    given = [
        PassView(draw(0, 1, 4, 1, DIM), draw(1, 1, 2, 6, DIM), None, None, SCALING, alibi=alibi)
        for alibi in (near, far)
    ]
    first, second = (torch.softmax(seen.logits_of(draw(2, 1, 4, 3, DIM)), -1) for seen in given)
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("heads", [4, 6])
def test_a_full_budget_is_plain_transformers_at_any_length(heads: int) -> None:
    """Beyond 256 tokens, and with slopes that are no powers of two, transformers' products in bfloat16 are rounded."""
    shape = {"num_attention_heads": heads, "hidden_size": 16 * heads, "multi_query": True}
    plain = tiny_model("falcon-alibi", **shape, max_position_embeddings=1024)
    lab = prepare(tiny_model("falcon-alibi", **shape, max_position_embeddings=1024))
    ids = torch.randint(3, 97, (2, 700), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :130] = 0
    outputs = []
    with torch.inference_mode():
        for model, cache in ((plain, DynamicCache(config=plain.config)), (lab, make_cache(lab, "h2o", 1.0))):
            model(ids[:, :690], attention_mask=mask[:, :690], past_key_values=cache, logits_to_keep=1)
            outputs.append(model(ids[:, 690:], attention_mask=mask, past_key_values=cache).logits)
    assert (outputs[0] - outputs[1]).abs().max() < 1e-3 * outputs[0].abs().max()


def test_a_model_without_a_cache_is_plain_transformers() -> None:
    ids = torch.randint(3, 97, (2, 24), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    with torch.inference_mode():
        plain, ours = (
            model(ids, attention_mask=mask, use_cache=False).logits[:, 6:]
            for model in (tiny_model("falcon-alibi"), prepare(tiny_model("falcon-alibi")))
        )
    assert (plain - ours).abs().max() < 1e-4


@pytest.mark.parametrize("method", ["adakv", "gvote", "exactmerge"])
def test_heads_of_unequal_length_are_asked_by_their_own_slopes(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tables give what one gives: decode steps, a second turn, and a beam that moves rows."""
    lab = prepare(tiny_model("falcon-alibi-grouped"))
    ids = torch.randint(3, 97, (2, 300), generator=torch.Generator().manual_seed(1))

    def talk() -> tuple[Tensor, int]:
        compressed = make_cache(lab, method, 0.2)
        with torch.inference_mode():
            found = [lab(part, past_key_values=compressed).logits[:, -1] for part in (ids, ids[:, :1], ids[:, :4])]
            compressed.reorder_cache(torch.tensor([1, 1]))
            found.append(lab(ids[:, 5:6], past_key_values=compressed).logits[:, -1])
        return torch.stack(found), max(len(layer.buckets) for layer in compressed.compressed_layers())

    apart, tables = talk()
    assert tables > 1
    monkeypatch.setattr(regroup, "MOST_PADDING", 1e9)
    together, tables = talk()
    assert tables == 1
    assert (apart - together).abs().max() < 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models") / "falcon", "falcon-alibi-grouped")


def test_recorded_runs_know_the_distances(folder: Path, tmp_path: Path) -> None:
    """The shadow, asked with every token in its place, is what the model itself got while nothing was dropped."""
    budgets = {"h2o": 0.3, "keepkv": 0.3, "gvote": 1.0, "snapkv": 1.0}
    choices = [MethodChoice(method=method, budget=budget) for method, budget in budgets.items()]
    request = CompareRequest(
        prompt="Down the rabbit hole. " * 6, model=str(folder), choices=tuple(choices), max_new_tokens=6
    )
    runs = {run.record.method: run for run in map(open_run, compare(request, tmp_path))}
    assert runs["snapkv"].steps["output_error"].max() < 1e-4
    assert runs["full"].tokens.query("phase == 'forced'")["kl"].max() < 1e-6
    for name in ("h2o", "keepkv"):
        steps = runs[name].steps
        whole = steps["kept_mass"] + steps["merged_true_mass"] + steps["regret"]
        assert (whole - 1).abs().max() < 1e-3
        assert steps["output_error"].max() > 1e-3
    assert runs["h2o"].record.model.rotary_inverse_frequencies is None


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("less", {"weights": "untrained"}, "uses ALiBi"),
        ("streaming-llm", {"positions": "cache"}, "use positions 'original'"),
    ],
)
def test_what_does_not_go_with_alibi_says_why(folder: Path, method: str, options: dict, sentence: str) -> None:
    loaded = load_model(str(folder), device="cpu")
    with pytest.raises(ValueError, match=sentence) as error, torch.inference_mode():
        loaded.model(loaded.encode("Down the rabbit hole."), past_key_values=make_cache(loaded, method, 0.3, **options))
    assert str(error.value).count("\n") == 0
