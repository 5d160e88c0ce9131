"""What methods do on a tiny model is what they declare, and pages that heads share lower the level."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvlab.checking.servability import check_servability
from kvlab.cli import commands
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method, registered
from kvlab.models.load import LoadedModel
from tests.cli.running import kvlab
from tests.conformance.variants import SHORT
from tests.planning.declared import Declared
from tests.synthetic.runs import write_synthetic_run

# Random keys are alike too rarely to be merged, or too often.
LOOSE = {"d2o": {}, "keepkv": {"threshold": -1.0}, "simcalkv": {"threshold": -1.0}, "kvmerger": {"loosest": -1.0}}


def test_every_method_does_what_it_declares(tiny: LoadedModel) -> None:
    for name in registered():
        method = make_method(name, **{**SHORT.get(name, {}), **LOOSE.get(name, {})})
        found, declared = check_servability(method, tiny, 0.3, tokens=48), Declared.from_method(method)
        seen = (found.held.log_mass, found.decodes, found.second_pass, "hidden states" in found.reads_prompt)
        assert seen == (declared.log_mass, declared.decodes, declared.second_pass, declared.hidden), name
        assert found.reads_decode or not declared.reads_decode, name
        assert found.held.merged_keys or not method.describe()["merges"] or name not in ("kvmerger", "zsmerge"), name


@pytest.mark.parametrize(
    ("spec", "level"),
    [
        ({"name": "full"}, 0),
        ({"name": "streaming-llm", "positions": "cache"}, 0),
        ({"name": "streaming-llm"}, 1),
        ({"name": "adakv", **SHORT["adakv"]}, 3),
        ({"name": "adakv", **SHORT["adakv"], "page": 4}, 1),
        ({"name": "kvzip", "page": 2}, 2),
        ({"name": "kvzip", "page": 4, "page_heads": "each"}, 3),
    ],
    ids=str,
)
def test_levels(tiny: LoadedModel, spec: dict, level: int) -> None:
    found = check_servability(make_method(**spec), tiny, 0.3, tokens=48)
    assert found.level == level
    assert spec.get("page_heads") == "each" or found.held.apart is False or "page" not in spec


def test_the_command_reads_recorded_runs_alone(tmp_path: Path) -> None:
    folder = write_synthetic_run(tmp_path, method="keepkv", budget=0.2, layers=2, heads=2, steps=6)
    (row,) = json.loads(kvlab("serve-check", "--run", str(folder), "--json"))
    assert row["level"] == 4 and row["decodes"] and row["method"] == row["title"]
    refused = CliRunner().invoke(commands, ["serve-check", "h2o", "--run", str(folder)])
    assert isinstance(refused.exception, UserError) and "alone" in str(refused.exception)


def test_the_command_prints_what_an_engine_must_hold(tiny_folder: Path) -> None:
    asked = ("serve-check", "h2o", "--model", str(tiny_folder), "--tokens", "48", "--json")
    (row,) = json.loads(kvlab(*asked))
    assert row["level"] == 1 and row["decodes"] and row["reads_decode"] == ["attention weights"]
