"""The README's method and the notebook "Add a method in five minutes" run as they are printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kvlab.core.methods import registered

ROOT = Path(__file__).resolve().parents[2]


def test_the_readmes_method_registers(plugin: Callable[..., Path]) -> None:
    (code,) = re.findall(r"```python\n(from kvlab\.extend.*?)```", (ROOT / "README.md").read_text(), re.S)
    plugin(code, "shortest")
    assert "shortest" in registered()


def test_the_notebook_runs_from_top_to_bottom() -> None:
    cells = json.loads((ROOT / "docs" / "add-a-method.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^long-values +[\d,]+ events, mean output error 0\.\d+$", done.stdout, re.M), done.stdout
