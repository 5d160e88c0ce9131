"""The command line on real (tiny) runs: what it prints, and one clear sentence with status 2 for bad input."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kvlab.cli import COMMANDS, commands, main, replacements
from kvlab.core.stores import STORES
from kvlab.models.info.packaged_models import PACKAGED, PackagedModel
from kvlab.planning.plan import Machine
from kvlab.trace import open_run
from kvlab.trace.catalogue import list_comparisons, list_repeats
from tests.cli.running import PROMPT, kvlab
from tests.synthetic.runs import write_synthetic_run


def complaint(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """The one sentence a command with bad input leaves on standard error."""
    monkeypatch.setattr(sys, "argv", ["kvlab", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_every_command_has_help() -> None:
    for command, (_, line) in COMMANDS.items():
        assert command in kvlab("--help")
        assert "--help" in kvlab(command, "--help")
        assert line.endswith(".")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "h2o"], "kvlab run is now `kvlab compare --methods METHOD --budgets BUDGET`."),
        (["runs", "star", "it"], "kvlab runs star is now `kvlab runs label ID --star` or `--no-star`."),
        (["compare", "--score", "h2o"], "--score is now `--methods compose:"),
        (["compare", "--set", "chat"], "--set takes NAME=VALUE, not 'chat'; the names are field, "),
        (["compare", "--set", "moon=full"], "the names are field, "),
        (["compare", "--set", "depth=deep"], "--set depth cannot be 'deep': input should be a valid number"),
    ],
)
def test_what_went_names_what_to_use_now_and_settings_are_checked(arguments, sentence, capsys, monkeypatch) -> None:
    told = complaint(capsys, monkeypatch, *arguments)
    assert sentence in told and told.count("\n") == 1


def test_an_option_that_became_a_setting_is_still_taken(capsys, monkeypatch) -> None:
    told = complaint(capsys, monkeypatch, "compare", "--chat", "no", "--depth", "deep")
    assert "--chat is now `--set chat=VALUE`." in told and "--depth is now `--set depth=VALUE`." in told
    assert "--set depth cannot be 'deep': input should be a valid number" in told
    assert sys.argv[1:] == ["compare", "--set", "chat=no", "--set", "depth=deep"]


def test_every_replaced_name_is_gone() -> None:
    """Each command of the table is unknown now, and each option belongs to no command that it once had."""
    group = typer.main.get_command(commands)
    for words in replacements.COMMANDS:
        *path, name = words.split()
        parent = group.get_command(None, path[0]) if path else group
        assert parent.get_command(None, name) is None or words == "restore"


def test_methods_as_data() -> None:
    described = json.loads(kvlab("methods", "--json"))
    assert {"full", "h2o", "keepkv", "zsmerge"} <= {method["name"] for method in described}
    for method in described:
        for field in method["parameters"].get("properties", {}).values():
            assert field.get("description"), f"{method['name']} has a hyper-parameter without a description"
            assert "default" in field
    assert "keepkv" in kvlab("methods")


def test_compare_writes_the_expected_answer_and_the_facts_into_every_run(
    tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["compare", "--model", str(tiny_model_folder), "--prompt", PROMPT, "--methods", "h2o", "--new-tokens"]
    asked = [*arguments, "3", "--out", str(tmp_path), "--fact", "lazy dog", "--fact", "the band", "--answer", " plays "]
    for row in json.loads(kvlab(*asked, "--json")):
        record = open_run(Path(row["path"])).record
        assert record.answer == "plays"
        assert [PROMPT[start:stop] for start, stop in record.facts] == ["lazy dog", "the band"]
        assert (row["verdict"] == "right") == ("plays" in record.free_text.lower().split())
    for wrong, why in ((["--fact", "a cat"], "a cat"), (["--answer", ""], "answer is empty")):
        told = complaint(capsys, monkeypatch, *arguments, "3", "--out", str(tmp_path / "none"), *wrong)
        assert why in told
        assert len(told.strip().splitlines()) == 1
    assert not (tmp_path / "none").exists()


def test_compare_repeats_a_needle_and_goes_on_with_a_batch_that_was_stopped(
    tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ["compare", "--model", str(tiny_model_folder), "--prompt", PROMPT, "--methods", "h2o", "--new-tokens", "3"]
    arguments = [*common, "--out", str(tmp_path), "--repeats", "2"]
    (cell,) = json.loads(kvlab(*arguments, "--json"))
    assert (cell["n"], cell["right"] + cell["nearly"] + cell["wrong"]) == (2, 2)
    assert cell["share_low"] <= cell["share"] <= cell["share_high"]
    first, second = list_comparisons(tmp_path)[::-1]
    assert (first.number, second.number, first.batch) == (1, 2, second.batch)
    assert {run.level for run in second.runs} == {"light"}
    for run in second.runs:  # as if it had been stopped before the second
        shutil.rmtree(tmp_path / run.run_id)
    printed = kvlab("compare", "--resume", str(first.batch), "--out", str(tmp_path))
    assert "The full cache itself answers" in printed
    assert [entry.number for entry in list_repeats(tmp_path, str(first.batch))] == [1, 2]
    assert list_comparisons(tmp_path)[-1].comparison_id == first.comparison_id, "what was there was not run again"
    wrong = {
        "--answer": (["--answer", "x"], "plant their own"), "--depth": (["--set", "depth=2"], "depth 2"),
        "--vary": (["--set", "vary=colour"], "'colour'"), "--repeats": (["--repeats", "900"], "900"),
        "--wording": (["--set", "wording=9"], "wording 9"), "--resume": (["--resume", "nothing"], "or batch 'nothing'"),
    }  # fmt: skip
    for more, why in wrong.values():
        told = complaint(capsys, monkeypatch, *common, "--repeats", "2", "--out", str(tmp_path / "none"), *more)
        assert why in told
        assert len(told.strip().splitlines()) == 1


def test_a_reference_that_fails_is_said_over_the_printed_table(tiny_model_folder: Path, tmp_path: Path) -> None:
    arguments = ["compare", "--model", str(tiny_model_folder), "--prompt", PROMPT, "--methods", "h2o", "--new-tokens"]
    printed = kvlab(*arguments, "2", "--out", str(tmp_path), "--answer", "no such words")
    assert printed.index("the full cache's own answer is another one") < printed.index("h2o")


def test_compare_prints_every_run_and_writes_folders(tiny_model_folder: Path, tmp_path: Path) -> None:
    arguments = ["--model", str(tiny_model_folder), "--prompt", PROMPT, "--methods", "h2o,keepkv:rule=votes:sinks=2"]
    printed = kvlab("compare", *arguments, "--budgets", "0.3,24", "--new-tokens", "4", "--out", str(tmp_path), "--json")
    rows = json.loads(printed)
    assert rows[0]["label"] == "full"
    assert len(rows) == 5
    for row in rows:
        assert (row["prompts"], row["mean_tokens"]) == (1, 4)
        run = open_run(Path(row["path"]))
        assert run.record.status == "complete"
        assert row["status"] == "complete"
    assert open_run(Path(rows[-1]["path"])).record.hyper_parameters["rule"] == "votes"
    assert {open_run(Path(row["path"])).record.budget for row in rows[1:]} == {0.3, 24}


def test_a_text_in_a_file_is_compared(tiny_model_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    printed = kvlab(
        "compare", "--methods", "zsmerge", "--model", str(tiny_model_folder), "--file", str(file), "--new-tokens", "3",
        "--out", str(tmp_path / "runs"), "--level", "light",
    )  # fmt: skip
    assert "zsmerge 20 %" in printed
    assert "complete" in printed
    assert "one prompt; KL and agreement: means over 3 tokens" in printed
    assert "on cpu: " in printed and " threads, float32; one prompt" in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compare", "--methods", "h2o", "--prompt", ""], "prompt is empty"),
        (["compare"], "exactly one prompt"),
        (["compare", "--methods", "h2o", "--prompt", "a", "--file", "b"], "exactly one prompt"),
        (["compare", "--methods", "h2o", "--file", "no-such-file.txt"], "cannot be read"),
        (["compare", "--methods", "h2o", "--sample", "nope"], "no sample prompt 'nope'"),
        (["compare", "--methods", "h20", "--prompt", "a b c"], "no method called 'h20'"),
        (["compare", "--methods", "h2o", "--prompt", "a b c", "--budgets", "0"], "budget 0 cannot be used"),
        (["compare", "--methods", "h2o", "--prompt", "a b c", "--budgets", "abc"], "budget 'abc' cannot be used"),
        (["compare", "--methods", "h2o", "--prompt", "a b c", "--budgets", "1.5"], "budget 1.5 cannot be used"),
        (["compare", "--methods", "h2o", "--prompt", "a b c", "--new-tokens", "0"], "--new-tokens cannot be 0"),
        (["compare", "--methods", "h2o", "--prompt", "a b c", "--level", "most"], "--level cannot be 'most'"),
        (["compare", "--methods", "h2o:recent", "--prompt", "a b c"], "write name:parameter=value"),
        (["compare", "--methods", "h2o:recent=2", "--prompt", "a b c"], "'recent' of h2o cannot be 2"),
        (["compare", "--methods", "h2o", "--prompt", "a b c", "--model", "no/model"], "no model 'no/model'"),
        (["compare", "--methods", "h2o", "--prompt", "a b c", "--device", "cuda"], "no device 'cuda'"),
    ],
)
def test_bad_input_gets_one_sentence(
    arguments: list[str],
    sentence: str,
    tiny_model_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = [] if "--model" in arguments else ["--model", str(tiny_model_folder)]
    said = complaint(capsys, monkeypatch, *arguments, *model, "--out", str(tmp_path))
    assert sentence in said
    assert said.count("\n") == 1
    assert said.startswith("kvlab: ")
    assert not list(tmp_path.glob("*/run.json"))


def test_undecodable_and_huge_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, huge = tmp_path / "broken.txt", tmp_path / "huge.txt"
    broken.write_bytes(b"caf\xe9 ol\xe9")
    huge.write_bytes(b"a" * (2 * 1024 * 1024 + 1))
    assert "not UTF-8 text (byte 3 cannot be read)" in complaint(capsys, monkeypatch, "compare", "--file", str(broken))
    assert "at most 2,097,152" in complaint(capsys, monkeypatch, "compare", "--file", str(huge))


@pytest.mark.parametrize("budget", ["1", "1000000000"])
def test_extreme_budgets_work(budget: str, tiny_model_folder: Path, tmp_path: Path) -> None:
    arguments = ["--model", str(tiny_model_folder), "--prompt", PROMPT, "--budgets", budget, "--new-tokens", "3"]
    (row,) = json.loads(kvlab("compare", "--methods", "keepkv", *arguments, "--out", str(tmp_path), "--json"))
    live = open_run(Path(row["path"])).memory["live_slots"]
    assert (live == 1).all() if budget == "1" else live.max() > len(PROMPT)


def test_ctrl_c_leaves_a_run_marked_cancelled(tiny_model_folder: Path, tmp_path: Path) -> None:
    many = ["--methods", "h2o,zsmerge,keepkv,d2o,cam", "--budgets", "0.1"]
    command = [sys.executable, "-m", "kvlab", "compare", "--model", str(tiny_model_folder), "--prompt", PROMPT, *many]
    process = subprocess.Popen(
        [*command, "--new-tokens", "200", "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A suite started in the background ignores Ctrl-C, and what it starts would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/run.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(2)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said.decode()
    assert b"marked cancelled" in said
    statuses = [open_run(path.parent).record.status for path in tmp_path.glob("*/run.json")]
    # Runs of a shared pass stop together; none may claim to be running.
    assert set(statuses) <= {"complete", "cancelled"} and "cancelled" in statuses
    assert len(statuses) <= 6


def test_doctor_finds_no_fault_or_names_it() -> None:
    result = CliRunner().invoke(commands, ["doctor", "--json"], catch_exceptions=False)
    report = json.loads(result.stdout)
    assert report["self-test: same as plain attention"].startswith("ok")
    failed = [name for name, value in report.items() if str(value).startswith("FAILED")]
    assert (result.exit_code == 0) == (not failed)


def test_a_method_composed_on_the_command_line(tiny_model_folder: Path, tmp_path: Path) -> None:
    parts = ["--methods", "compose:score=snapkv:allocate=adakv:settle=zsmerge"]
    arguments = ["--model", str(tiny_model_folder), "--prompt", PROMPT, "--new-tokens", "3", "--out", str(tmp_path)]
    (row,) = json.loads(kvlab("compare", *parts, *arguments, "--json"))
    run = open_run(Path(row["path"]))
    assert run.record.hyper_parameters["settle"] == "zsmerge"
    assert "merge" in set(run.events["kind"])


@pytest.fixture
def three_runs(tmp_path: Path) -> Path:
    for method in ("full", "h2o", "keepkv"):
        write_synthetic_run(tmp_path, method=method, layers=1, heads=1, prompt_tokens=8, steps=1)
    return tmp_path


def test_doctor_examines_a_folder_of_runs_or_one_run(three_runs: Path) -> None:
    assert kvlab("doctor", str(three_runs)).count("sound") == 3
    (found,) = json.loads(kvlab("doctor", str(three_runs / "synthetic-h2o-25pc-0"), "--json"))
    assert found == {
        "run": "synthetic-h2o-25pc-0", "state": "complete", "problems": [], "unchecked": None, "verdict": "sound"
    }  # fmt: skip


def test_doctor_names_what_is_damaged_and_ends_with_status_1(three_runs: Path) -> None:
    one, two, three = sorted(path for path in three_runs.iterdir() if path.is_dir())
    (one / "arrays" / "keys-layer-000.safetensors").write_bytes(b"")
    (two / "run.json").write_text("{")
    content = json.loads((three / "run.json").read_text())
    del content["checksums"], content["record_checksum"]
    (three / "run.json").write_text(json.dumps(content | {"schema_version": 1, "versions": {"kvlab": "0.0.9"}}))
    result = CliRunner().invoke(commands, ["doctor", str(three_runs), "--json"], catch_exceptions=False)
    assert result.exit_code == 1
    found = {finding["run"]: finding["verdict"] for finding in json.loads(result.stdout)}
    assert found[one.name] == "arrays/keys-layer-000.safetensors is cut off or damaged."
    assert "run.json is cut off or damaged" in found[two.name]
    assert found[three.name] == "no checksums: recorded by kvlab 0.0.9"
    printed = CliRunner().invoke(commands, ["doctor", str(three_runs)], catch_exceptions=False)
    assert printed.exit_code == 1
    assert all(path.name in printed.stdout for path in (one, two, three))
    assert kvlab("doctor", str(three)).count("no checksums") == 1


def test_doctor_says_what_each_store_loses_of_a_models_keys(capsys, monkeypatch) -> None:
    report = json.loads(kvlab("doctor", "mini", "--json"))
    assert [*report] == [f"store {name}" for name, store in STORES.items() if store.packs]
    sentence = r"ok: layer \d loses [\d.]+ % of .*, [\d.]+ times as much .*"
    assert all(re.fullmatch(sentence, said) for said in report.values())
    assert "no-such-model" in complaint(capsys, monkeypatch, "doctor", "no-such-model")


def test_doctor_without_runs_there_is_one_sentence(capsys, monkeypatch, tmp_path: Path) -> None:
    assert "There is no run in" in complaint(capsys, monkeypatch, "doctor", str(tmp_path))


def test_what_is_too_big_is_refused_unless_forced(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = Machine("cpu", "a small machine", 10**5, 10**5)
    monkeypatch.setattr("kvlab.engine.out_of_memory.machine_of", lambda *_: small)
    arguments = ["compare", "--model", str(tiny_model_folder), "--prompt", PROMPT, "--methods", "h2o"]
    arguments += ["--new-tokens", "3", "--out", str(tmp_path)]
    said = complaint(capsys, monkeypatch, *arguments)
    assert "a small machine has 97.7 KiB free" in said
    assert "--force" in said
    assert not list(tmp_path.glob("*/run.json"))
    kvlab(*arguments, "--force")
    assert len(list(tmp_path.glob("*/run.json"))) == 1


@pytest.mark.parametrize("command", [["app"], ["compare"], ["runs", "bin"]])
def test_help_shows_no_type_beside_a_switch(command: list[str]):
    assert "<bool>" not in kvlab(*command, "--help")


def test_models_that_can_be_fetched_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PackagedModel, "file", lambda model: None)
    assert all(f"kvlab models get {name}" in kvlab("models", "--runs", str(tmp_path)) for name in PACKAGED)
