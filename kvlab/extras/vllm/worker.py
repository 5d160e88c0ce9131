"""vLLM's CPU worker with kvlab's backend: name it as `worker_cls`."""

from __future__ import annotations

from typing import Any

from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.worker.cpu_worker import CPUWorker

from kvlab.extras.vllm.session import Session

# On a CPU vLLM ignores a backend that is selected by name, and uses what is registered as its own.
register_backend(AttentionBackendEnum.CPU_ATTN, "kvlab.extras.vllm.backend.SlotBackend")


class SlotWorker(CPUWorker):
    """Tells the session which requests a step holds, and lets it read prompts again after the step."""

    def execute_model(self, scheduler_output: Any) -> Any:
        """One step of the engine."""
        session = Session.current
        if session is not None:
            session.begin_step(scheduler_output, self.model_runner)
        output = super().execute_model(scheduler_output)
        if session is not None:
            session.end_step()
        return output
