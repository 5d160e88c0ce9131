"""The data set of kept positions: those of each method alone, resumed, with checksums that hold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from dev.kept_positions import BUDGETS, main
from kvlab import load_model, make_cache


def test_the_data_set_holds_what_each_method_keeps_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "mini", "--prompts", "2", "--tokens", "200", "--out", str(tmp_path), "--methods"]
    main([*arguments, "h2o,adakv"])
    assert capsys.readouterr().out.count("rows") == 2
    prompts = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    loaded = load_model("mini", "cpu")
    frame = pq.read_table(tmp_path / "prompt-001.parquet").to_pandas()
    for method in ("h2o", "adakv"):
        for budget in BUDGETS:
            cache = make_cache(loaded, method, budget)
            with torch.inference_mode():
                loaded.model(torch.tensor([prompts[1]["ids"]]), past_key_values=cache)
            found = frame[(frame["method"] == method) & (frame["budget"] == budget)].set_index(["layer", "head"])
            for layer in cache.compressed_layers():
                for head, (row, valid) in enumerate(zip(layer.slots.position[0], layer.slots.valid[0], strict=True)):
                    held = row[valid].sort().values.tolist()
                    assert len(set(held)) == len(held)
                    assert found.loc[(layer.layer_idx, head), "positions"].tolist() == held
            assert found["positions"].map(len).mean() <= budget * len(prompts[1]["ids"]) + 1
    for line in (tmp_path / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
    (tmp_path / "prompt-001.parquet").unlink()
    main([*arguments, "h2o,adakv"])
    assert capsys.readouterr().out.count("rows") == 1, "what is there is kept"
    with pytest.raises(SystemExit, match="holds a set of other settings"):
        main([*arguments, "h2o"])
