"""Assertion rewriting of all test files, done once before the workers of pytest-xdist start.

Each worker collects every test. In a clean clone each would rewrite the assertions of all files, which takes as long as
the rest of the collection. pytest reads rewritten modules from `__pycache__`, so they are written there first.
The functions of pytest used here are private; if they change, workers rewrite for themselves as before.
"""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

TESTS = Path(__file__).parent


def rewrite_once(config: pytest.Config) -> None:
    """Write every rewritten test module that is missing or out of date, in two processes."""
    files = sorted([*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py")])
    halves = [multiprocessing.get_context("fork").Process(target=write, args=(files[k::2], config)) for k in range(2)]
    for half in halves:
        half.start()
    for half in halves:
        half.join()


def write(files: list[Path], config: pytest.Config) -> None:
    for file in files:
        cached = rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)
        if rewrite._read_pyc(file, cached) is None and os.access(file.parent, os.W_OK):
            cached.parent.mkdir(exist_ok=True)
            stat, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stat, cached)
