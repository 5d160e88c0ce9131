"""Write which positions each method keeps of each prompt, for others to hold their code against.

    python dev/kept_positions.py --model smollm2 --out kept   # 30 prompts, 12 methods, 3 budgets; resumes

One Parquet file a prompt, with a row per method, budget, layer and KV head; `prompts.jsonl` with the token ids;
`SHA256SUMS`, and a card. Methods have their default settings, which `kvlab methods NAME` sets beside their papers'.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from kvlab import load_model, make_cache
from kvlab.common.atomic_write import replace_file, replace_text
from kvlab.core.cache.fan_out_cache import FanOutCache, shares_passes
from kvlab.engine.forward import prefill
from kvlab.models.load import LoadedModel
from kvlab.tasks.registry import get_task

METHODS = (
    *("streaming-llm", "tova", "h2o", "snapkv", "pyramidkv", "adakv"),
    *("keydiff", "key-norm", "lagkv", "expected-attention", "rkv", "kvzip"),
)
BUDGETS = (0.05, 0.1, 0.2)
CARD = """# Kept positions of {methods} methods on {prompts} prompts of {model}

Which tokens of a prompt each method still holds right after the prompt, by layer and KV head. Made by
`python dev/kept_positions.py --model {model} --prompts {prompts} --tokens {tokens}` with kvlab {kvlab}, torch {torch},
transformers {transformers}, in {dtype} on {device}. Prompts: a number hidden in a text of about {tokens} tokens (task
`needle`, seed {seed}), the question last, so that methods with a window see it.

| column | |
|---|---|
| `method`, `budget` | with default settings; share of the prompt's tokens that a KV head may hold |
| `layer`, `head` | of the model; KV head |
| `positions` | of the tokens that have a slot, ascending, from 0 |

`prompts.jsonl` has the token ids (`ids`) and the answer of each prompt. `sha256sum -c SHA256SUMS` checks the files.

    import pandas as pd
    frame = pd.read_parquet("prompt-000.parquet")
    frame[(frame["method"] == "snapkv") & (frame["budget"] == 0.1)].set_index(["layer", "head"])["positions"]

Scores that are equal, or nearly, can fall the other way on another processor: compare sets by their overlap.
"""


def kept_rows(loaded: LoadedModel, ids: torch.Tensor, methods: tuple[str, ...]) -> pa.Table:
    """A row per method, budget, layer and KV head, from one pass over the prompt `ids` (1, T)."""
    choices = [(method, budget) for method in methods for budget in BUDGETS]
    caches = [make_cache(loaded, method, budget) for method, budget in choices]
    with torch.inference_mode():
        if together := [cache for cache in caches if shares_passes(cache)]:
            prefill(loaded, FanOutCache(together, loaded.device), ids)
        for cache in caches:
            if not shares_passes(cache):
                prefill(loaded, cache, ids)
    rows = []
    for (method, budget), cache in zip(choices, caches, strict=True):
        for layer in cache.compressed_layers():
            assert layer.slots is not None
            for head, (positions, valid) in enumerate(zip(layer.slots.position[0], layer.slots.valid[0], strict=True)):
                held = positions[valid].sort().values.tolist()
                rows.append(
                    {"method": method, "budget": budget, "layer": layer.layer_idx, "head": head, "positions": held}
                )
    types = {"method": pa.string(), "budget": pa.float64(), "layer": pa.int16(), "head": pa.int16()}
    return pa.Table.from_pylist(rows, schema=pa.schema([*types.items(), ("positions", pa.list_(pa.int32()))]))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("kept"))
    options = parser.parse_args(arguments)
    methods = tuple(options.methods.split(","))
    loaded = load_model(options.model)
    options.out.mkdir(parents=True, exist_ok=True)
    # A file that is there is kept, so it must be of the same settings.
    settings = json.dumps({"model": options.model, "tokens": options.tokens, "seed": options.seed, "methods": methods})
    known = options.out / "settings.json"
    if known.exists() and known.read_text() != settings:
        raise SystemExit(f"{options.out} holds a set of other settings ({known.read_text()}): choose another --out.")
    replace_text(known, settings)
    lines = []
    for number in range(options.prompts):
        sample = get_task("needle").generate(loaded.tokenizer, options.tokens, options.seed, number)
        ids = loaded.encode(sample.context + sample.question)
        lines.append(json.dumps({"prompt": number, "answer": sample.answers[0], "ids": ids[0].tolist()}))
        path = options.out / f"prompt-{number:03}.parquet"
        if path.exists():
            continue
        table = kept_rows(loaded, ids, methods)
        replace_file(path, lambda temporary, table=table: pq.write_table(table, temporary, compression="zstd"))
        print(f"{path}: {table.num_rows:,} rows, {ids.shape[1]:,} tokens", flush=True)
    replace_text(options.out / "prompts.jsonl", "\n".join(lines) + "\n")
    versions = {name: version(name) for name in ("kvlab", "torch", "transformers")}
    facts = {"model": options.model, "prompts": options.prompts, "tokens": options.tokens, "seed": options.seed}
    where = {"dtype": str(loaded.model.dtype).removeprefix("torch."), "device": str(loaded.device)}
    replace_text(options.out / "README.md", CARD.format(methods=len(methods), **facts, **versions, **where))
    files = sorted(path for path in options.out.iterdir() if path.suffix in (".parquet", ".json", ".jsonl", ".md"))
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    replace_text(options.out / "SHA256SUMS", "".join(sums))


if __name__ == "__main__":
    main()
