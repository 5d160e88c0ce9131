"""Time prompts with one of kvlab's methods, in a process of its own: `python -m kvlab.extras.engines.kvlab_side JOB`.

The job is that of `openvino_side.py`, with `mode` as `spec` and `budget`; every text is written to its last token.
"""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

from kvlab.core.cache import make_cache
from kvlab.core.method_spec import parse_spec
from kvlab.core.methods import make_method
from kvlab.models.load import load_model


def main(job: dict[str, Any]) -> None:
    """Read and continue every prompt of the job; a line per prompt is appended to its rows."""
    torch.set_num_threads(job["threads"])
    loaded = load_model(job["model"], "cpu")
    loaded_bytes = peak_bytes()
    name, values = parse_spec(job["mode"]["spec"])
    for prompt in job["prompts"]:
        cache = make_cache(loaded, make_method(name, **values), job["mode"]["budget"])
        ids = []
        seconds = []
        processor = []
        unread = prompt["ids"]
        with torch.inference_mode():
            cache.expect(len(unread))
            begun = time.perf_counter()
            processor_begun = time.process_time()
            for _ in range(prompt["new_tokens"]):
                read = torch.tensor([unread])
                logits = loaded.model(read, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
                unread = [int(logits[0, -1].argmax())]
                ids += unread
                seconds.append(time.perf_counter() - begun)
                processor.append(time.process_time() - processor_begun)
            held = cache.memory()
        found = {"key": prompt["key"], "ids": ids, "steps": len(seconds)}
        found |= {"first_seconds": seconds[0], "seconds": seconds[-1]}
        found |= {"first_processor_seconds": processor[0], "processor_seconds": processor[-1]}
        found |= {"held_tokens": round(held.live_slots), "held_bytes": held.allocated_bytes}
        memory = {"loaded_bytes": loaded_bytes, "peak_bytes": peak_bytes()}
        with Path(job["rows"]).open("a", encoding="utf-8") as rows:
            rows.write(json.dumps({**found, **memory}) + "\n")


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
