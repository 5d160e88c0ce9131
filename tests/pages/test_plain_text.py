"""What people wrote is shown on every page as written: neither Markdown, nor a formula, nor HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message
from streamlit.testing.v1 import AppTest

from kvlab.trace.record import read_record, write_record
from kvlab.trace.user_labels import change_labels
from tests.pages.conftest import PAGES
from tests.synthetic.runs import write_synthetic_run

WRITTEN = "QX$1$ *y* _u_ [l](http://e.x) :red[r] :rocket: <b>h</b> ~~s~~ QZ"
# Whatever of it is left unescaped in Markdown, also where the text was cut.
READ_AS_MARKDOWN = re.compile(r"QX\$|[^\\]\*y|[^\\]\[l\]|[^\\]:red|[^\\]<b>")
MARKDOWN_FIELDS = {"body", "label", "help", "content", "delta", "options"}
PLAIN_ELEMENTS = {"Selectbox", "MultiSelect", "TextInput", "TextArea"}  # their options and values are no Markdown


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile") / "runs"
    prompt = f"{WRITTEN} the lamp is red and the captain wrote a letter about a key under a stone. " * 2
    for method in ("full", "h2o", "keepkv"):
        folder = write_synthetic_run(root, method=method, comparison_id="one", title=WRITTEN, prompt=prompt, steps=8)
        written_into(folder)
    write_synthetic_run(root, method="keepkv", comparison_id="one", prompt=prompt, steps=8, seed=1)
    write_synthetic_run(
        root, method="snapkv", comparison_id="one", prompt=prompt, steps=8, status="failed", message=WRITTEN
    )
    change_labels(root, "one", "comparison", note=WRITTEN, answer=f"{WRITTEN[:30]}", facts=[[0, 40]])
    return root


def written_into(folder: Path) -> None:
    """Put the text wherever a record takes a person's words: the model's name, a plug-in's notes and messages."""
    record = read_record(folder)
    model = record.model.model_copy(update={"name": f"/models/{WRITTEN}"})
    notes, left_out = (f"note {WRITTEN}",), {"keys": f"left {WRITTEN}"}
    label = f"{record.label} (words={WRITTEN.replace('<b>h</b>', '')})" if record.method == "keepkv" else record.label
    write_record(
        folder, record.model_copy(update={"model": model, "notes": notes, "left_out": left_out, "label": label})
    )


@pytest.fixture
def hostile(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVLAB_RUNS", str(runs))
    return runs


@pytest.fixture(scope="module")
def opened() -> dict[str, AppTest]:
    return {}


@pytest.fixture
def shown(hostile: Path, open_page: Callable[..., AppTest], opened: dict[str, AppTest], name: str) -> AppTest:
    """The page of this name, opened once for both tests that read it."""
    if name not in opened:
        opened[name] = open_page(name, comparison="one")
    assert not opened[name].exception
    return opened[name]


def messages(page: AppTest) -> Iterator[Message]:
    for node in page._tree:
        proto = getattr(node, "proto", None)
        if isinstance(proto, Message):
            yield proto


def markdown(message: Message, path: str = "") -> Iterator[tuple[str, str]]:
    """Every text of an element that Streamlit reads as Markdown, with its place."""
    if type(message).__name__ in ("Text", "PlotlyChart"):
        return
    for field, value in message.ListFields():
        place = f"{path}.{field.name}"
        if field.type == field.TYPE_MESSAGE:
            for one in value if field.is_repeated else [value]:
                yield from markdown(one, place)
        elif field.name in MARKDOWN_FIELDS and not (
            field.name == "options" and type(message).__name__ in PLAIN_ELEMENTS
        ):
            for one in value if not isinstance(value, str) else [value]:
                yield f"{type(message).__name__}{place}", one


@pytest.mark.parametrize("name", PAGES)
def test_no_page_reads_what_people_wrote_as_markup(shown: AppTest, name: str) -> None:
    found = [(place, text) for one in messages(shown) for place, text in markdown(one)]
    assert not [one for one in found if READ_AS_MARKDOWN.search(one[1])]


def labels(value: object) -> Iterator[str]:
    """Every text in a figure's description, which plotly reads as tags."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from labels(one)
    elif isinstance(value, list):
        for one in value:
            yield from labels(one)


@pytest.mark.parametrize("name", PAGES)
def test_no_figure_reads_what_people_wrote_as_tags(shown: AppTest, name: str) -> None:
    for figure in shown.get("plotly_chart"):
        for text in labels(json.loads(figure.proto.spec)):
            assert "<b>h</b>" not in text
