"""Kept positions against kvpress on the same weights and prompt (`make parity`; skipped without its Python).

kvpress needs an older transformers, so it runs in an environment of its own, where `kvlab watch` records it. Where its
definitions differ from the papers' code that kvlab follows, the difference is named, and what is left is compared.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.core.assets import asset_path
from kvlab.core.cache import make_cache
from kvlab.core.fitted.kinds import (
    CURVES,
    GATES,
    QUERIES,
    write_profile,
)
from kvlab.core.methods import make_method
from kvlab.models.load import load_model
from kvlab.watch.check import check, recorded_sets
from kvlab.watch.recording import read_recording
from kvlab.watch.run_folder import longest_sequence

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
def recordings(prompt: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording of each press, `NAME.kvlab`."""
    given = tmp_path_factory.mktemp("parity")
    written = CliRunner().invoke(commands, ["watch", "--write", str(given / "kvlab_watch.py")])
    assert written.exit_code == 0, written.output
    (given / "ids.json").write_text(json.dumps(prompt[0].tolist()))
    known, _, _ = QUERIES.read(asset_path("queries/mini.safetensors"))
    # kvpress stores the negative of the direction of the queries.
    (given / "filters.json").write_text(json.dumps([(-layer.direction).tolist() for _, layer in sorted(known.items())]))
    save_file(gates(), given / "gates.safetensors")
    for name, rates in (("lukv", rates_of_curves()), ("lukv-whole", whole_rates())):
        (given / f"{name}.json").write_text(json.dumps((1 - rates).tolist()))
    script = Path(__file__).with_name("kvpress_side.py")
    arguments = [str(asset_path("mini")), str(given), str(KEEP), str(WINDOW), str(KERNEL)]
    done = subprocess.run([PYTHON, str(script), *arguments], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return given


def gates() -> dict[str, Tensor]:
    """mini's gates under the names that kvpress's modules have for them."""
    known, _, _ = GATES.read(GATES.path("mini"))
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
    known, _, _ = CURVES.read(CURVES.path("mini"))
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


def held_against(recording: Path, method: str, budget: int = int(TOKENS * KEEP), **options: Any) -> pd.DataFrame:
    """A row a layer and head: slots of both, and the share of the larger set that is in both."""
    assert read_recording(recording).counts()["unknown"] == 0
    spec = ":".join([method, *(f"{name}={json.dumps(value)}" for name, value in options.items())])
    return check(recording, spec, budget, load_model("mini"), search=False).table


def agreement(recording: Path, method: str, budget: int = int(TOKENS * KEEP), **options: Any) -> float:
    """Mean share of positions kept by both, of the larger set, over layers and heads."""
    return float(held_against(recording, method, budget, **options)["agreement"].mean())


def report(name: str, value: float, note: str) -> None:
    print(f"\nparity {name:>20}: {100 * value:6.2f} % of positions agree; {note}")


def test_streaming_llm(recordings: Path) -> None:
    share = agreement(recordings / "streaming-llm.kvlab", "streaming-llm")
    report("streaming-llm", share, "same definition")
    assert share == 1.0


def test_snapkv(recordings: Path) -> None:
    options = {"window": WINDOW, "kernel": KERNEL, "pooling": "average"}
    share = agreement(recordings / "snapkv.kvlab", "snapkv", **options)
    zeros = agreement(recordings / "snapkv.kvlab", "snapkv", edges="zeros", **options)
    report("snapkv", share, f"with the zeros that kvpress counts beyond the text's ends when it pools: {zeros:.2%}")
    assert share > 0.995 and zeros > 0.995


def test_adakv(recordings: Path) -> None:
    """kvpress counts the window in a head's floor and pools zeros at the text's ends: with both, the same tokens."""
    keep = int(TOKENS * KEEP)
    options = {"window": WINDOW, "kernel": KERNEL, "pooling": "average", "floor_rule": "guarantee"}
    theirs_here = {"floor": (int(keep * 0.2) - WINDOW) / (keep - WINDOW), "edges": "zeros"}
    table = held_against(recordings / "adakv.kvlab", "adakv", **options, **theirs_here)
    slots = table.groupby("layer")[["recorded_slots", "kvlab_slots"]].sum()
    assert slots["recorded_slots"].equals(slots["kvlab_slots"]), "a layer keeps the same number of slots in all"
    share = table["agreement"].mean()
    default = agreement(recordings / "adakv.kvlab", "adakv", floor=0.2, **options)
    report("adakv", share, f"with kvpress's floor and zeros; kvlab's floor stands on top of the window: {default:.2%}")
    assert share > 0.995


def test_pyramidkv(recordings: Path) -> None:
    recording = recordings / "pyramidkv.kvlab"
    options = {"window": WINDOW, "kernel": KERNEL, "pooling": "average"}
    table = held_against(recording, "pyramidkv", beta=4.0, **options)
    layers = table.groupby("layer").first()
    # (At the default beta of 20 kvpress falls back to equal layers whenever the last one's share is below the window.)
    note = f"layer budgets {layers['kvlab_slots'].tolist()} here, {layers['recorded_slots'].tolist()} there"
    report("pyramidkv", table["agreement"].mean(), f"{note}, whose line includes the window")
    # The schedules differ by definition; with a layer's length given, the tokens are the same but for the zeros that
    # kvpress pools in at the text's ends.
    for index, slots in layers["recorded_slots"].items():
        alike = held_against(recording, "snapkv", int(slots), **options)
        assert alike.loc[alike["layer"] == index, "agreement"].mean() > 0.97


def test_observed_attention(prompt: torch.Tensor, recordings: Path) -> None:
    """It divides the column sums by how many queries could see each token, so it is not H2O: its scores are rebuilt."""
    recording = recordings / "observed-attention.kvlab"
    lab, watcher = load_model("mini"), Watcher()
    with torch.inference_mode():
        lab.model(prompt, past_key_values=make_cache(lab, "full", observer=watcher))
    keep = int(TOKENS * KEEP)
    theirs = recorded_sets(longest_sequence(read_recording(recording))[-1], 0, 0)
    shares = [
        len(theirs[layer, head] & set(score.topk(keep).indices.tolist())) / keep
        for layer, (mass, rows) in watcher.seen.items()
        for head, score in enumerate((mass / rows)[0])
    ]
    assert len(shares) == len(theirs)
    share, same_as_h2o = sum(shares) / len(shares), agreement(recording, "h2o")
    note = f"from kvlab's streamed column sums, divided by the queries that could look; H2O itself: {same_as_h2o:.0%}"
    report("observed-attention", share, note)
    assert share > 0.995


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
def test_scores_of_keys_and_values(recordings: Path, method: str, options: dict, least: float, note: str) -> None:
    share = agreement(recordings / f"{method}.kvlab", method, **options)
    report(method, share, note)
    assert share > least


def test_kvzip(recordings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kvpress reads the first token again too, kvlab leaves it out: read again here, the same tokens stay."""
    recording, ask = recordings / "kvzip.kvlab", "\n\nRepeat the previous context exactly.\n"
    default = agreement(recording, "kvzip", ask=ask)
    monkeypatch.setattr(type(load_model("mini").tokenizer), "bos_token_id", None, raising=False)
    share = agreement(recording, "kvzip", ask=ask)
    report("kvzip", share, f"with its request, and the first token read again; without: {default:.2%}")
    assert share > 0.98


def test_fast_kvzip(recordings: Path) -> None:
    """With the same gates, and the 2 % of newest tokens that kvpress keeps."""
    share = agreement(recordings / "fast-kvzip.kvlab", "fast-kvzip", recent=int(0.02 * TOKENS))
    report("fast-kvzip", share, "same gates, same newest tokens")
    assert share > 0.995


def test_lukv(recordings: Path, tmp_path: Path) -> None:
    """With the same curves. kvpress rounds counts by layer, and lets a head keep less than its sinks; kvlab not."""
    recording = recordings / "lukv.kvlab"
    table = held_against(recording, "compose", score="lukv", allocate="curves", sinks=0, recent=1)
    most = (table["kvlab_slots"] - table["recorded_slots"]).abs().max()
    # of a head with one slot kvpress keeps the first token, kvlab the newest
    large = table[table["recorded_slots"] > 5]
    share = large["agreement"].mean()
    default = agreement(recording, "lukv")
    note = f"without sinks, in the {len(large)} heads of more than 5; counts differ by {most}; as it is: {default:.2%}"
    report("lukv", share, note)
    assert most <= 1 and share > 0.95
    lab, rates = load_model("mini"), whole_rates()
    write_profile(tmp_path / "whole", [KEEP], rates[:1] / rates[0].sum(), lab.model, {})
    alike = held_against(recordings / "lukv-whole.kvlab", "lukv", curves=str(tmp_path / "whole"))
    assert alike["kvlab_slots"].equals(alike["recorded_slots"]), "nothing to round, and more than the sinks"
    report("lukv", alike["agreement"].mean(), "at counts that need no rounding, which are the same ones")
    assert alike["agreement"].mean() > 0.9


def test_simlayerkv(recordings: Path) -> None:
    """At a threshold that some of the layers exceed; kvpress leaves out what the newest query gives to itself."""
    table = held_against(recordings / "simlayerkv.kvlab", "simlayerkv", 1, threshold=0.5, recent=64)
    layers = table.groupby("layer").agg({"kvlab_slots": "first", "recorded_slots": "first", "agreement": "mean"})
    here, there = layers["kvlab_slots"] < TOKENS, layers["recorded_slots"] < TOKENS
    report("simlayerkv", table["agreement"].mean(), f"lazy layers {here.tolist()} here, {there.tolist()} there")
    assert (layers.loc[here == there, "agreement"] == 1).all()
    assert here[here != there].all(), "more attention counts here, so more layers are lazy"
    assert there.any() and not there.all()


def test_think(prompt: torch.Tensor, recordings: Path) -> None:
    lab = load_model("mini")
    cache = make_cache(lab, make_method("packed", store="think/pruned=40"), 1.0)
    with torch.inference_mode():
        lab.model(prompt, past_key_values=cache)
    theirs = json.loads((recordings / "think.json").read_text())
    shares = [
        len(set(own) & set(other)) / max(len(own), len(other))
        for layer, heads in zip(cache.compressed_layers(), theirs, strict=True)
        for own, other in zip(layer.tables[0].learned["keys"]["channels"][0].tolist(), heads, strict=True)
    ]
    share = sum(shares) / len(shares)
    report("think", share, "of the channels; kvpress prunes the newest 32 keys too, and chooses with them")
    assert share > 0.9
