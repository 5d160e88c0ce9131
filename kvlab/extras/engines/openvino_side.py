"""Answer prompts with OpenVINO GenAI, in an environment of its own: `openvino_side.py JOB.json`.

The job holds `model` (GGUF file or folder), `threads`, `mode` (`Mode.as_data` of `modes.py`), `rows` (a file of JSON
lines) and `prompts`: each `key`, `ids`, `new_tokens` and `to_the_end` (go on after the end token, to time steps); with
`scored` the row has `nll`, the prompt's own mean negative log-likelihood. A line per prompt is appended
to `rows` as soon as it is answered. Imports nothing of kvlab, which is not installed there.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

BLOCK = 32  # tokens of a block on a CPU


def main(job: dict[str, Any]) -> None:
    """Answer every prompt of the job with one pipeline."""
    room = max(len(prompt["ids"]) + prompt["new_tokens"] for prompt in job["prompts"])
    # Blocks for one prompt, which is read in one piece, and the mode's eviction.
    mode = job["mode"]
    settings = genai.SchedulerConfig()
    settings.num_kv_blocks = room // BLOCK + 2
    settings.max_num_batched_tokens = room + BLOCK
    settings.enable_prefix_caching = False
    settings.use_cache_eviction = mode["score"] is not None
    if settings.use_cache_eviction:
        crush = genai.KVCrushConfig(mode["crush_blocks"], genai.KVCrushAnchorPointMode.MEAN)
        settings.cache_eviction_config = genai.CacheEvictionConfig(
            mode["start"],
            mode["recent"],
            mode["kept"] - BLOCK * mode["crush_blocks"],  # KVCrush's blocks come on top
            getattr(genai.AggregationMode, mode["score"]),
            apply_rotation=mode["rotates"],
            snapkv_window_size=mode["window"],
            kvcrush_config=crush if mode["crush_blocks"] else None,
        )
    properties = {
        "INFERENCE_NUM_THREADS": job["threads"],
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": mode["dtype"],
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # else activations are rounded to 8 bits
    }
    pipeline = genai.ContinuousBatchingPipeline(job["model"], settings, "CPU", properties)
    loaded = peak_bytes()
    for number, prompt in enumerate(job["prompts"]):
        found = {"key": prompt["key"], **answer(pipeline, settings.num_kv_blocks, number, prompt)}
        memory = {"loaded_bytes": loaded, "peak_bytes": peak_bytes()}
        with Path(job["rows"]).open("a", encoding="utf-8") as rows:
            rows.write(json.dumps({**found, **memory, "version": str(genai.__version__)}) + "\n")


def answer(pipeline: Any, blocks: int, number: int, prompt: dict[str, Any]) -> dict[str, Any]:
    """One prompt's token ids, seconds and cache: `held_tokens` in blocks after the first step that evicts."""
    config = genai.GenerationConfig()
    config.max_new_tokens = prompt["new_tokens"]
    config.ignore_eos = prompt["to_the_end"]
    config.apply_chat_template = False
    if prompt.get("scored"):
        config.echo = True
        config.logprobs = 1
    begun = time.perf_counter()
    processor_begun = time.process_time()
    handle = pipeline.add_request(number, openvino.Tensor(np.array([prompt["ids"]], dtype=np.int64)), config)
    seconds = []
    processor = []
    used = []
    while pipeline.has_non_finished_requests():
        pipeline.step()
        seconds.append(time.perf_counter() - begun)
        processor.append(time.process_time() - processor_begun)
        used.append(pipeline.get_metrics().cache_usage / 100 * blocks * BLOCK)
    written = handle.read_all()
    ids = [int(token) for one in written for token in one.generated_ids]
    held = [round(tokens) for tokens in used if tokens > 0]  # the last step frees everything
    bytes_a_token = pipeline.get_metrics().kv_cache_size_in_bytes / (blocks * BLOCK)
    echoed = [float(number) for one in written for number in one.generated_log_probs][1 : len(prompt["ids"])]
    return {
        "ids": ids,
        "nll": -sum(echoed) / len(echoed) if prompt.get("scored") else None,
        "first_seconds": seconds[0],
        "seconds": seconds[-1],
        "first_processor_seconds": processor[0],
        "processor_seconds": processor[-1],
        "steps": len(seconds),
        "held_tokens": min(held, default=None),
        "held_bytes": round(min(held, default=0) * bytes_a_token),
    }


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
