"""Bad input on the command line and in Python: one sentence that names what was wrong, at once, and nothing written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvlab
from kvlab.cli import commands
from kvlab.core.errors import UserError
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import CompareRequest

PROMPT = "The quick brown fox jumps over the lazy dog while the band plays on. " * 3
ENDLESS = str(2**70)
HALF = "an unpaired surrogate"


def sentence(*arguments: str) -> str:
    """What the command is refused with; anything but a UserError fails the test."""
    with pytest.raises(UserError) as refused:
        commands(list(arguments), standalone_mode=False)
    said = str(refused.value)
    assert "\n" not in said and said.endswith(".") and len(said) < 700, said
    return said


@pytest.fixture
def compare(tiny_model_folder: Path, tmp_path: Path) -> Callable[..., str]:
    """A comparison that is refused; it must leave no folder behind."""

    def refused(*arguments: str, prompt: str | None = PROMPT) -> str:
        given = {"--model": str(tiny_model_folder), "--methods": "h2o", "--new-tokens": "2"}
        given |= {} if prompt is None else {"--prompt": prompt}
        given |= dict(zip(arguments[::2], arguments[1::2], strict=True))
        said = sentence("compare", "--out", str(tmp_path / "runs"), *[word for pair in given.items() for word in pair])
        assert not list((tmp_path / "runs").glob("*"))
        return said

    return refused


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--prompt", "abc \ud800 def", HALF),
        ("--prompt", "abc \0 def", "control characters"),
        ("--answer", "\ud800", HALF),
        ("--fact", "\ud800", "letter by letter"),
        ("--set", "system=\ud800", "--set system"),
        ("--seed", str(2**63), "--seed"),
        ("--seed", "-1", "--seed"),
        ("--set", "compress_every=999999999", "4096"),
        ("--set", f"compress_every={ENDLESS}", "4096"),
        ("--set", f"prefill_chunk={ENDLESS}", "prefill_chunk"),
        ("--methods", ",", "at least one method"),
        ("--methods", "kvmerger:longest_set=100000000", "1024"),
        ("--methods", "gvote:samples=1000000000", "1024"),
        ("--methods", "less:rank=1000000000", "rank"),
        ("--methods", "less:rank=1000000", "feature maps"),
        ("--methods", "h2o:recent=.5:recent=.6", "recent twice"),
        ("--set", "revision=\ud800", "revision"),
        ("--set", "record=every=" + "9" * 5000, "What to record"),
        ("--methods", "exactmerge:ridge=1e-300", "ridge"),
        ("--methods", "snapkv:kernel=100000001", "1025"),
        ("--methods", "zsmerge:recent=.9:residual=.9", "share one budget"),
        ("--methods", "compose:settle=h2o", "settle 'evict'"),
        ("--budgets", "9" * 5000, "The budget"),
        ("--budgets", ENDLESS, "The budget"),
        ("--budgets", "\u0663", "The budget"),
        ("--model", "\ud800", "model"),
        ("--model", "a\0b", "model"),
    ],
)
def test_a_comparison_is_refused_in_a_sentence(
    compare: Callable[..., str], option: str, value: str, named: str
) -> None:
    assert named in compare(option, value)


def test_files_that_are_no_prompts(compare: Callable[..., str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(bytes(range(32)) * 50)
    (tmp_path / "long").write_bytes(b"a" * (2 * 1024 * 1024 + 1))
    for name, named in {"pipe": "a pipe or a device", "bytes": "no text", "long": "2,097,152", "none": "read"}.items():
        assert named in compare("--file", str(tmp_path / name), prompt=None)
    assert "a pipe or a device" in compare("--file", "/dev/zero", prompt=None)


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--lengths", "1000000000", "the largest part is"),
        ("--lengths", ENDLESS, "the largest part is"),
        ("--lengths", ",", "--lengths"),
        ("--samples", "999999999999", "100000"),
        ("--set", f"batch={ENDLESS}", "4096"),
        ("--seed", ENDLESS, "Seed"),
        ("--data", "ruler=/dev/zero", "a pipe or a device"),
    ],
)
def test_an_evaluation_is_refused_in_a_sentence(tmp_path: Path, option: str, value: str, named: str) -> None:
    given = {"--tasks": "needle", "--methods": "h2o", "--lengths": "128", "--samples": "1"} | {option: value}
    said = sentence("eval", "--out", str(tmp_path / "eval"), *[word for pair in given.items() for word in pair])
    assert named in said


@pytest.mark.parametrize(
    "options",
    [
        {"prompt": None},
        {"prompt": 3},
        {"prompt": ["a"]},
        {"prompt": "\ud800"},
        {"level": "huge"},
        {"level": None},
        {"method": None},
        {"method": 3},
        {"model": None},
        {"model": 3},
        {"max_new_tokens": "x"},
        {"max_new_tokens": 10**30},
        {"seed": 2**70},
        {"compress_every": "a"},
        {"record": 3},
        {"root": None},
        {"root": 3},
        {"recent": b"no JSON"},
    ],
    ids=repr,
)
def test_a_run_from_python_is_refused_in_a_sentence(options: dict[str, Any], tmp_path: Path) -> None:
    given: dict[str, Any] = {"prompt": PROMPT, "method": "h2o", "root": tmp_path / "runs"} | options
    with pytest.raises(UserError) as refused:
        kvlab.run(given.pop("prompt"), **given)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "ask",
    [
        lambda lab: kvlab.make_cache("mini", "h2o"),
        lambda lab: kvlab.make_cache(None, "h2o"),
        lambda lab: kvlab.make_cache(lab, None),
        lambda lab: kvlab.make_cache(lab, 3),
        lambda lab: kvlab.make_cache(lab, "h2o", compress_every="a"),
        lambda lab: kvlab.make_cache(lab, "h2o", compress_every=10**9),
        lambda lab: kvlab.make_cache(lab, "h2o", seed=2**70),
        lambda lab: kvlab.load_model(None),
        lambda lab: kvlab.load_model(device=None),
        lambda lab: kvlab.load_model(dtype="int8"),
        lambda lab: kvlab.load_model("mini", cache_dir=3),
        lambda lab: kvlab.open_run(None),
        lambda lab: kvlab.open_run("\0"),
        lambda lab: kvlab.compare(None),
        lambda lab: kvlab.compare({"prompt": PROMPT}),
    ],
)
def test_other_calls_from_python_are_refused_in_a_sentence(
    ask: Callable[[LoadedModel], object], tiny_model_folder: Path
) -> None:
    with pytest.raises(UserError) as refused:
        ask(kvlab.load_model(str(tiny_model_folder)))
    assert "\n" not in str(refused.value) and str(refused.value).endswith(".")


def test_methods_are_listed_by_the_name_that_is_a_package_too() -> None:
    import kvlab.core.methods

    assert {entry.name for entry in kvlab.list_methods()} == set(kvlab.core.methods.registered())


def test_text_with_a_few_control_signs_is_text() -> None:
    request = CompareRequest(prompt="page one\f\x02 " + PROMPT, choices=({"method": "h2o"},))
    assert request.prompt.startswith("page one")
