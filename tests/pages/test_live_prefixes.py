"""The page Live with kept prefixes: choosing them as branches, what cannot be changed then, and keeping a branch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kvlab import jobs
from kvlab.core.choice import FULL, MethodChoice
from kvlab.engine.prefix.prefix import write_tensors
from kvlab.library.prefixes import (
    FORMAT,
    HEADER,
    MARK,
    STATE,
    TEXTS,
    PrefixHeader,
    PrefixModel,
    prefix_path,
)
from kvlab.live.events import append_event
from kvlab.requests.live_session import FIXED, LiveRequest
from tests.pages.test_live import REQUEST, Open, talked, the_job, told

H2O, SNAPKV = MethodChoice(method="h2o", budget=0.3), MethodChoice(method="snapkv", budget=0.2)
MODEL = PrefixModel(name="mini", digest="a", dtype="float32", device="cpu", shape={}, tokenizer="b", loading={})


def write_prefix(root: Path, name: str, choice: MethodChoice, text: str = "A cat sat.", **changed: object) -> None:
    """A file whose header a page reads; its cache is empty."""
    header = PrefixHeader(
        title=text, created=f"2026-01-01T00:00:0{len(name) % 10}", versions={}, model=MODEL, chat="auto", choice=choice,
        settings={}, store="native", text_sha256=text, context_tokens=9, tokens=9, seconds=1.0, layers=(),
    ).model_copy(update=changed)  # fmt: skip
    texts = json.dumps([{"kind": "context", "text": text}]).encode()
    path = prefix_path(root, name)
    path.parent.mkdir(exist_ok=True)
    about = {MARK: str(FORMAT), HEADER: header.model_dump_json(), STATE: "{}"}
    write_tensors(path, {TEXTS: torch.frombuffer(bytearray(texts), dtype=torch.uint8)}, about)


def test_prefixes_of_one_text_are_branches_and_the_full_cache_is_the_first(runs_root: Path, open_page: Open) -> None:
    for name, choice in (("part", H2O), ("whole", FULL), ("other", SNAPKV)):
        write_prefix(runs_root, name, choice)
    write_prefix(runs_root, "dog", H2O, "A dog ran.")
    write_prefix(runs_root, "talk", H2O, "A bird sang.", questions=1)
    write_prefix(runs_root, "elsewhere", H2O, model=MODEL.model_copy(update={"name": "owner/name"}))
    page = open_page("live", source="Prefix")
    told(page)
    texts = page.selectbox(key="kept")
    assert sorted(texts.options) == ["A cat sat. (9 tokens)", "A dog ran. (9 tokens)"]
    cat = texts.options.index("A cat sat. (9 tokens)")
    page = texts.select_index(1 - cat).run()
    assert page.multiselect(key="prefixes").options == ["dog"]
    assert "compared with" not in told(page), "one branch alone"
    page = page.selectbox(key="kept").select_index(cat).run()
    assert page.multiselect(key="prefixes").options[0] == "whole"
    page = page.multiselect(key="prefixes").set_value(["part", "other"]).run()
    assert "No full cache is among them: the others are compared with the first, part (h2o 30 %)." in told(page)
    page = page.multiselect(key="prefixes").set_value(["part", "whole"]).run()
    assert "The first branch is the full cache, whole" in told(page)
    told(page.button(key="live-start").click().run())
    job = the_job(runs_root)
    assert (job.action, job.request.prefixes, job.request.context) == ("start", ("whole", "part"), "A cat sat.")
    assert (job.request.reference, job.request.choices) == (FULL, (H2O,))
    assert (job.request.model, job.request.device, job.request.dtype) == ("mini", "cpu", "float32")


def test_a_link_to_prefixes_opens_their_text(runs_root: Path, open_page: Open) -> None:
    for name, text in (("a", "A cat sat."), ("bb", "A dog ran."), ("ccc", "A bird sang.")):
        write_prefix(runs_root, name, H2O, text)
    for name, title in (("a", "A cat sat."), ("bb", "A dog ran."), ("gone", "A bird sang.")):
        page = open_page("live", source="Prefix", prefixes=name)
        told(page)
        assert str(page.selectbox(key="kept").value).startswith(title)
        if name != "gone":
            assert page.multiselect(key="prefixes").value == [name]


def test_without_prefixes_a_sentence_says_how_to_make_one(runs_root: Path, open_page: Open) -> None:
    write_prefix(runs_root, "elsewhere", H2O, model=MODEL.model_copy(update={"name": "owner/name"}))
    page = open_page("live", source="Prefix")
    assert "No prefix of mini is kept here. There are some of owner/name: type that model." in told(page)
    assert "kvlab prefix make NAME --file paper.pdf --model mini" in told(page)
    assert page.button(key="live-start").disabled


def test_a_session_over_prefixes_says_what_cannot_be_changed(runs_root: Path, open_page: Open) -> None:
    request = LiveRequest(context="a b c", reference=H2O, choices=(SNAPKV,), prefixes=("one", "two"))
    append_event(runs_root, "kept", {"kind": "opened", "owner": "", "request": request.model_dump(mode="json")})
    append_event(runs_root, "kept", {"kind": "context_read", "tokens": 3, "seconds": 0.5})
    append_event(runs_root, "kept", {"kind": "context_texts", "texts": ["a", " b", " c"]})
    for branch, choice in enumerate(request.branches):
        settled = {"branch": branch, "label": choice.label, "live_bytes": 300 - 100 * branch, "full_bytes": 1000}
        append_event(runs_root, "kept", {"kind": "branch_settled", **settled})
        append_event(runs_root, "kept", {"kind": "held", "branch": branch, "per_mille": [1000, 50, 0]})
    page = open_page("live", session="kept", token="1")
    words = told(page)
    assert "3 tokens seen · 30 % of the full cache · prefix one" in words and "20 % of the full cache" in words
    assert "No branch is the full cache: the others are compared with the first, h2o 30 %." in words
    for key in ("live-keep", "live-drop", "live-undo", "live-branch-1-apply"):
        button = page.button(key=key)
        assert button.disabled and button.help == FIXED
    assert not any(str(button.key).startswith("live-keep-") for button in page.button)
    page.chat_input[0].set_value("Who?").run()
    assert the_job(runs_root).request == request


def test_a_branch_is_kept_under_a_name_that_is_free(runs_root: Path, open_page: Open) -> None:
    page = open_page("live", session=talked(runs_root))
    assert page.text_input(key="live-keep-1-name").value == "a-b-c-h2o-20"
    assert page.text_input(key="live-keep-0-name").value == "a-b-c-full"
    write_prefix(runs_root, "mine", H2O)
    page = page.text_input(key="live-keep-1-name").input("mine").run()
    page = page.button(key="live-keep-1-apply").click().run()
    assert "There is already a prefix 'mine'" in told(page)
    assert jobs.list_jobs(runs_root) == []
    page = page.text_input(key="live-keep-1-name").input("yours").run()
    told(page.button(key="live-keep-1-apply").click().run())
    job = the_job(runs_root)
    assert (job.action, job.branch, job.name, job.request) == ("keep", 1, "yours", REQUEST)
    append_event(runs_root, "one", {"kind": "kept", "branch": 1, "name": "yours", "bytes": 9})
    assert "Kept as yours." in told(page.run())


def test_a_shared_server_shows_a_person_their_own_prefixes(
    runs_root: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("app.live.start", "app.entries.live"):
        monkeypatch.setattr(f"{place}.lab", lambda: object())
    write_prefix(runs_root, "part", H2O)
    write_prefix(runs_root, "bens", H2O, "A dog ran.", owner="ben")
    monkeypatch.setattr("kvlab.library.prefixes.is_owner", lambda owner: owner == "ben")
    page = open_page("live", source="Prefix")
    assert page.selectbox(key="kept").options == ["A dog ran. (9 tokens)"]
    monkeypatch.setattr("kvlab.library.prefixes.is_owner", lambda owner: owner == "carl")
    page = open_page("live", source="Prefix")
    assert "You have no prefix of mini." in told(page) and page.button(key="live-start").disabled
    page = open_page("live", session=talked(runs_root))
    assert not page.button(key="live-keep-1-apply").disabled and "you alone" in told(page)
