"""Named settings: every hyper-parameter of every method is a published value with its source, or has a reason."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

import kvlab
from kvlab.core.contract.method import Method
from kvlab.core.contract.preset import Preset
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method, registered

PACKAGE = Path(kvlab.__file__).parent
WITHOUT_PAPER = {"full", "packed", "sparse", "window", "random", "compose"}  # nobody published settings of these
OWN = {"exactmerge", "exactmerge2"}
METHODS = [method for name, method in registered().items() if name not in WITHOUT_PAPER]
PRESETS = [(method, name) for method in METHODS for name in method.presets]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_each_hyper_parameter_is_published_or_has_a_reason(method: type[Method]) -> None:
    published = method.presets["paper"].values if method.name not in OWN else {}
    for name, field in _own_fields(method).items():
        if name in published:
            differs = [preset for preset in method.presets.values() if _differs(name, field.default, preset)]
            if differs:
                assert method.reasons.get(name, "").strip(), f"{method.name}.{name}: why not {differs[0].about}?"
        else:
            assert method.reasons.get(name, "").strip(), f"{method.name}.{name}: where does the default come from?"
    unknown = set(method.reasons) - set(method.model_fields)
    assert not unknown, f"{method.name} gives reasons for {unknown}, which it does not have"


def _own_fields(method: type[Method]) -> dict[str, FieldInfo]:
    """Without what every method has: how its slots are held."""
    return {name: field for name, field in method.model_fields.items() if name not in Method.model_fields}


def _differs(name: str, default: object, preset: Preset) -> bool:
    return name in preset.values and _plain(preset.values[name][0]) != _plain(default)


def _plain(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize(("method", "name"), PRESETS, ids=lambda part: part if isinstance(part, str) else part.name)
def test_a_preset_can_be_asked_for_and_changed(method: type[Method], name: str) -> None:
    preset = method.presets[name]
    assert preset.about.strip() and set(preset.values) <= set(method.model_fields)
    assert all(source.strip() for _, source in preset.values.values()), "every value says where it comes from"
    made = make_method(method.name, preset=name)
    for field, (value, _) in preset.values.items():
        assert _plain(getattr(made, field)) == _plain(value)
    assert not made.differences(name)
    made.pipeline()
    json.dumps(method.describe())
    for field, information in method.model_fields.items():
        if isinstance(information.default, bool):
            changed = make_method(method.name, preset=name, **{field: getattr(made, field)})
            assert changed == made


def test_departures_name_the_papers_value() -> None:
    ours = make_method("gvote", preset="paper", samples=3)
    assert ours.differences() == {"samples": make_method("gvote", preset="paper").samples}


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(UserError, match="gvote has no preset 'papre'; it has: default, paper"):
        make_method("gvote", preset="papre")
    with pytest.raises(UserError, match="compose has no preset"):
        make_method("compose", preset="paper")


def test_a_new_file_with_register_is_known_everywhere(tmp_path: Path) -> None:
    """A method in a file of its own, without a paper, in a copy of the package: listed, described and run."""
    shutil.copytree(PACKAGE, tmp_path / "kvlab", ignore=shutil.ignore_patterns("node_modules"))
    (tmp_path / "assets").symlink_to(PACKAGE.parent / "assets")
    text = (PACKAGE / "core" / "methods" / "eviction" / "window.py").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.strip().startswith("paper:")]
    source = "\n".join(lines).replace("class Window", "class Newest").replace('= "window"', '= "newest"')
    (tmp_path / "kvlab" / "core" / "methods" / "eviction" / "newest.py").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "kvlab", "methods"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "newest" in done.stdout


def test_keepkvs_code_splits_layers_as_its_authors_do() -> None:
    """Written out from their configuration: .2 of a layer recent, alike everywhere, the rest along a cosine to .8."""
    layers, total = 12, 12 * 1000
    decay = [0.2 * (math.cos(math.pi * layer / layers) + 1) / 2 + 0.8 for layer in range(layers)]
    shares = [0.2 + 0.8 * each for each in decay]
    expected = [share / sum(shares) * total for share in shares]
    allocate = make_method("keepkv", preset="code").pipeline().allocate
    given = allocate.layer_budgets(1000, 10_000, layers)
    assert sum(given) == total
    assert max(abs(ours - theirs) for ours, theirs in zip(given, expected, strict=True)) <= 1
