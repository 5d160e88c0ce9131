"""Every registered view, drawn of generated runs and results in both themes: small, named, not empty, one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from kvlab.core.errors import UserError
from kvlab.core.plugins.origin import KVLAB
from kvlab.core.restore import Restore
from kvlab.evaluation.scoring.survival import Draws
from kvlab.papers.evaluations import origin_of
from kvlab.results import speed_tables
from kvlab.trace import Run, open_run
from kvlab.trace.catalogue import list_runs
from kvlab.trace.restore_results import RestoreResult, SearchResult
from kvlab.trace.user_labels import save_answer
from kvlab.views.base.view import Drawn, all_views, find_view
from kvlab.views.frames.prompt_spans import parse_spans
from tests.cli.running import kvlab
from tests.figures.test_quality import benchmark
from tests.pages.test_repeats_page import search_of, write_repeat
from tests.results.risk_rows import rows_of
from tests.results.test_setting_grid import grid
from tests.synthetic.runs import write_synthetic_run

MAX_BYTES = 2_000_000
MAX_CELLS = 768
METHODS = (("full", 1.0), ("h2o", 0.1), ("keepkv", 0.1), ("keepkv", 0.2), ("pool", 0.1))
# drawn of a real run with sparse attention, and of rows of a board's tasks
ELSEWHERE = {
    "steps_read": "tests/engine/test_recorded_sparse_attention.py",
    "public_board": "tests/views/test_public_board.py",
}
OF_BATCH = ("repeats", "lost_heads")
KVLABS = [name for name in all_views() if all_views().origin(name) == KVLAB]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Five runs over 1,500 tokens: more than the cells a picture may have on a side."""
    root = tmp_path_factory.mktemp("large")
    options: dict[str, Any] = {"layers": 3, "heads": 2, "prompt_tokens": 1500, "steps": 60}
    opened = [
        open_run(write_synthetic_run(root, method=method, budget=budget, **options)) for method, budget in METHODS
    ]
    record = opened[0].record
    save_answer(root, record.comparison_id, record.prompt, record.free_text[:12].strip(), [record.prompt[400:420]])
    return opened


def restored(run: Run) -> RestoreResult:
    """A search that restored the answer of a run by two tokens in one head."""
    found = SearchResult(
        search="tokens",
        returned=Restore(tokens=(40, 41), heads=((0, 1),)),
        restores=True,
        complete=True,
        tried=3,
        slots=2,
        text=" 48213",
        kl=(0.1, 0.05),
        attention=(0.3, 0.2),
    )
    return RestoreResult(
        run_id=run.record.run_id,
        comparison_id=run.record.comparison_id,
        label=run.record.label,
        answer="48213",
        expected=True,
        reruns=3,
        most_reruns=10,
        seconds=1.0,
        fact=(40, 41),
        reference=(" 48", "213"),
        reader=(0, 1),
        slots=100,
        text_before=" 48214",
        kl_before=(0.2, 0.9),
        tokens=(40, 41),
        attention_full=(0.4, 0.3),
        attention_before=(0.1, 0.0),
        found=(found,),
    )


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """The runs of the first of two prompts; what restores the answers of both is known."""
    root = tmp_path_factory.mktemp("batch") / "runs"
    for number in (1, 2):
        name = write_repeat(root, number)
        for entry in list_runs(root, comparison_id=name):
            if entry.method != "full":
                search_of(root, name, entry.run_id, ((0, 0),))
    return [open_run(root / entry.run_id) for entry in list_runs(root, comparison_id="night-01")]


@pytest.fixture(scope="module")
def results() -> dict[str, pd.DataFrame]:
    """Rows of a benchmark and of evaluations: of two methods over 40 prompts, with evictions counted, of a grid."""
    scored = rows_of({"h2o": [0, 8, 24], "snapkv": [0, 1, 24]}, 40)
    scored = scored.assign(depth=(scored["index"] % 2).astype(float), name="mine")
    scored.attrs["source"] = origin_of(scored)
    timed = benchmark().assign(scale=1, versions='{"torch": "2"}')
    timed.attrs["source"] = speed_tables.origin(timed)
    lengths = [timed, timed.assign(context=2048, median=timed["median"] / 2)]
    at_lengths = pd.concat(lengths, ignore_index=True)
    at_lengths.attrs["source"] = timed.attrs["source"]
    counted = Draws(evictions=3, kept=24, dropped=8, one_head=0.42, any_head=0.9, tokens=5, heads=4)
    followed = scored.assign(draws=json.dumps(vars(counted)), hidden_own=0.3, hidden_merged=0.1, unreachable=0.2)
    varied = grid(6).assign(name="mine")
    varied.attrs["source"] = origin_of(varied)
    placed = scored.assign(hidden_at=40 + scored["index"], settings='{"page":4}')
    placed.attrs["source"] = scored.attrs["source"]
    return {
        "speed": timed,
        "speed_by_length": at_lengths,
        "survival": followed,
        "setting_grid": varied,
        "phase": placed,
        "": scored,
    }


@pytest.fixture(scope="module")
def drawn(runs: list[Run], batch: list[Run], results: dict[str, pd.DataFrame]) -> dict[str, tuple[Drawn, Drawn]]:
    """Each view, light and dark; the run is one that merges."""
    spans = parse_spans("first:0-99;second:100-399", 1500)
    place = {"token": 40, "spans": spans, "span": (300, 304), "result": restored(runs[2])}
    found = {}
    for name in KVLABS:
        if name not in ELSEWHERE:
            view = find_view(name)
            several = batch if name in OF_BATCH else runs
            subject = {"run": runs[2], "runs": several, "rows": results.get(name, results[""])}[view.kind]
            found[name] = (view.draw(subject, "light", **place), view.draw(subject, "dark", **place))
    return found


def test_every_view_is_small_named_and_not_empty(drawn: dict[str, tuple[Drawn, Drawn]]) -> None:
    for name, pair in drawn.items():
        for one in pair:
            figure = one.figure
            assert len(figure.to_json()) < MAX_BYTES, name
            assert figure.layout.title.text and figure.layout.uirevision, name
            shown = [trace for trace in figure.data if trace.hoverinfo != "skip"]
            assert shown and len(one.frame), name
            for trace in shown:
                if trace.type == "heatmap":
                    assert max(trace.z.shape) <= MAX_CELLS and _is_finite(trace.z), name
                    leads = (figure.layout.meta or {}).get("go", {})
                    assert leads or find_view(name).kind == "rows", name
                    assert set(leads.values()) <= {"layer", "head", "step", "token"}, name
                elif trace.type == "image":
                    assert trace.source.startswith("data:image/png"), name
                elif trace.type != "sankey":
                    assert _is_finite(trace.y), (name, trace.name)
            if figure.data[0].type != "sankey":  # which has no axes
                assert figure.layout.xaxis.title.text and figure.layout.yaxis.title.text, name


def test_light_and_dark_differ_in_colours_only(drawn: dict[str, tuple[Drawn, Drawn]]) -> None:
    def without_colours(figure: go.Figure) -> object:
        text = re.sub(r'"(#[0-9A-Fa-f]{6}|data:image[^"]*|rgb\([\d, ]+\))"', '"#"', figure.to_json())
        return json.loads(text)

    for name, (light, dark) in drawn.items():
        assert light.figure.layout.font.color != dark.figure.layout.font.color, name
        assert without_colours(light.figure) == without_colours(dark.figure), name


def test_every_caption_is_one_line_and_every_view_has_its_table_page_and_file_name(
    drawn: dict[str, tuple[Drawn, Drawn]],
) -> None:
    for name, (light, _) in drawn.items():
        assert light.caption.endswith(".") and "\n" not in light.caption and "nan" not in light.caption, name
        assert light.caption in light.alt and light.title in light.alt
        assert (str(light.provenance) == "batch night, 2 prompts") == (name in OF_BATCH)
        assert str(light.provenance) and re.fullmatch(r"[\w .%:=+-]+", light.file_name), name
        assert light.to("csv").count(b"\n") > len(light.frame) - 1, name
        assert light.caption.split()[0].encode() in light.to("html"), name


def test_a_level_that_cannot_give_a_view_is_one_sentence(runs: list[Run], tmp_path: Path) -> None:
    light = open_run(write_synthetic_run(tmp_path, method="h2o", level="light"))
    with pytest.raises(UserError, match=r"level light, without single events: record it again with .*--level full"):
        find_view("timeline").draw(light)
    with pytest.raises(UserError, match="is of one run"):
        find_view("timeline").draw(runs)
    with pytest.raises(UserError, match=r"no view called 'timelime'.*timeline"):
        find_view("timelime")
    with pytest.raises(UserError, match=r"cannot be saved as 'doc'"):
        find_view("states").draw(runs[2]).save(tmp_path / "states.doc")


def test_the_command_lists_views_and_writes_one(runs: list[Run], tmp_path: Path) -> None:
    folder = str(runs[2].path)
    assert all(name in kvlab("view", folder) for name in KVLABS)
    file = tmp_path / "states.csv"
    told = kvlab("view", folder, "states", "--layer", "0", "--head", "1", "--to", str(file))
    assert "of the text" in told and list(pd.read_csv(file).columns)[:2] == ["step", "unseen"]


def _is_finite(values: Any) -> bool:
    try:
        return bool(np.isfinite(np.asarray(values, float)).any())
    except (TypeError, ValueError):
        return len(values) > 0


def test_a_view_of_what_was_not_measured_is_one_sentence(
    runs: list[Run], batch: list[Run], results: dict[str, pd.DataFrame]
) -> None:
    scored = results[""]
    for name, subject, place, told in (
        ("speed", scored, {}, "of an evaluation"),
        ("speed", results["speed"], {"measure": "prefill"}, "no prefill"),
        ("speed", results["speed"], {"measure": "joy"}, "no measure 'joy'"),
        ("speed_by_length", results["speed"], {}, "at one length only"),
        ("risk_by_budget", scored, {"by": "kl"}, "No row has a KL"),
        ("repeats", runs, {}, "of one prompt"),
        ("lost_heads", runs, {}, "restored yet"),
        ("fact_by_head", batch[0], {}, "recorded at level light"),
    ):
        with pytest.raises(UserError, match=told):
            find_view(name).draw(subject, **place)


def test_growth_is_the_power_of_the_length(results: dict[str, pd.DataFrame]) -> None:
    """A rate that halves where the length is four times is a cost that grows with its square root."""
    frame = find_view("speed_by_length")(results["speed_by_length"])
    assert frame.groupby("label")["growth"].first().dropna().to_dict() == {"full": 0.5, "h2o 20 %": 0.5}
    assert frame["growth"].isna().sum() == 2  # keepkv was measured at no length


def test_the_command_draws_results_by_their_name(results: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    for folder, name, rows in (("eval/mine", "part-000000", results[""]), ("bench", "fast", results["speed"])):
        (tmp_path / folder).mkdir(parents=True)
        plain = pd.DataFrame(rows.drop(columns="name").to_dict("list"))  # its source is no JSON
        plain.to_parquet(tmp_path / folder / f"{name}.parquet", index=False)
    file = tmp_path / "risk.csv"
    told = kvlab("view", "mine", "risk_by_budget", "--runs", str(tmp_path), "--to", str(file))
    assert "Smallest safe budget: h2o" in told
    assert pd.read_csv(file)["changed"].tolist() == [0, 8, 24, 0, 1, 24]
    assert "h2o 20 %" in kvlab("view", "fast", "speed", "--runs", str(tmp_path))
    for name in ("needles", "setting_grid", "risk_by_budget"):
        with pytest.raises(UserError, match=f"of a benchmark: {name} is drawn of an evaluation's"):
            kvlab("view", "fast", name, "--runs", str(tmp_path))
    with pytest.raises(UserError, match=r"no evaluation or benchmark 'slow'.*there are fast, mine"):
        kvlab("view", "slow", "speed", "--runs", str(tmp_path))
