"""Walks over heads that several threads share."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvlab.core.contract.in_place import NEAREST, RESIDUAL, SIMILAR

KINDS = (NEAREST, SIMILAR, RESIDUAL)


def test_several_threads_walk_as_one_does() -> None:
    """In a process of its own: whose threads numba has taken once must not fork."""
    pytest.importorskip("numba", reason="the package numba is not installed: pip install kvlab[cpu]")
    script = f"from tests.cache.numba_threads_in_team import compare; [compare(kind) for kind in {KINDS}]"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() in (["the same"] * len(KINDS), ["no team here"] * len(KINDS))
