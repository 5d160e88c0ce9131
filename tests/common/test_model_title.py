"""A path of a model folder never stands where its name should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvlab.common.formatting import TITLES, model_title
from kvlab.models.info.packaged_models import PACKAGED


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("mini", "mini"),
        ("shape:llama3-8b", "shape:llama3-8b"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("/data/models/model-7b", "model-7b"),
        ("/data/models/model-7b/", "model-7b"),
        ("/model-7b", "model-7b"),
        ("./model-7b", "model-7b"),
        ("../model-7b", "model-7b"),
        ("~/model-7b", "model-7b"),
        ("runs/models/model-7b", "model-7b"),
        ("C:\\models\\model-7b", "model-7b"),
        ("/data/SmolLM2 135M (Q4_1)", "SmolLM2 135M (Q4_1)"),
        ("/home/a/hub/models--HuggingFaceTB--SmolLM2-135M/snapshots/12fd25f7", "HuggingFaceTB/SmolLM2-135M"),
        ("smollm2", "SmolLM2-135M-Instruct (Q4_1)"),
        ("/models/Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Llama-3.2-1B-Instruct (Q4_K_M)"),
        ("models/phi.f16.gguf", "phi (F16)"),
        ("plain.gguf", "plain"),
        ("", ""),
        ("/", "/"),
        (".", "."),
    ],
)
def test_the_title_of_a_model(name: str, title: str):
    assert model_title(name) == title
    assert model_title(title) == title


def test_titles_of_packaged_models_are_those_of_their_files():
    assert {name: model_title(Path(model.member).name) for name, model in PACKAGED.items()} == TITLES


def test_it_loads_no_torch():
    line = "import kvlab.common.formatting, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], check=False).returncode == 0
