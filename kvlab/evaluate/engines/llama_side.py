"""Continue prompts with llama.cpp under several cache types, in an environment of its own: `llama_side.py JOB.json`.

The job holds `model` (GGUF file), `threads`, `steps`, `types` (ggml's numbers by name, the first the reference),
`prompts` (token ids) and `rows`, the file for one JSON line per prompt and type: mean KL(reference || type) in nats and
the share of equal likeliest tokens, while the reference's own likeliest tokens are read one by one. Imports nothing of
kvlab, which is not installed there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib


def main(job: dict[str, Any]) -> None:
    """Read every prompt with every type."""
    library = get_lib()
    model = library.llama_model_load_from_file(job["model"].encode(), library.llama_model_default_params())
    contexts = {name: opened(model, number, job) for name, number in job["types"].items()}
    for index, ids in enumerate(job["prompts"]):
        reference = given = None
        for name, context in contexts.items():
            found = continued(model, context, ids, job["steps"], given)
            if reference is None:
                reference, given = found, found.argmax(1).tolist()
                continue
            kl = (np.exp(reference) * (reference - found)).sum(1)
            row = {"index": index, "type": name, "kl": float(kl.mean())}
            row["agreement"] = float((reference.argmax(1) == found.argmax(1)).mean())
            with Path(job["rows"]).open("a", encoding="utf-8") as rows:
                rows.write(json.dumps(row) + "\n")


def opened(model: Any, number: int, job: dict[str, Any]) -> Any:
    """A context whose keys and values have this ggml type; quantised values need flash attention."""
    library = get_lib()
    settings = library.llama_context_default_params()
    longest = max(map(len, job["prompts"])) + job["steps"]
    settings.n_ctx = settings.n_batch = settings.n_ubatch = -(-longest // 256) * 256
    settings.n_threads = settings.n_threads_batch = job["threads"]
    settings.type_k = settings.type_v = number
    settings.flash_attn_type = 1
    context = library.llama_init_from_model(model, settings)
    if context == get_ffi().NULL:
        raise SystemExit(f"llama.cpp opens no context with cache type {number}.")
    return context


def continued(model: Any, context: Any, ids: list[int], steps: int, given: list[int] | None) -> np.ndarray:
    """Log probabilities (steps, V) after the prompt and each token, which are `given` or the likeliest."""
    library, ffi = get_lib(), get_ffi()
    library.llama_memory_clear(library.llama_get_memory(context), True)
    size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
    found, next_ids = [], ids
    for step in range(steps):
        tokens = ffi.new("llama_token[]", next_ids)
        if library.llama_decode(context, library.llama_batch_get_one(tokens, len(next_ids))):
            raise SystemExit("llama.cpp cannot decode.")
        logits = np.frombuffer(ffi.buffer(library.llama_get_logits_ith(context, -1), 4 * size), np.float32)
        logits = logits.astype(np.float64)
        top = logits.max()
        found.append(logits - top - np.log(np.exp(logits - top).sum()))
        next_ids = [int(logits.argmax()) if given is None else given[step]]
    return np.stack(found)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
