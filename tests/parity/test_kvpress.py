"""Kept positions against kvpress on the same weights and prompt (`make parity`; skipped without its Python).

kvpress needs an older transformers, so it runs in an environment of its own and hands over positions as JSON. Where its
definitions differ from the papers' code that kvlab follows, the difference is named, and what is left is compared.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from kvlab.core.assets import asset_path
from kvlab.core.cache import make_cache
from kvlab.core.fitted.kinds import (
    CURVES,
    GATES,
    read_profile,
    read_query_statistics,
    read_score_heads,
    write_profile,
)
from kvlab.core.methods import make_method
from kvlab.models.load import load_model

PYTHON = os.environ.get("KVLAB_KVPRESS_PYTHON", "")
KEEP, WINDOW, KERNEL, TOKENS = 0.25, 16, 5, 480

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="KVLAB_KVPRESS_PYTHON does not name a Python with kvpress; `make parity` makes one"
)


@pytest.fixture(scope="module")
def prompt() -> torch.Tensor:
    text = next(asset_path("prompts/haystack").glob("*.txt")).read_text()[20_000:24_000]
    return load_model("mini").encode(text)[:, :TOKENS]


@pytest.fixture(scope="module")
def theirs(prompt: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[list[int]]]]:
    given = tmp_path_factory.mktemp("parity")
    (given / "ids.json").write_text(json.dumps(prompt[0].tolist()))
    known, _, _ = read_query_statistics(asset_path("queries/mini.safetensors"))
    # kvpress stores the negative of the direction of the queries.
    (given / "filters.json").write_text(json.dumps([(-layer.direction).tolist() for _, layer in sorted(known.items())]))
    save_file(gates(), given / "gates.safetensors")
    for name, rates in (("lukv", rates_of_curves()), ("lukv-whole", whole_rates())):
        (given / f"{name}.json").write_text(json.dumps((1 - rates).tolist()))
    script = Path(__file__).with_name("kvpress_side.py")
    arguments = [str(asset_path("mini")), str(given), str(KEEP), str(WINDOW), str(KERNEL)]
    done = subprocess.run([PYTHON, str(script), *arguments], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def gates() -> dict[str, Tensor]:
    """mini's gates under the names that kvpress's modules have for them."""
    known, _, _ = read_score_heads(GATES.path("mini"), "fast-kvzip")
    found = {}
    for layer, gate in known.items():
        parts = gate.tensors()
        named = {
            "q_proj.weight": parts["query"].flatten(0, 2), "q_proj.bias": parts["query_bias"].flatten(),
            "k_proj.weight": parts["key"].flatten(0, 1), "q_norm.weight": parts["query_norm"],
            "k_norm.weight": parts["key_norm"], "k_base": parts["sinks"][:, None], "b": parts["bias"][:, None],
        }  # fmt: skip
        found |= {f"{layer}.{name}": tensor.contiguous() for name, tensor in named.items()}
    return found


def rates_of_curves() -> Tensor:
    """Share (99, L, H) of its tokens that each head of mini keeps, when 1 to 99 % are evicted."""
    known, _, _ = read_profile(CURVES.path("mini"), CURVES)
    shares = torch.tensor(known.shares, dtype=torch.float64)
    return (shares * torch.tensor(known.budgets)[:, None, None] * shares[0].numel()).flip(0)


def whole_rates() -> Tensor:
    """The same for heads that keep 5, 15, ... 235 of the tokens at any budget; their mean is a quarter."""
    counts = torch.arange(5, 240, 10, dtype=torch.float64).view(6, 4)
    assert float(counts.mean()) == TOKENS * KEEP
    return (counts / TOKENS).expand(99, -1, -1)


class Watcher:
    """Remembers each layer's pass before anything is dropped."""

    def __init__(self) -> None:
        self.seen: dict[int, object] = {}

    def attended(self, layer_idx, slots, seen, output) -> None:
        self.seen[layer_idx] = (seen.column_mass(), seen.rows_seen())

    def compressed(self, *_: object) -> None:
        pass


def ours(prompt: torch.Tensor, method: str, budget: int, **options: object) -> list[list[list[int]]]:
    lab = load_model("mini")
    cache = make_cache(lab, method, budget, **options)
    with torch.inference_mode():
        lab.model(prompt, past_key_values=cache)
    return [
        [sorted(p[v].tolist()) for p, v in zip(layer.slots.position[0], layer.slots.valid[0], strict=True)]
        for layer in cache.compressed_layers()
    ]


def overlap(left: list[list[list[int]]], right: list[list[list[int]]]) -> float:
    """Mean share of positions kept by both, of the larger set, over layers and heads."""
    pairs = [(set(a), set(b)) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True)]
    return sum(len(a & b) / max(len(a), len(b)) for a, b in pairs) / len(pairs)


def report(name: str, value: float, note: str) -> None:
    print(f"\nparity {name:>20}: {100 * value:6.2f} % of positions agree; {note}")


def test_streaming_llm(prompt: torch.Tensor, theirs: dict) -> None:
    agreement = overlap(ours(prompt, "streaming-llm", int(TOKENS * KEEP)), theirs["streaming-llm"])
    report("streaming-llm", agreement, "same definition")
    assert agreement == 1.0


def test_snapkv(prompt: torch.Tensor, theirs: dict) -> None:
    options = {"window": WINDOW, "kernel": KERNEL, "pooling": "average"}
    agreement = overlap(ours(prompt, "snapkv", int(TOKENS * KEEP), **options), theirs["snapkv"])
    report("snapkv", agreement, "kvpress counts zeros beyond the text's ends when it pools, kvlab does not")
    assert agreement > 0.995


def test_adakv(prompt: torch.Tensor, theirs: dict) -> None:
    """kvpress counts the window in a head's floor and pools zeros at the text's ends: with both, the same tokens."""
    keep = int(TOKENS * KEEP)
    options = {"window": WINDOW, "kernel": KERNEL, "pooling": "average", "floor_rule": "guarantee"}
    theirs_here = {"floor": (int(keep * 0.2) - WINDOW) / (keep - WINDOW), "edges": "zeros"}
    mine = ours(prompt, "adakv", keep, **options, **theirs_here)
    for left, right in zip(mine, theirs["adakv"], strict=True):
        assert sum(map(len, left)) == sum(map(len, right)), "a layer keeps the same number of slots in all"
    agreement = overlap(mine, theirs["adakv"])
    default = overlap(ours(prompt, "adakv", keep, floor=0.2, **options), theirs["adakv"])
    report(
        "adakv", agreement, f"with kvpress's floor and zeros; kvlab's floor stands on top of the window: {default:.2%}"
    )
    assert agreement > 0.995


def test_pyramidkv(prompt: torch.Tensor, theirs: dict) -> None:
    options = {"window": WINDOW, "kernel": KERNEL, "pooling": "average", "beta": 4.0}
    mine = ours(prompt, "pyramidkv", int(TOKENS * KEEP), **options)
    lengths = [[len(layer[0]) for layer in side] for side in (mine, theirs["pyramidkv"])]
    agreement = overlap(mine, theirs["pyramidkv"])
    # (At the default beta of 20 kvpress falls back to equal layers whenever the last one's share is below the window.)
    note = f"layer budgets {lengths[0]} here, {lengths[1]} there, whose line includes the window"
    report("pyramidkv", agreement, note)
    # The schedules differ by definition; with a layer's length given, the tokens are the same but for the zeros that
    # kvpress pools in at the text's ends.
    for index, layer in enumerate(theirs["pyramidkv"]):
        alike = ours(prompt, "snapkv", len(layer[0]), window=WINDOW, kernel=KERNEL, pooling="average")
        assert overlap([alike[index]], [layer]) > 0.97


def test_observed_attention(prompt: torch.Tensor, theirs: dict) -> None:
    """It divides the column sums by how many queries could see each token, so it is not H2O: its scores are rebuilt."""
    lab, watcher = load_model("mini"), Watcher()
    with torch.inference_mode():
        lab.model(prompt, past_key_values=make_cache(lab, "full", observer=watcher))
    keep = int(TOKENS * KEEP)
    mine = [
        [sorted(head.topk(keep).indices.tolist()) for head in (mass / rows)[0]] for mass, rows in watcher.seen.values()
    ]
    agreement = overlap(mine, theirs["observed-attention"])
    same_as_h2o = overlap(ours(prompt, "h2o", keep), theirs["observed-attention"])
    note = f"from kvlab's streamed column sums, divided by the queries that could look; H2O itself: {same_as_h2o:.0%}"
    report("observed-attention", agreement, note)
    assert agreement > 0.995


@pytest.mark.parametrize(
    ("method", "options", "least", "note"),
    [
        ("cap", {}, 0.98, "kvlab always keeps the newest token"),
        ("cur", {}, 0.98, "kvlab always keeps the newest token"),
        ("compactor", {}, 0.7, "kvpress does not divide logits by sqrt(d), and draws its own sketch for each head"),
        (
            "entropy-gated-chunkkv",
            {"window": WINDOW},
            0.9,
            "kvpress gives the window's tokens the highest score in chunks",
        ),
        ("finch", {"window": WINDOW}, 0.995, "kvpress weighs a query by the tokens before it, kvlab counts it too"),
        (
            "criticalkv",
            {"window": WINDOW, "kernel": KERNEL, "pooling": "average", "edges": "zeros"},
            0.995,
            "with the zeros that kvpress counts beyond the text's ends",
        ),
        ("chunkkv", {"window": WINDOW}, 0.98, "kvpress gives the window's tokens the highest score in chunks"),
        ("qfilter", {}, 0.98, "same filters; kvlab always keeps the newest token"),
        ("kvcompose", {"ask": ""}, 0.8, "kvpress takes a group's mean, kvlab its maximum"),
        ("tova", {}, 0.995, "same definition"),
        ("lagkv", {"lag": 32}, 0.97, "same definition; ranks in equal parts tie"),
        ("keydiff", {}, 0.98, "kvlab always keeps the newest token"),
        ("key-norm", {}, 0.98, "kvlab always keeps the newest token"),
    ],
)
def test_scores_of_keys_and_values(
    prompt: torch.Tensor, theirs: dict, method: str, options: dict, least: float, note: str
) -> None:
    agreement = overlap(ours(prompt, method, int(TOKENS * KEEP), **options), theirs[method])
    report(method, agreement, note)
    assert agreement > least


def test_kvzip(prompt: torch.Tensor, theirs: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """kvpress reads the first token again too, kvlab leaves it out: read again here, the same tokens stay."""
    keep, ask = int(TOKENS * KEEP), "\n\nRepeat the previous context exactly.\n"
    default = overlap(ours(prompt, "kvzip", keep, ask=ask), theirs["kvzip"])
    monkeypatch.setattr(type(load_model("mini").tokenizer), "bos_token_id", None, raising=False)
    agreement = overlap(ours(prompt, "kvzip", keep, ask=ask), theirs["kvzip"])
    report("kvzip", agreement, f"with its request, and the first token read again; without: {default:.2%}")
    assert agreement > 0.98


def test_fast_kvzip(prompt: torch.Tensor, theirs: dict) -> None:
    """With the same gates, and the 2 % of newest tokens that kvpress keeps."""
    agreement = overlap(ours(prompt, "fast-kvzip", int(TOKENS * KEEP), recent=int(0.02 * TOKENS)), theirs["fast-kvzip"])
    report("fast-kvzip", agreement, "same gates, same newest tokens")
    assert agreement > 0.995


def test_lukv(prompt: torch.Tensor, theirs: dict, tmp_path: Path) -> None:
    """With the same curves. kvpress rounds counts by layer, and lets a head keep less than its sinks; kvlab not."""
    keep = int(TOKENS * KEEP)
    found = ours(prompt, "compose", keep, score="lukv", allocate="curves", sinks=0, recent=1)
    most = max(abs(a - b) for a, b in zip(lengths(found), lengths(theirs["lukv"]), strict=True))
    pairs = [pair for layers in zip(found, theirs["lukv"], strict=True) for pair in zip(*layers, strict=True)]
    # of a head with one slot kvpress keeps the first token, kvlab the newest
    large = [([[own]], [[other]]) for own, other in pairs if len(other) > 5]
    agreement = sum(overlap(*pair) for pair in large) / len(large)
    default = overlap(ours(prompt, "lukv", keep), theirs["lukv"])
    note = f"without sinks, in the {len(large)} heads of more than 5; counts differ by {most}; as it is: {default:.2%}"
    report("lukv", agreement, note)
    assert most <= 1 and agreement > 0.95
    lab, rates = load_model("mini"), whole_rates()
    write_profile(tmp_path / "whole", [KEEP], rates[:1] / rates[0].sum(), lab.model, {})
    alike = ours(prompt, "lukv", keep, curves=str(tmp_path / "whole"))
    assert lengths(alike) == lengths(theirs["lukv-whole"]), "nothing to round, and more than the sinks"
    agreement = overlap(alike, theirs["lukv-whole"])
    report("lukv", agreement, "at counts that need no rounding, which are the same ones")
    assert agreement > 0.9


def lengths(layers: list[list[list[int]]]) -> list[int]:
    """Number of positions kept by each head."""
    return [len(head) for layer in layers for head in layer]


def test_simlayerkv(prompt: torch.Tensor, theirs: dict) -> None:
    """At a threshold that some of the layers exceed; kvpress leaves out what the newest query gives to itself."""
    mine = ours(prompt, "simlayerkv", 1, threshold=0.5, recent=64)
    lazy = [[len(layer[0]) < TOKENS for layer in side] for side in (mine, theirs["simlayerkv"])]
    report("simlayerkv", overlap(mine, theirs["simlayerkv"]), f"lazy layers {lazy[0]} here, {lazy[1]} there")
    for own, other, both in zip(mine, theirs["simlayerkv"], zip(*lazy, strict=True), strict=True):
        assert own == other if both[0] == both[1] else both[0], "more attention counts here, so more layers are lazy"
    assert any(lazy[1]) and not all(lazy[0])


def test_think(prompt: torch.Tensor, theirs: dict) -> None:
    lab = load_model("mini")
    cache = make_cache(lab, make_method("packed", store="think/pruned=40"), 1.0)
    with torch.inference_mode():
        lab.model(prompt, past_key_values=cache)
    mine = [layer.tables[0].learned["keys"]["channels"][0].tolist() for layer in cache.compressed_layers()]
    agreement = overlap(mine, theirs["think"])
    report("think", agreement, "of the channels; kvpress prunes the newest 32 keys too, and chooses with them")
    assert agreement > 0.9
