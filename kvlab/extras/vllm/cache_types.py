"""vLLM's quantised caches on a CPU beside kvlab's stores: `python -m kvlab.extras.vllm.cache_types [MODEL [PROMPTS]]`.

Each side is compared with its own full cache on the same prompts, by the text that it writes.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from kvlab.common.formatting import shared_prefix
from kvlab.core.cache import make_cache
from kvlab.core.method_spec import parse_spec
from kvlab.core.methods import make_method
from kvlab.extras.vllm.agreement import PLAIN, make_prompts, shape_of_engine
from kvlab.extras.vllm.engine import started_engine
from kvlab.extras.vllm.model_folder import model_folder
from kvlab.extras.vllm.own_run import run_alone
from kvlab.models.load import load_model

# what vLLM 0.32 accepts on a CPU
FULL = "auto"
TYPES = ("fp8_e4m3", "fp8_e5m2")
SPECS = ("packed:store=fp8", "packed:store=int8", "packed:store=kivi4")
LENGTH = 384
TOKENS = 24
Texts = list[tuple[int, ...]]


def main(model: str = "mini", prompts: str = "10") -> None:
    """Print a table: of the prompts how many texts are equal, and mean tokens before the first that differs."""
    loaded = load_model(model, "cpu", "float32")
    asked = make_prompts(loaded, int(prompts), LENGTH, TOKENS)
    # The texts that kvlab writes with a method's cache, and that vLLM writes by itself with a type of cache.
    ours = dict[str, Texts]()
    for spec in ("full", *SPECS):
        method, values = parse_spec(spec)
        caches = (make_cache(loaded, make_method(method, **values), 1.0) for _ in asked)
        runs = [run_alone(loaded, cache, one.ids, one.tokens) for cache, one in zip(caches, asked, strict=True)]
        ours[spec] = [run.tokens for run in runs]
    theirs = dict[str, Texts]()
    with model_folder(loaded) as folder:
        for cache_type in (FULL, *TYPES):
            shape = replace(shape_of_engine(PLAIN, asked), cache_type=cache_type)
            with started_engine(str(folder), shape) as engine:
                made = engine.generate([one.ids for one in asked], [one.tokens for one in asked], None)
            theirs[cache_type] = [one.tokens for one in made]
    print(f"| {model}: engine | cache | same text | tokens before the first that differs |\n|---|---|---|---|")
    for side, texts, full in (("kvlab", ours, "full"), ("vLLM", theirs, FULL)):
        for name, written in texts.items():
            if name != full:
                equal = sum(one == other for one, other in zip(texts[full], written, strict=True))
                shared = sum(map(shared_prefix, texts[full], written)) / len(written)
                print(f"| {side} | `{name}` | {equal} of {len(written)} | {shared:.1f} |")


if __name__ == "__main__":
    main(*sys.argv[1:3])
