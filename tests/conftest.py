"""Shared by all tests: tiny models on disk, each made once."""

from __future__ import annotations

import gc
import os
import sqlite3
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from kvlab.models.load import LoadedModel

# The suite finds the same every time; `pytest --hypothesis-profile=explore` looks for what nobody has seen yet.
# Without a deadline: the time of one example says nothing on a busy machine.
settings.register_profile("repeatable", derandomize=True, max_examples=50, deadline=None)
settings.register_profile("explore", derandomize=False, print_blob=True, max_examples=200)
settings.load_profile("repeatable")

# Tests run side by side and their models are tiny: threads of each would only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Triton looks at this when it is imported, and anything that imports torch may do that.
os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/dev/nvidiactl").exists() else "1")


def pytest_configure(config: pytest.Config) -> None:
    """Rewrite assertions before workers start: each would do so for every file."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        from tests.rewriting import rewrite_once

        rewrite_once(config)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Files are still replaced in one step; that they outlive a loss of power, which fsync waits for, no test asks.

    Nor does SQLite wait, which would with each new index of runs and with the end of each connection.
    """

    class Unsynced(sqlite3.Connection):
        def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
            if sql == "PRAGMA journal_mode = WAL":
                super().execute("PRAGMA synchronous = OFF")
            return super().execute(sql.replace("synchronous = NORMAL", "synchronous = OFF"), *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Unsynced))
        yield


@pytest.fixture(scope="session", autouse=True)
def own_downloads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes what the user downloaded, but for those of the real model."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("KVLAB_REAL"):
            patch.setenv("KVLAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_tree_of_commands() -> Iterator[None]:
    """Typer makes all fifty commands anew for each one that a test runs, which takes most of its time."""
    from typer import testing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_get_command", cache(testing._get_command))
        yield


@pytest.fixture
def commands_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer commands that list and check tasks in this process, which has imported everything, not in a second one.

    That a second process answers is asked in tests/forms/test_compare_form.py.
    """
    from typer.testing import CliRunner

    from kvlab.cli import commands
    from kvlab.core.errors import UserError
    from kvlab.forms import prompt_files
    from kvlab.planning import choices

    def run_command(*words: str, given: str | None = None) -> CompletedProcess[str]:
        done = CliRunner().invoke(commands, list(words), input=given)
        if isinstance(done.exception, UserError):
            return CompletedProcess(words, 2, done.stdout, f"kvlab: {done.exception}\n")
        return CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    monkeypatch.setattr(choices, "run_command", run_command)
    monkeypatch.setattr(prompt_files, "run_command", run_command)


@pytest.fixture
def templates_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render chat templates in this process, which has imported transformers, not in one for each prompt.

    That a second process does is asked in tests/models/test_chat_template.py.
    """
    from kvlab.core.errors import UserError
    from kvlab.models.info import chat_template
    from kvlab.models.render import render_prompt
    from kvlab.requests.compare import ChatRequest

    def rendered_here(prompt: str, how: chat_template.ChatFormat, _: object) -> tuple[str | None, str]:
        try:
            return render_prompt(prompt, ChatRequest(**vars(how))), ""
        except UserError as error:
            return None, str(error)

    monkeypatch.setattr(chat_template, "_rendered", rendered_here)


@pytest.fixture
def gguf_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read GGUF files in this process, which has imported transformers, not in one for each file.

    That a second process does is asked in tests/models/test_gguf.py.
    """
    from kvlab.core.errors import UserError
    from kvlab.models.info import model_faults as gguf_files

    def described(file: Path, folder: Path, called: str) -> None:
        from kvlab.models.describe_gguf import describe

        try:
            describe(file, folder)
        except UserError as error:
            raise UserError(f"The GGUF file {called!r} cannot be loaded: {error}.") from None

    monkeypatch.setattr(gguf_files, "describe_file", described)


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte-level tokenizer, one token a byte."""
    from tests.families import tiny_folder

    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a tokenizer of 400 tokens, a folder that `kvlab.load_model` reads."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from kvlab.core.assets import asset_path
    from training.mini.tokenizer import train_tokenizer

    text = (asset_path("prompts/haystack") / "alice_in_wonderland.txt").read_text(encoding="utf-8")
    tokenizer = train_tokenizer([text[:60_000]], vocabulary_size=400)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    folder = tmp_path_factory.mktemp("models") / "tiny"
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> LoadedModel:
    """The same, loaded."""
    import torch

    from kvlab.models.load import load_model

    torch.set_num_threads(1)
    return load_model(str(tiny_folder), device="cpu")


def pytest_collection_finish() -> None:
    """What was imported stays: collections, one after each run of a page, need not look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # little that tests make is in cycles: a twentieth less processor time
