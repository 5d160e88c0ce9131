"""Start vLLM on a CPU with kvlab's worker, and generate."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvlab.extras.vllm.requirements import check_installed
from kvlab.extras.vllm.session import Request, Session

PAGE = 32  # tokens; pages of vLLM's CPU attention are multiples of it
WORKER = "kvlab.extras.vllm.worker.SlotWorker"
# In one process, so that the session is seen from here; without usage reports; threads as the machine gives them.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1",
}  # fmt: skip


@dataclass(frozen=True)
class EngineShape:
    """What of vLLM's settings matters here.

    window: longest text, prompt and answer. rows: requests of a step. step_tokens: tokens of a step, beyond which
    prompts are split. pages: pages of the engine; None: enough for all. cache_type: vLLM's `kv_cache_dtype`.
    """

    window: int
    rows: int = 8
    step_tokens: int | None = None
    pages: int | None = None
    cache_type: str = "auto"


@dataclass(frozen=True)
class Generated:
    """Token ids of an answer, prompt tokens that vLLM took from its prefix cache, and the request as it ended."""

    tokens: tuple[int, ...]
    reused: int
    request: Request | None


class Engine:
    """A running vLLM; `with started_engine(...) as engine`."""

    def __init__(self, folder: str, shape: EngineShape) -> None:
        from vllm import LLM

        self.llm: Any = LLM(
            folder,
            dtype="float32",
            enforce_eager=True,
            worker_cls=WORKER,
            block_size=PAGE,
            max_model_len=shape.window,
            max_num_seqs=shape.rows,
            # vLLM reserves one page for itself
            num_gpu_blocks_override=1 + (shape.pages or 2 * shape.rows * -(-shape.window // PAGE)),
            max_num_batched_tokens=shape.step_tokens or shape.rows * shape.window,
            enable_chunked_prefill=True,
            enable_prefix_caching=True,
            kv_cache_memory_bytes=2**30,
            disable_log_stats=True,
            skip_tokenizer_init=True,
            seed=0,
            kv_cache_dtype=shape.cache_type,
        )

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: Sequence[int],
        session: Session | None,
        *,
        reuse: bool = False,
    ) -> list[Generated]:
        """The likeliest tokens after each prompt, as many as `tokens` says, past end tokens too; prompts are served
        together.

        `reuse` lets requests take pages from vLLM's prefix cache.
        """
        from vllm import SamplingParams

        common = {"temperature": 0, "ignore_eos": True, "detokenize": False, "skip_reading_prefix_cache": not reuse}
        settings = [SamplingParams(max_tokens=number, **common) for number in tokens]
        Session.current = session
        try:
            outputs = self.llm.generate([{"prompt_token_ids": list(ids)} for ids in prompts], settings, use_tqdm=False)
        finally:
            Session.current = None
        known = {} if session is None else {**session.finished, **session.requests}
        made = []
        for one in outputs:
            name = one.request_id  # to which vLLM may have added a suffix
            keys = (key for key in known if key == name or key.startswith(f"{name}-"))
            request = known.get(next(keys, name))
            made.append(Generated(tuple(one.outputs[0].token_ids), one.num_cached_tokens or 0, request))
        return made

    def forget(self) -> None:
        """Empty vLLM's prefix cache."""
        self.llm.reset_prefix_cache()


@contextmanager
def started_engine(folder: str, shape: EngineShape) -> Iterator[Engine]:
    """vLLM with the model of a safetensors folder; raises UserError if vLLM is missing or another version."""
    check_installed()
    os.environ.update(ENVIRONMENT)
    assert Session.current is None
    # When vLLM 0.32 starts it looks into every object of every module, and numba's `llvmlite` has one that answers to
    # any name; what kvlab's compiled kernels import would end its start with an AttributeError.
    hidden = "llvmlite.binding.ffi"
    module = sys.modules.pop(hidden, None)
    try:
        engine = Engine(folder, shape)
    finally:
        if module is not None:
            sys.modules[hidden] = module
    try:
        yield engine
    finally:
        from vllm.distributed import cleanup_dist_env_and_memory

        engine.llm.llm_engine.engine_core.shutdown()
        del engine.llm
        gc.collect()
        cleanup_dist_env_and_memory()
