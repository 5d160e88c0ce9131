"""The form's models: those on this disk, the last one, chat models, and one that is downloaded with a click."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from huggingface_hub import constants
from streamlit.testing.v1 import AppTest

from kvlab.core.assets import asset_path
from kvlab.core.errors import UserError
from kvlab.planning import choices
from kvlab.planning.choices import local_models
from kvlab.trace import catalogue, open_run
from kvlab.trace.record import write_record
from tests.families import CHAT_TEMPLATE, tiny_folder
from tests.models.small_package import small_package
from tests.pages.test_new_run import Open, messages, paste, submit
from tests.synthetic.runs import write_synthetic_run


def test_models_on_this_disk_are_offered(
    form: AppTest,
    runs_root: Path,
    open_page: Open,
    tiny_model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    """One that ran before, while its folder is there, and one in the hub's cache; none that is gone."""
    there, gone = tmp_path / "there", tmp_path / "gone"
    shutil.copytree(tiny_model_folder, there)
    for number, model in enumerate((str(there), str(gone))):
        run = open_run(write_synthetic_run(runs_root, run_id=f"synthetic-{number}"))
        write_record(
            run.path, run.record.model_copy(update={"model": run.record.model.model_copy(update={"name": model})})
        )
    catalogue.rebuild(runs_root)
    cache = tmp_path / "hub"
    for name in ("models--some--cached", "models--some--half", "datasets--some--data"):
        (cache / name / "refs").mkdir(parents=True)
        (cache / name / "refs" / "main").write_text("a" * 40)
        (cache / name / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (cache / "models--some--cached" / "snapshots" / ("a" * 40) / "config.json").write_text("{}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    offered = local_models(runs_root)
    assert set(offered) == {str(there), "mini", "some/cached"}
    page = open_page("new_run")
    page = page.selectbox(key="model_here").select(str(there)).run()
    assert not page.exception and page.text_input(key="model").value == str(there)
    assert page.selectbox(key="model_here").value is None


def test_methods_that_cannot_be_read_are_one_sentence(
    runs_root: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
):
    failed: Future = Future()
    failed.set_exception(UserError("The list of methods could not be read, as it failed: run it in a terminal."))

    before = choices._reading

    def reading(what: str) -> Future:
        return failed if what == "methods" else before(what)

    reading.cache_clear = lambda: None
    monkeypatch.setattr(choices, "_reading", reading)
    assert messages(open_page("new_run")) == [
        "The list of methods could not be read, as it failed: run it in a terminal."
    ]


def test_the_next_form_starts_with_the_model_and_the_device_of_the_last(
    form: AppTest, runs_root: Path, open_page: Open, started_workers: list[Path]
):
    assert "device" not in form.query_params, "nothing was sent yet"
    page = form.selectbox(key="device").set_value("cpu").run()
    page = page.selectbox(key="dtype").set_value("float32").run()
    assert messages(submit(paste(page, "A word of it."))) == []
    later = open_page("new_run")
    assert (later.selectbox(key="device").value, later.selectbox(key="dtype").value) == ("cpu", "float32")
    assert later.text_input(key="model").value == "mini"
    assert open_page("new_run", device="auto").selectbox(key="device").value == "auto", "the address comes first"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"device": "toaster", "model": "no/such/thing/at all", "dtype": 3}'])
def test_a_damaged_memory_of_the_last_form_is_no_memory(runs_root: Path, open_page: Open, text: str):
    (runs_root / ".jobs").mkdir()
    (runs_root / ".jobs" / "last_form.json").write_text(text)
    page = open_page("new_run")
    assert not page.exception
    assert page.selectbox(key="device").value == "auto" and page.text_input(key="model").value == "mini"


def test_a_chat_model_is_counted_and_shown_in_its_template(form: AppTest, commands_here: None, tmp_path: Path):
    """System prompt and roles too; a system prompt that no template would read is said where it is typed."""
    chatty = tiny_folder(tmp_path / "chatty", chat_template=CHAT_TEMPLATE)
    page = paste(form, "Where?").text_input(key="model").input(str(chatty)).run()
    # <bos> <turn> user \n Where? <end> <turn> assistant \n: one token a letter beside those in angles
    assert counted(page) == 1 + 1 + 5 + 6 + 1 + 1 + 10
    page = page.text_area(key="system").input("Hi.").run()
    assert counted(page) == 1 + 1 + 5 + 6 + 1 + 1 + 10 + 1 + 7 + 3 + 1
    page = page.toggle(key="show_tokens").set_value(True).run()
    (shown,) = [element for element in page.get("html") if "kv-prompt" in element.proto.body]
    words = re.sub(r"<[^>]*>", "", shown.proto.body.split('data-testid="tokens">')[1])
    assert html.unescape(words) == "<bos><turn>system\nHi.<end><turn>user\nWhere?<end><turn>assistant\n"
    page = page.selectbox(key="chat").select("no").run()
    assert counted(page) == 1 + 6
    page = page.text_input(key="model").input("mini").run()
    page = page.selectbox(key="chat").select("auto").run()
    assert any(
        message.startswith("The system prompt or thinking switch would have no effect") for message in messages(page)
    )


def counted(page: AppTest) -> int:
    assert messages(page) == []
    (line,) = [element.value for element in page.caption if element.value.startswith("The prompt has")]
    return int(re.findall(r"\*\*([\d,]+) tokens", line)[0].replace(",", ""))


def test_a_checkpoint_with_penalties_is_noted_and_may_be_honoured(
    runs_root: Path, open_page: Callable[..., AppTest], tmp_path: Path
):
    folder = shutil.copytree(asset_path("mini"), tmp_path / "penalised")
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {"repetition_penalty": 1.2}))
    for model, noted in ((str(folder), True), ("mini", False)):
        said = [caption.value.replace("\\", "") for caption in open_page("new_run", model=model).caption]
        assert any("sets repetition_penalty 1.2" in words and "honour" in words for words in said) is noted


@pytest.mark.usefixtures("gguf_here")
def test_a_missing_real_model_is_one_click_away(
    runs_root: Path, open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_package(tmp_path, monkeypatch)
    page = open_page("new_run")
    button = page.button(key="get_small")
    assert button.label.startswith("Download small (")
    page = button.click().run(timeout=60)
    assert not page.exception and any("its name is `small`" in message.value for message in page.success)
    assert not [button for button in page.button if button.key == "get_small"], "it is here now"
    assert "small" in page.selectbox(key="model_here").options
    page = page.text_input(key="model").input("small").run(timeout=60)
    assert not page.exception and "the context window of small is 512" in page.error[0].value


def test_a_download_that_fails_says_why(
    runs_root: Path, open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_package(tmp_path, monkeypatch)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    page = open_page("new_run").button(key="get_small").click().run(timeout=60)
    assert not page.exception
    assert any("index does not provide some" in error.value for error in page.error), [e.value for e in page.error]
