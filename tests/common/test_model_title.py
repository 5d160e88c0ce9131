"""Titles of models: no folders, a GGUF file's type, hub names whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.common.model_title import TITLES, model_title
from kvlab.model_info.packaged_models import PACKAGED


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("mini", "mini"),
        ("smollm2", "SmolLM2-135M-Instruct (Q4_1)"),
        ("org/model-7B", "org/model-7B"),
        ("/models/org/model-7B/", "model-7B"),
        ("~/models/tiny", "tiny"),
        ("./tiny", "tiny"),
        ("/models/Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Llama-3.2-1B-Instruct (Q4_K_M)"),
        ("models/phi.f16.gguf", "phi (F16)"),
        ("plain.gguf", "plain"),
    ],
)
def test_titles(name: str, title: str) -> None:
    assert model_title(name) == title


def test_titles_of_packaged_models_are_those_of_their_files() -> None:
    assert {name: model_title(Path(model.member).name) for name, model in PACKAGED.items()} == TITLES
