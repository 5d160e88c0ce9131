"""Every method and task that help texts and documents give as an example is one that the command line takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlab.core.contract.method import build_method
from kvlab.core.contract.sparse_attention import EVERYTHING, sparse_attention_of
from kvlab.core.method_spec import parse_spec
from kvlab.core.methods import make_method, registered
from kvlab.tasks.registry import TASKS
from tests.cli.running import every_command

ROOT = Path(__file__).resolve().parents[2]
SPEC = re.compile(r"(?<![\w/.-])([a-z][a-z0-9_-]*)((?::[a-z_]+=[^\s:,`'\")|;]+)+)")
LIST = re.compile(r"--methods?[ =]([^\s`'\"]+)")
PLACEHOLDERS = re.compile(r"[A-Z]+|\.\.\.|N|<.*>")  # a value that the reader fills in
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def help_texts() -> Iterator[tuple[str, str]]:
    for path, command in every_command():
        options = (f"{one.help} {one.default}" for one in command.params if hasattr(one, "help"))
        yield " ".join(["kvlab", *path]), " ".join([command.help or "", *options])


TEXTS = [*help_texts(), *((file.name, file.read_text("utf-8")) for file in DOCUMENTS)]


def ended(example: str) -> str:
    """Without the full stop of its sentence."""
    return example if example.endswith("...") else example.rstrip(".")


def examples(text: str) -> Iterator[str]:
    text = "\n".join(line for line in text.splitlines() if "--plugin" not in line)  # whose parts are not loaded here
    yield from (ended(found[0]) for found in SPEC.finditer(text))
    for found in LIST.finditer(text):
        yield from ended(found[1]).split(",")


@pytest.mark.parametrize(("where", "text"), TEXTS, ids=[where for where, _ in TEXTS])
def test_every_example_is_accepted(where: str, text: str):
    for example in examples(text):
        name, values = parse_spec(example)
        known = {key: value for key, value in values.items() if not PLACEHOLDERS.fullmatch(str(value))}
        if name in registered():
            method = registered()[name]
            sparse_attention = sparse_attention_of(str(values.get("read", EVERYTHING)))
            of_sparse_attention = () if sparse_attention is None else type(sparse_attention).model_fields
            if name != "compose":  # which takes its parts' settings too, and refuses others by itself
                assert set(values) <= {*method.model_fields, "preset", *of_sparse_attention}, f"{where}: {example}"
            make_method(name, **known)
        elif name in TASKS:
            assert set(values) <= {*TASKS[name].parameters}, f"{where}: {example}"


def test_examples_are_found_where_they_stand():
    found = {example for _, text in TEXTS for example in examples(text)}
    assert {"keepkv:preset=paper", "key_value:pairs=64", "snapkv:store=kivi4"} <= found and len(found) > 20
    assert build_method(registered()["keepkv"], preset="paper")
