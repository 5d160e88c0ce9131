"""Quantised caches of llama.cpp beside kvlab's stores: `python -m kvlab.evaluate.engines.cache_types LLAMA_PYTHON`.

Each side is compared with its own full cache, on the same prompts, while the full cache's likeliest tokens are read.
LLAMA_PYTHON is a Python that has llama-cpp-py-sync, llama.cpp with CFFI bindings in a wheel.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import torch

from kvlab.cache import make_cache
from kvlab.common.errors import UserError
from kvlab.common.intervals import mean_interval
from kvlab.evaluate.engines.comparison import KVLAB, prepared_prompts
from kvlab.evaluate.request_parser import parse_request
from kvlab.methods import make_method
from kvlab.model_info.gguf_files import gguf_file
from kvlab.models.load import LoadedModel, load_model
from kvlab.requests.method_spec import parse_spec
from kvlab.server.offered_models import place_of

MODEL, TASKS, LENGTH, SAMPLES, SEED, STEPS = "smollm2", "needle,ruler_niah_multikey_1", 512, 10, 8672, 24
LLAMA = "llama.cpp"
TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "q4_0": 2}  # numbers of ggml's types; the first is the reference
SPECS = ("packed:store=fp8", "packed:store=int8", "packed:store=kivi4")


def main(python: str) -> None:
    """Print a table: mean KL and share of equal likeliest tokens, with 95 % intervals over prompts."""
    file = gguf_file(place_of(MODEL))
    if file is None:
        raise UserError(f"Both read a GGUF file: get it with `kvlab models get {MODEL}`.")
    loaded = load_model(MODEL, "cpu")
    request = parse_request(
        tasks=TASKS, files=(), methods="full", budgets="1.0", lengths=str(LENGTH), depths=None, question_aware="yes",
        samples=SAMPLES, seed=SEED, model=MODEL, device="cpu",
    )  # fmt: skip
    prompts = [one.context + one.question for one in prepared_prompts(request, loaded)]
    rows = pd.concat([of_kvlab(loaded, prompts), of_llama(python, file, prompts)])
    print("| engine | cache | KL to its own full cache, nats | same likeliest token |\n| --- | --- | --- | --- |")
    for (engine, name), one in rows.groupby(["engine", "type"], sort=False):
        kl = mean_interval(one["kl"].tolist(), kind="difference")
        same = mean_interval(one["agreement"].tolist(), kind="score")
        print(f"| {engine} | `{name}` | {kl.mean:.4f} ({max(kl.low, 0):.4f} to {kl.high:.4f}), n {kl.n} | "
              f"{same.mean:.3f} ({same.low:.3f} to {same.high:.3f}) |")  # fmt: skip


def of_llama(python: str, file: Path, prompts: list[list[int]]) -> pd.DataFrame:
    """llama.cpp's rows: engine, type, index, kl and agreement. Raises UserError if its process fails."""
    with tempfile.TemporaryDirectory() as folder:
        rows, job = Path(folder) / "rows.jsonl", Path(folder) / "job.json"
        given = {"model": str(file), "threads": 1, "steps": STEPS, "types": TYPES, "rows": str(rows)}
        job.write_text(json.dumps({**given, "prompts": prompts}), encoding="utf-8")
        side = Path(__file__).with_name("llama_side.py")
        if subprocess.run([python, str(side), str(job)], stderr=subprocess.DEVNULL).returncode or not rows.is_file():
            raise UserError(f"{python} ran no llama.cpp: install llama-cpp-py-sync and numpy there.")
        return pd.read_json(rows, lines=True).assign(engine=LLAMA)


def of_kvlab(loaded: LoadedModel, prompts: list[list[int]]) -> pd.DataFrame:
    """kvlab's rows, of the same columns."""
    rows = []
    for index, ids in enumerate(prompts):
        reference = continued(loaded, "full", ids, None)
        given = reference.argmax(1).tolist()
        for spec in SPECS:
            found = continued(loaded, spec, ids, given)
            kl = float((reference.exp() * (reference - found)).sum(1).mean())
            same = float((reference.argmax(1) == found.argmax(1)).double().mean())
            rows.append({"engine": KVLAB, "type": spec, "index": index, "kl": kl, "agreement": same})
    return pd.DataFrame(rows)


@torch.inference_mode()
def continued(loaded: LoadedModel, spec: str, ids: list[int], given: list[int] | None) -> torch.Tensor:
    """Log probabilities (STEPS, V) after the prompt and each token, which are `given` or the likeliest."""
    name, values = parse_spec(spec)
    cache = make_cache(loaded, make_method(name, **values), 1.0)
    cache.expect(len(ids))
    found, next_ids = [], ids
    for step in range(STEPS):
        logits = loaded.model(torch.tensor([next_ids]), past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        found.append(logits[0, -1].double().log_softmax(0))
        next_ids = [int(found[-1].argmax()) if given is None else given[step]]
    return torch.stack(found)


if __name__ == "__main__":
    main(sys.argv[1])
