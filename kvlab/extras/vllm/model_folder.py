"""A model as a folder of safetensors, which is what vLLM loads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from kvlab.models.load import LoadedModel
from kvlab.models.sources import Source


@contextmanager
def model_folder(loaded: LoadedModel) -> Iterator[Path]:
    """The model's own folder; for a GGUF file or a hub name, a temporary one with the weights as they were loaded."""
    source = Source(loaded.name)
    if source.folder is not None and source.gguf is None:
        yield source.folder
        return
    with TemporaryDirectory(prefix="kvlab-vllm-") as folder:
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        yield Path(folder)
