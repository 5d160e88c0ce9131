"""What people say of results: kept whole, changed under a lock, never mistaken for what was recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvlab.core.assets import project_root
from kvlab.core.errors import UserError
from kvlab.trace.user_labels import all_labels, change_labels, load_labels, save_answer

ADD_TAGS = """
import sys
from pathlib import Path
from kvlab.trace.user_labels import change_tags
root, who = sys.argv[1:]
for number in range(10):
    change_tags(Path(root), "one", add=[f"tag {who} {number}"])
"""


def test_two_processes_lose_no_tag(tmp_path: Path):
    environment = os.environ | {"PYTHONPATH": str(project_root())}
    lines = [[sys.executable, "-c", ADD_TAGS, str(tmp_path), str(who)] for who in range(2)]
    workers = [subprocess.Popen(line, env=environment) for line in lines]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    assert set(load_labels(tmp_path, "one").tags) == {f"tag {who} {number}" for who in range(2) for number in range(10)}


def test_an_answer_and_a_name_do_not_take_each_other_away(tmp_path: Path):
    change_labels(tmp_path, "one", name="Harbour", starred=True)
    save_answer(tmp_path, "one", "the key is 42 under the stone", "42", ["42"])
    change_labels(tmp_path, "one", note="seen")
    found = load_labels(tmp_path, "one")
    assert (found.name, found.starred, found.answer, found.note) == ("Harbour", True, "42", "seen")
    assert found.facts == ((11, 13),)


def test_fields_of_a_newer_kvlab_stay(tmp_path: Path):
    change_labels(tmp_path, "one", name="a")
    file = tmp_path / "labels" / "one.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"colour": "red"}))
    change_labels(tmp_path, "one", name="b")
    assert json.loads(file.read_text())["colour"] == "red"


def test_kinds_have_labels_of_their_own(tmp_path: Path):
    change_labels(tmp_path, "x", "evaluation", name="an evaluation")
    change_labels(tmp_path, "x", name="a comparison")
    assert {key: one.name for key, one in all_labels(tmp_path).items()} == {
        ("evaluation", "x"): "an evaluation", ("comparison", "x"): "a comparison",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tags": ("<script>",)}, "is not a valid tag"),
        ({"tags": ("a" * 41,)}, "is not a valid tag"),
        ({"name": "x" * 201}, "200"),
        ({"note": "\ud800"}, "an unpaired surrogate"),
    ],
)
def test_what_is_no_label_is_refused_and_changes_nothing(tmp_path: Path, changes: dict, named: str):
    change_labels(tmp_path, "one", name="kept")
    with pytest.raises(UserError, match=named):
        change_labels(tmp_path, "one", **changes)
    assert load_labels(tmp_path, "one").name == "kept"


def test_a_damaged_file_is_one_sentence_and_hides_no_other(tmp_path: Path):
    change_labels(tmp_path, "one", name="a")
    change_labels(tmp_path, "two", name="b")
    (tmp_path / "labels" / "one.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        load_labels(tmp_path, "one")
    assert list(all_labels(tmp_path)) == [("comparison", "two")]
