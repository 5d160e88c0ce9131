"""What differs between runs is named, and what is the same is not."""

from __future__ import annotations

from pathlib import Path

from kvlab.trace import open_run
from kvlab.views.frames.labels import differing_settings
from tests.synthetic.runs import write_synthetic_run

SMALL = {"layers": 1, "heads": 1, "steps": 1, "prompt_tokens": 8, "level": "off"}


def test_only_what_differs_is_named(tmp_path: Path):
    given = (
        {"method": "full"},
        {"method": "h2o", "budget": 0.2, "hyper_parameters": {"recent": 8, "sink": 4}},
        {"method": "h2o", "budget": 0.4, "hyper_parameters": {"recent": 16, "sink": 4}, "device": "cuda:0"},
        {"method": "keepkv", "budget": 0.4, "hyper_parameters": {"rule": "bias"}},
    )
    paths = [write_synthetic_run(tmp_path / str(place), **(SMALL | one)) for place, one in enumerate(given)]
    table = differing_settings([open_run(path).record for path in paths])
    assert table.index.tolist() == ["method", "budget", "device", "h2o: recent"]
    assert table.loc["h2o: recent"].tolist() == ["8", "16", "–"]
    assert table.loc["device"].tolist() == ["none", "cuda:0", "none"]


def test_models_are_named_by_their_titles_where_these_differ(tmp_path: Path):
    record = open_run(write_synthetic_run(tmp_path, method="h2o", **SMALL)).record

    def told(*names: str) -> list[str]:
        made = [record.model_copy(update={"model": record.model.model_copy(update={"name": name})}) for name in names]
        return differing_settings(made).loc["model"].tolist()

    assert told("/data/one", "/data/two.Q4_1.gguf") == ["one", "two (Q4_1)"]
    assert told("/here/one", "/there/one") == ["/here/one", "/there/one"]


def test_one_run_differs_in_nothing(tmp_path: Path):
    record = open_run(write_synthetic_run(tmp_path, **SMALL)).record
    assert differing_settings([record]).empty and differing_settings([]).empty
