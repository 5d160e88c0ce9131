"""vLLM's quantised caches on a CPU beside kvlab's stores: `python -m kvlab.extras.vllm.cache_types [MODEL [PROMPTS]]`.

Each side is compared with its own full cache on the same prompts, by the text that it writes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from kvlab.common.formatting import shared_prefix
from kvlab.core.cache import make_cache
from kvlab.core.method_spec import parse_spec
from kvlab.core.methods import make_method
from kvlab.extras.vllm.agreement import PLAIN, Prompt, make_prompts, shape_of_engine
from kvlab.extras.vllm.engine import started_engine
from kvlab.extras.vllm.model_folder import model_folder
from kvlab.extras.vllm.own_run import run_alone
from kvlab.models.load import LoadedModel, load_model

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
    ours = {spec: of_kvlab(loaded, spec, asked) for spec in ("full", *SPECS)}
    with model_folder(loaded) as folder:
        theirs = {name: of_vllm(str(folder), name, asked) for name in (FULL, *TYPES)}
    print(f"| {model}: engine | cache | same text | tokens before the first that differs |\n|---|---|---|---|")
    for engine, texts, full in (("kvlab", ours, "full"), ("vLLM", theirs, FULL)):
        for name, written in texts.items():
            if name != full:
                print(f"| {engine} | `{name}` | {_words(texts[full], written)} |")


def of_kvlab(loaded: LoadedModel, spec: str, prompts: Sequence[Prompt]) -> Texts:
    """The texts that kvlab writes with a method's cache."""
    name, values = parse_spec(spec)
    caches = (make_cache(loaded, make_method(name, **values), 1.0) for _ in prompts)
    return [run_alone(loaded, cache, one.ids, one.tokens).tokens for cache, one in zip(caches, prompts, strict=True)]


def of_vllm(folder: str, cache_type: str, prompts: Sequence[Prompt]) -> Texts:
    """The texts that vLLM writes by itself with a type of cache."""
    shape = replace(shape_of_engine(PLAIN, prompts), cache_type=cache_type)
    with started_engine(folder, shape) as engine:
        made = engine.generate([one.ids for one in prompts], [one.tokens for one in prompts], None)
    return [one.tokens for one in made]


def _words(full: Texts, written: Texts) -> str:
    equal = sum(one == other for one, other in zip(full, written, strict=True))
    return f"{equal} of {len(full)} | {sum(map(shared_prefix, full, written)) / len(full):.1f}"


if __name__ == "__main__":
    main(*sys.argv[1:3])
