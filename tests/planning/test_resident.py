"""A plan against what a process of its own took of the host at most: everything resident, torch itself too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvlab.core.choice import MethodChoice
from kvlab.engine.out_of_memory import footprint_of
from kvlab.model_info.chat_template import ChatFormat
from kvlab.model_info.token_count import count_tokens
from kvlab.planning import Machine, find_model, make_plan, memory
from kvlab.planning.footprint import FULL
from kvlab.requests.compare import CompareRequest
from tests.planning.test_measured import SHAPES, held_by, model_of, work_for

# What the kernel counts for a child that has ended begins with what its parent held.
PEAK_OF_COMMAND = """
import atexit, sys
atexit.register(lambda: print(open("/proc/self/status").read(), file=sys.stderr))
from kvlab.cli import main
main()
"""
PLENTY = Machine("cpu", "cpu", 10**12, 10**12, 10**12)


@pytest.mark.skipif(
    sys.platform != "linux" or torch.version.cuda is not None, reason="what torch takes itself was measured on Linux"
)
def test_a_process_of_its_own_takes_what_was_planned(tmp_path: Path) -> None:
    """Of mini, whose weights are 20 MB: the logits of the prompt and what is kept of freed blocks are most of it."""
    prompt = "The old house on the hill has a red door and nobody lives there. " * 130
    request = CompareRequest(prompt=prompt, choices=(MethodChoice(method="zsmerge"),), max_new_tokens=3)
    (tmp_path / "prompt.txt").write_text(prompt)
    asked = ["--file", str(tmp_path / "prompt.txt"), "--methods", "zsmerge", "--new-tokens", "3", "--device", "cpu"]
    command = [sys.executable, "-P", "-c", PEAK_OF_COMMAND, "compare", *asked, "--out", str(tmp_path / "runs")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    taken = 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", said)[-1])
    tokens = count_tokens(prompt, ChatFormat("mini"))[0]
    plan = make_plan(request, tokens, find_model("mini"), footprint_of, PLENTY)
    assert plan.total == pytest.approx(taken, rel=0.1)


@pytest.mark.parametrize("name", SHAPES)
def test_what_was_freed_stays_with_the_process(name: str) -> None:
    """No phase has fewer freed blocks than one before, and each half of what it had alive beside weights and logits."""
    loaded, tokens = model_of(name)
    made = memory.phases(work_for(loaded, tokens, "full"), [("full", FULL, 1.0), ("h2o", held_by("h2o"), 0.2)], "cpu")
    freed = [next(part.bytes for part in phase.parts if part.name == "freed blocks") for phase in made]
    assert freed == sorted(freed)
    for phase, kept in zip(made, freed, strict=True):
        alive = [part.bytes for part in phase.parts if part.name in ("full cache", "shadow", "the probe")]
        assert kept >= sum(alive) // 2
