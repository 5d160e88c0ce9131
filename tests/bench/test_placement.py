"""A benchmark of a model that accelerate put in two places."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvlab.bench.bench import Bench
from kvlab.bench.caches import fill
from kvlab.bench.device import Peaks
from kvlab.bench.models import open_model
from kvlab.bench.modes import MEASURE
from kvlab.bench.request import make_request
from kvlab.cli import commands
from kvlab.core.cache import make_cache
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.models import load
from tests.families import tiny_folder
from tests.models.test_placement import split


@pytest.mark.skipif(find_spec("accelerate") is None, reason="needs the extra `placement`")
def test_a_spread_model_is_measured_as_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Filled with the same states, whatever lies where, and timed in every mode that decodes."""
    folder = str(tiny_folder(tmp_path / "model"))
    whole = open_model(folder, device="cpu")
    monkeypatch.setattr(load, "device_map", lambda placement, device: split(whole.model))
    request = make_request(
        mode="decode", model=folder, choices=(MethodChoice(method="keepkv", budget=0.25),), contexts=(96,), repeats=1,
        steps=2, warmup=1, device="cpu", placement="auto",
    )  # fmt: skip
    apart = open_model(folder, device="cpu", hub=request.hub)
    assert {parameter.is_meta for parameter in apart.model.parameters()} == {True, False}
    caches = [make_cache(model.model, "keepkv", 0.25) for model in (whole, apart)]
    for model, cache in zip((whole, apart), caches, strict=True):
        fill(model, cache, batch=1, prompt=96)
    tables = [[layer.slots.keys for layer in cache.compressed_layers() if layer.slots is not None] for cache in caches]
    for ours, theirs in zip(*tables, strict=True):
        assert (ours == theirs).all()
    rows = list(MEASURE["decode"](Bench(apart, request, Peaks(1e9, 1e9))))
    assert {"keepkv", "full: kvlab"} <= {row.method for row in rows}
    assert all(row.status == "ok" for row in rows if row.method == "keepkv")


def test_what_cannot_be_spread_is_refused() -> None:
    with pytest.raises(UserError, match="shapes are created on one device"):
        make_request(mode="decode", model="shape:tiny", placement="auto")
    with pytest.raises(UserError, match="cannot be captured"):
        make_request(mode="decode", model="mini", placement="auto", capture="on")
    said = CliRunner().invoke(commands, ["bench", "--set", "placement=everywhere"])
    assert isinstance(said.exception, UserError) and "--set placement cannot be 'everywhere'" in str(said.exception)
