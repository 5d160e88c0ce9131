"""Continue prompts with llama.cpp under one type of cache, in an environment of its own: `llama_side.py JOB.json`.

The job holds `model` (GGUF file), `threads`, `type` (a name of ggml's types), `flash` (whether attention is fused,
which quantised values need), `tokens` to generate, `prompts` (token ids) and `rows`, the file for a JSON list of the
likeliest token ids after each prompt. Needs xllamacpp, a wheel of llama.cpp; imports nothing of
kvlab, which is not installed there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import xllamacpp


def main(job: dict[str, Any]) -> None:
    """Continue every prompt."""
    settings = xllamacpp.CommonParams()
    settings.model.path = job["model"]
    settings.n_ctx = max(map(len, job["prompts"])) + job["tokens"] + 32
    settings.n_parallel = 1
    settings.warmup = False
    settings.cpuparams.n_threads = job["threads"]
    fused = xllamacpp.llama_flash_attn_type
    settings.flash_attn_type = (
        fused.LLAMA_FLASH_ATTN_TYPE_ENABLED if job["flash"] else fused.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    settings.cache_type_k = settings.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{job['type'].upper()}")
    server = xllamacpp.Server(settings)
    asked = {"n_predict": job["tokens"], "temperature": 0, "n_probs": 1, "ignore_eos": True, "cache_prompt": False}
    found = [server.handle_completions({**asked, "prompt": ids})["choices"][0] for ids in job["prompts"]]
    texts = [[one["id"] for one in choice["logprobs"]["content"]] for choice in found]
    Path(job["rows"]).write_text(json.dumps(texts), encoding="utf-8")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
