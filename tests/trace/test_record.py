"""A record that contradicts itself, its folder or what was recorded is refused in one sentence; a sound one is not."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.core.errors import UserError
from kvlab.trace import catalogue, open_run
from kvlab.trace.record import read_record, write_record
from kvlab.trace.schema import RunRecord
from tests.synthetic.runs import write_synthetic_run

SMALL = {"layers": 2, "heads": 2, "prompt_tokens": 12, "steps": 2}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic_run(tmp_path_factory.mktemp("runs"), **SMALL)


def changed(sound: Path, root: Path, changes: dict[str, Any]) -> Path:
    """A copy with an unsealed `run.json`, as older kvlabs wrote it, in which some fields say something else."""
    path = Path(shutil.copytree(sound, root / sound.name))
    content = json.loads((path / "run.json").read_text())
    for name in ("record_checksum", "checksums"):
        del content[name]
    content["schema_version"] = 1
    for name, value in changes.items():
        place = content
        *folders, last = name.split(".")
        for folder in folders:
            place = place[folder]
        place[last] = value
    (path / "run.json").write_text(json.dumps(content))
    return path


def test_the_unsealed_copy_itself_opens(sound: Path, tmp_path: Path):
    run = open_run(changed(sound, tmp_path, {}), strict=True)
    assert len(run.steps) == 3 * 2 * 2
    assert run.keys(1, 1)[0].shape == (14, 32)


def test_a_second_passs_seconds_are_read_by_their_former_name(sound: Path, tmp_path: Path):
    path = changed(sound, tmp_path, {})
    content = json.loads((path / "run.json").read_text())
    del content["seconds_second_pass"]
    (path / "run.json").write_text(json.dumps(content | {"seconds_rehearse": 1.5}))
    assert read_record(path).seconds_second_pass == 1.5


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "schema_version": [0, -1, 999.5, 1.0, True, "1", None, [], 3, 99, 10**4000],
        "run_id": ["another", "", ".", "..", "../../etc", "/etc", "a/b", "a\\b", "a\x00b", None, 7, "x" * 300],
        "comparison_id": ["../x", "", "..", None],
        "created": ["", "yesterday", "2026-13-45", "2026-01-01T00:00:00", "0001-01-01T00:00:00+23:59", 5, None],
        "status": ["", "done", None],
        "budget": [0, -1, -0.5, 1.5, 2**63, 10**400, 1e400, "a fifth", None, [0.2]],
        "prompt_tokens": [-1, 11, 13, 2**40, 12.5, "12", None],
        "max_new_tokens": [-1, 0, 1, 2**70, None],
        "compress_every": [0, -3],
        "seed": [2**64, -(2**63) - 1],
        "worker_pid": [-1, 10**30, "1"],
        "sliding_layers": [[2], [-1], 1],
        "force_keep": [[12], [-1]],
        "model.num_hidden_layers": [0, -1, 1, 3, 10**6, 10**30, None, 2.5],
        "model.num_key_value_heads": [0, -2, 1, 3, 4, 10**30],
        "model.num_attention_heads": [0, -4, 1, 3, 5],
        "model.head_dim": [0, -32, 16, 64, 10**9],
        "model": [None, {}, []],
        "an_unknown_field": [1],
        "checksums": [{"../run.json": "0" * 64}, {"a/b/c.parquet": "0" * 64}, {"parts.json": "no hash"}, 5],
    }.items(),
)
def test_a_contradiction_is_one_sentence(sound: Path, tmp_path: Path, name: str, values: list):
    for number, value in enumerate(values):
        path = changed(sound, tmp_path / str(number), {name: value})
        with pytest.raises(UserError) as refused:
            pytest.fail(f"{name} {value!r} was read as {open_run(path).record}")
        assert re.fullmatch(r"[^\n]{20,600}\.", str(refused.value)), value
        assert str(path) in str(refused.value), value


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"null", b"[]", b"7", b'"run"', b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe\x00", b"9" * 10_000,
        b'{"schema_version": NaN}', b'{"schema_version": 1, "prompt": "\\ud800"}', b'{"schema_version": 1}',
        b"PAR1" + bytes(1000),
    ],
    ids=range(14),
)  # fmt: skip
def test_what_is_no_record_is_one_sentence(sound: Path, tmp_path: Path, text: bytes):
    path = changed(sound, tmp_path, {})
    (path / "run.json").write_bytes(text)
    with pytest.raises(UserError, match=r"run\.json .*: copy the folder again, or record the run again\.$"):
        open_run(path)


@pytest.mark.parametrize("value", ["\ud800", {"deep": None}, float("nan")])
def test_what_json_can_say_and_no_run_holds_is_refused(sound: Path, tmp_path: Path, value: Any):
    if isinstance(value, dict):
        for _ in range(500):
            value = {"deep": value}
    path = changed(sound, tmp_path, {"hyper_parameters": {"recent": value}})
    with pytest.raises(UserError, match="cut off or damaged"):
        open_run(path)


def test_a_whole_changed_record_is_told_by_its_own_checksum(sound: Path, tmp_path: Path):
    path = Path(shutil.copytree(sound, tmp_path / sound.name))
    text = (path / "run.json").read_text()
    assert '"seed": 0' in text
    (path / "run.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(UserError, match="was changed after it was written"):
        read_record(path)
    (path / "run.json").write_text(json.dumps(json.loads(text)))
    assert read_record(path) == read_record(sound), "spaces and line feeds say nothing"


@settings(max_examples=25, deadline=None)
@given(prompt=st.text(), text=st.text(), seconds=st.none() | st.floats(0, 1e300), values=st.lists(st.floats()))
def test_every_record_that_can_be_written_is_read_as_it_was(
    sound: Path, tmp_path_factory: pytest.TempPathFactory, prompt: str, text: str, seconds: float | None, values: list
):
    path = tmp_path_factory.mktemp("r") / sound.name
    fields = {"prompt": prompt, "free_text": text, "seconds_prefill": seconds, "hyper_parameters": {text: values}}
    record = RunRecord.model_validate(read_record(sound).model_dump() | fields)
    write_record(path, record)
    finite = [value if abs(value) < float("inf") else None for value in values]
    assert read_record(path) == record.model_copy(update={"hyper_parameters": {text: finite}})


def test_a_run_folder_may_be_named_through_a_link_or_a_dot(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "latest").symlink_to(sound)
    monkeypatch.chdir(sound)
    assert open_run(tmp_path / "latest").record == open_run(".").record == open_run(sound).record


def test_a_copy_under_another_name_says_whose_record_it_holds(sound: Path, tmp_path: Path):
    shutil.copytree(sound, tmp_path / "renamed")
    with pytest.raises(UserError, match=f"is the record of the run {sound.name}, not of renamed"):
        open_run(tmp_path / "renamed")
    assert len(catalogue.rebuild(tmp_path)) == 1
