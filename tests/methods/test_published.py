"""Published settings stand in TOML files: each is a method's, its texts are used, and a bad one is refused."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from kvlab.core.contract.published_settings import SHARED, Preset, published
from kvlab.core.errors import UserError
from kvlab.core.methods import registered

FILES = sorted(path for path in SHARED.parents[1].glob("*/*.toml") if path != SHARED)
GOOD = """
paper = "https://example.org"

[texts]
file = "the file."

[presets.paper]
about = "tables"
beyond = "{file} No more."

[presets.paper.values]
window = [32, "section 5.3"]
share = [1.0, "{file}"]
shares = [[0.0, 0.5], "section 6"]
fit = [true, "section 7"]

[presets.code]
about = "the code"
like = "paper"

[presets.code.values]
share = [0.5, "run.py"]
kernel = [7, "run.py"]

[reasons]
window = "from {file}"
"""


def write(folder: Path, text: str) -> str:
    """The path of the module that the file is beside."""
    (folder / "mine.toml").write_text(text, encoding="utf-8")
    return str(folder / "mine.py")


def test_a_file_says_what_python_would(tmp_path: Path) -> None:
    values = {
        "window": (32, "section 5.3"),
        "share": (1.0, "the file."),
        "shares": ((0.0, 0.5), "section 6"),
        "fit": (True, "section 7"),
    }
    changed = values | {"share": (0.5, "run.py"), "kernel": (7, "run.py")}
    paper, presets, reasons = published(write(tmp_path, GOOD))
    assert (paper, reasons) == ("https://example.org", {"window": "from the file."})
    assert presets == {"paper": Preset("tables", values, "the file. No more."), "code": Preset("the code", changed)}
    for preset, expected in zip(presets.values(), (values, changed), strict=True):
        assert list(preset.values) == list(expected), "settings are shown in the file's order"
        for (value, _), (wanted, _) in zip(preset.values.values(), expected.values(), strict=True):
            assert type(value) is type(wanted)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('paper = "https', "is not valid TOML: "),
        ('[presets.paper]\nbeyond = "x"', "presets.paper.about "),
        ('[presets.paper]\nabout = ""', "presets.paper.about "),
        ('[presets.paper]\nabuot = "x"\nabout = "x"', "presets.paper.abuot "),
        ('preset.paper.about = "x"', "preset "),
        ('[presets.paper]\nabout = "x"\nvalues.window = 32', "presets.paper.values.window cannot be 32: .* its source"),
        ('[presets.paper]\nabout = "x"\nvalues.window = [32]', "presets.paper.values.window .* its source"),
        ('[presets.paper]\nabout = "x"\nvalues.window = [32, " "]', "presets.paper.values.window .* its source"),
        ('[presets.paper]\nabout = "x"\nvalues.window = [3, 2]', "presets.paper.values.window .* its source"),
        ('[presets.paper]\nabout = "x"\nvalues.window = [32, "{fil}"]', r"presets.paper.values.window .* word {fil}"),
        ('[presets.paper]\nabout = "x"\nbeyond = "{}"', r"presets.paper.beyond has the word {}"),
        ('[presets.paper]\nabout = "x"\nlike = "code"\n[presets.code]\nabout = "x"', "presets.paper is like 'code'"),
        ('[reasons]\nwindow = "{shared_head}"', r"reasons.window has the word {shared_head}"),
        ("[reasons]\nwindow = 32", "reasons.window cannot be 32"),
    ],
)
def test_a_bad_file_is_one_sentence_that_names_it_and_the_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        published(write(tmp_path, text))
    assert str(tmp_path / "mine.toml") in str(refused.value)
    assert str(refused.value).endswith(".")


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(f"{str(tmp_path / 'other.toml')!r} cannot be read: no such file")):
        published(str(tmp_path / "mine.py"), "other")
    (tmp_path / "mine.toml").write_bytes(b"\xff")
    with pytest.raises(UserError, match=re.escape(f"{tmp_path / 'mine.toml'} is not UTF-8 text")):
        published(str(tmp_path / "mine.py"))


def test_each_file_is_a_methods() -> None:
    with_settings = {name for name, method in registered().items() if method.presets or method.reasons}
    assert sorted(path.stem for path in FILES) == sorted(name.replace("-", "_") for name in with_settings)


def test_every_text_is_used() -> None:
    """A text that no {word} stands for is said nowhere."""
    used: set[str] = set()
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        words = set(re.findall(r"{(\w+)}", text))
        assert tomllib.loads(text).get("texts", {}).keys() <= words, path
        used |= words
    assert tomllib.loads(SHARED.read_text(encoding="utf-8"))["texts"].keys() <= used
