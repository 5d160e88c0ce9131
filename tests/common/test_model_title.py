"""A path of a model folder never stands where its name should."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvlab.common.model_title import model_title


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("mini", "mini"),
        ("shape:llama3-8b", "shape:llama3-8b"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("/data/models/smollm2", "smollm2"),
        ("/data/models/smollm2/", "smollm2"),
        ("/smollm2", "smollm2"),
        ("./smollm2", "smollm2"),
        ("../smollm2", "smollm2"),
        ("~/smollm2", "smollm2"),
        ("runs/models/smollm2", "smollm2"),
        ("C:\\models\\smollm2", "smollm2"),
        ("/data/SmolLM2 135M (Q4_1)", "SmolLM2 135M (Q4_1)"),
        ("/home/a/hub/models--HuggingFaceTB--SmolLM2-135M/snapshots/12fd25f7", "HuggingFaceTB/SmolLM2-135M"),
        ("", ""),
        ("/", "/"),
        (".", "."),
    ],
)
def test_the_title_of_a_model(name: str, title: str):
    assert model_title(name) == title
    assert model_title(title) == title


def test_it_loads_no_torch():
    line = "import kvlab.common.model_title, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], check=False).returncode == 0
