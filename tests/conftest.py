"""Shared by all tests: a tiny model on disk, made once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The suite finds the same every time; `pytest --hypothesis-profile=explore` looks for what nobody has seen yet.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile("repeatable")

# Triton looks at this when it is imported, and anything that imports torch may do that.
os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/dev/nvidiactl").exists() else "1")


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Files are still replaced in one step; that they outlive a loss of power, which fsync waits for, no test asks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte-level tokenizer, one token a byte."""
    from tests.families import tiny_folder

    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny")
