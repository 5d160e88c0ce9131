"""The wheel's core in an environment with the base requirements alone: three methods beside plain transformers.

The environment holds the distributions that `pip install kvlab` would bring, found by walking their requirements, as
links to those of this environment; nothing is downloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
LAB_PACKAGES = (
    "streamlit",
    "plotly",
    "pandas",
    "pyarrow",
    "starlette",
    "psutil",
    "kaleido",
)

USE = """
import sys
import torch
from transformers import AutoModelForCausalLM
import kvlab

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
ids = torch.randint(5, 4000, (1, 96), generator=torch.Generator().manual_seed(0))
with torch.inference_mode():
    plain = model(ids).logits
expected = model.generate(ids, max_new_tokens=8, do_sample=False)
with kvlab.attach(model):
    for method in ("snapkv", "keepkv", "kvzip"):
        full, small = (kvlab.make_cache(model, method, budget) for budget in (1.0, 0.25))
        assert torch.equal(model.generate(ids, past_key_values=full, max_new_tokens=8, do_sample=False), expected)
        model.generate(ids, past_key_values=small, max_new_tokens=8, do_sample=False)
        assert small.memory().live_bytes < 0.4 * full.memory().live_bytes, method
with torch.inference_mode():
    assert torch.equal(model(ids).logits, plain)
print(sorted(name for name in sys.modules if name.startswith("kvlab.") and not name.startswith("kvlab.core")))
try:
    kvlab.compare
except ImportError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a process that sees the wheel and its base requirements alone."""
    folder = tmp_path_factory.mktemp("base")
    source, site = folder / "source", folder / "site"
    source.mkdir()
    site.mkdir()
    for name in ("kvlab", "pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    for name in ("app", "assets"):  # data of the dashboard, which the core does not need
        (source / name).mkdir()
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(folder), "."]
    subprocess.run(pip, cwd=source, check=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    required = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    for name in closure(required):
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    return os.environ | {"PYTHONPATH": str(site), "PYTHONNOUSERSITE": "1", "HF_HUB_OFFLINE": "1"}


def closure(required: list[str]) -> set[str]:
    """Names of the installed distributions that these requirements bring without any extra."""
    names: set[str] = set()
    pending = [Requirement(line) for line in required]
    while pending:
        requirement = pending.pop()
        if requirement.name in names or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        try:
            found = distribution(requirement.name)
        except PackageNotFoundError:
            continue  # for another platform
        names.add(requirement.name)
        pending += [Requirement(line) for line in found.requires or ()]
    return names


def run_alone(base: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process without the site-packages of this environment."""
    return subprocess.run(
        [sys.executable, "-S", "-P", *arguments], env=base, capture_output=True, text=True, timeout=120, cwd="/"
    )


def test_three_methods_run_on_a_plain_model(base: dict[str, str]) -> None:
    done = run_alone(base, "-c", USE, str(ROOT / "assets" / "mini"))
    assert done.returncode == 0, done.stderr
    lab, needs = done.stdout.strip().splitlines()
    assert needs.startswith("kvlab.compare needs ") and needs.endswith("pip install 'kvlab[lab]'.")
    assert lab == "[]", "the core imports a package of the lab"


def test_what_is_of_the_lab_is_not_there_and_a_command_says_what_to_install(base: dict[str, str]) -> None:
    for name in LAB_PACKAGES:
        assert run_alone(base, "-c", f"import {name}").returncode != 0, f"{name} came with the base requirements"
    done = run_alone(base, "-m", "kvlab", "compare", "--methods", "h2o")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "pip install 'kvlab[lab]'" in done.stderr
