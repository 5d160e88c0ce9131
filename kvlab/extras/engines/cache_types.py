"""Quantised caches of llama.cpp beside kvlab's stores: `python -m kvlab.extras.engines.cache_types LLAMA_PYTHON`.

Each side is compared with its own full cache on the same prompts, by the text that it writes, and beside it stands its
noise floor: the full cache once more, computed in another order. LLAMA_PYTHON is a Python that has xllamacpp.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from kvlab.common.formatting import shared_prefix
from kvlab.core import UserError, parse_spec
from kvlab.core.cache import make_cache
from kvlab.core.methods import make_method
from kvlab.evaluation.request_parser import parse_request
from kvlab.extras.engines.comparison import prepared_prompts
from kvlab.models.info.model_faults import gguf_file
from kvlab.models.info.offered_models import place_of
from kvlab.models.load import load_model

MODEL = "smollm2"
TASK = "needle"
LENGTH = 384
PROMPTS = 10
SEED = 8672
TOKENS = 24
# Type of ggml, and whether attention is fused. The first is the full cache (fused attention rounds f32 to f16), the
# second its noise floor.
TYPES = {
    "f16": ("f16", True),
    "f16, attention not fused": ("f16", False),
    "q8_0": ("q8_0", True),
    "q4_0": ("q4_0", True),
}
PIECE = 64  # tokens of a pass of kvlab's noise floor
SPECS = ("full", f"full, prompt in pieces of {PIECE}", "packed:store=int8", "packed:store=kivi4")
Texts = list[list[int]]


def main(python: str) -> None:
    """Print a table: of the prompts how many texts are equal, and mean tokens before the first that differs."""
    file = gguf_file(place_of(MODEL))
    if file is None:
        raise UserError(f"Both read a GGUF file: get it with `kvlab models get {MODEL}`.")
    loaded = load_model(MODEL, "cpu")
    request = parse_request(
        tasks=TASK,
        files=(),
        methods=SPECS[0],
        budgets="1.0",
        lengths=str(LENGTH),
        depths=None,
        question_aware="yes",
        samples=PROMPTS,
        seed=SEED,
        model=MODEL,
        device="cpu",
    )
    prompts = [one.context + one.question for one in prepared_prompts(request, loaded)]
    print("| engine | cache | same text | tokens before the first that differs |\n|---|---|---|---|", flush=True)
    _print("llama.cpp", {name: of_llama(python, file, *kind, prompts) for name, kind in TYPES.items()})
    # The likeliest tokens with kvlab's cache of a method, or of the full cache that reads pieces.
    ours: dict[str, Texts] = {}
    for spec in SPECS:
        name, values = parse_spec(spec.partition(",")[0])
        ours[spec] = []
        for ids in prompts:
            with torch.inference_mode():
                cache = make_cache(loaded, make_method(name, **values), 1.0)
                options: dict[str, Any] = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
                unread = ids
                while "," in spec and len(unread) > PIECE:
                    loaded.model(torch.tensor([unread[:PIECE]]), **options)
                    unread = unread[PIECE:]
                written = list[int]()
                for _ in range(TOKENS):
                    logits = loaded.model(torch.tensor([unread]), **options).logits
                    unread = [int(logits[0, -1].argmax())]
                    written += unread
            ours[spec].append(written)
    _print("kvlab", ours)


def of_llama(python: str, file: Path, cache_type: str, flash: bool, prompts: list[list[int]]) -> Texts:
    """The likeliest tokens after each prompt with llama.cpp. Raises UserError if its process fails."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        job = Path(folder) / "job.json"
        given = {"model": str(file), "threads": 1, "tokens": TOKENS, "type": cache_type, "flash": flash}
        job.write_text(json.dumps({**given, "rows": str(rows), "prompts": prompts}), encoding="utf-8")
        side = Path(__file__).with_name("llama_side.py")
        if subprocess.run([python, str(side), str(job)], stderr=subprocess.DEVNULL).returncode or not rows.is_file():
            raise UserError(f"{python} ran no llama.cpp: install xllamacpp there.")
        return [list(map(int, text)) for text in json.loads(rows.read_text(encoding="utf-8"))]


def _print(engine: str, texts: dict[str, Texts]) -> None:
    full, *others = texts.items()
    for name, written in others:
        equal = [shared_prefix(one, other) for one, other in zip(full[1], written, strict=True)]
        whole = sum(number == TOKENS for number in equal)
        print(f"| {engine} | `{name}` | {whole} of {len(equal)} | {sum(equal) / len(equal):.1f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
