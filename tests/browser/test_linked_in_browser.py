"""The token strip and the tile map in real Chromium: what the browser derives equals what Python computes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvlab.trace import Run, open_run
from kvlab.views.decision import decision
from kvlab.views.decision import replay as analysed
from kvlab.views.frames.lineage import Lineage, fold, states_at, token_texts
from tests.browser.received import Received
from tests.browser.settle import bring_into_view, settle
from tests.synthetic.runs import write_synthetic_run

METHODS = ("full", "h2o", "keepkv")


@pytest.fixture(scope="module")
def runs(served: Path) -> dict[str, Run]:
    return {method: open_run(next(served.glob(f"linked-{method}-*"))) for method in METHODS}


def history(run: Run) -> Lineage:
    return fold(run.select("events", 0, 0), run.select("steps", 0, 0))


def at_step(page: Any, step: int) -> None:
    page.wait_for_selector(f".kv-strip[data-step='{step}'] .t >> nth=0", state="attached")


def lit(page: Any) -> list[int]:
    return sorted(page.locator(".kv-strip .t.lit").evaluate_all("nodes => nodes.map((node) => +node.dataset.p)"))


@pytest.mark.parametrize("method", METHODS)
def test_every_step_in_the_browser_is_the_step_of_the_fold(
    visit: Callable[..., Any], runs: dict[str, Run], method: str
):
    run, lineage = runs[method], history(runs[method])
    page = visit(f"timeline?run={run.record.run_id}&layer=0&head=0&step=0")
    for step in lineage.steps.tolist():
        at_step(page, step)
        codes = page.locator(".kv-strip .t").evaluate_all(
            "nodes => nodes.map((node) => +node.className.match(/s(\\d)/)[1])"
        )
        assert codes == states_at(lineage, step).tolist()
        assert int(page.locator(".kv-strip").get_attribute("data-slots")) == lineage.alive(step).sum()
        page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile("step=6"))


def whole_text(page: Any, texts: list[str]) -> None:
    """All of the text is there by and by, for the browser's own search."""
    shown = "".join(text or "∅" for text in texts)
    panel = page.locator(".kv-strip [data-part='text']").element_handle()
    page.wait_for_function("([panel, shown]) => panel.textContent === shown", arg=[panel, shown])


def scroll_to_share(page: Any, share: float) -> None:
    page.locator(".kv-strip [data-part='text']").evaluate(
        "(node, share) => node.scrollTo({ top: share * node.scrollHeight - node.clientHeight / 2 })", share
    )


def test_words_far_from_view_look_right_once_they_are_near(visit: Callable[..., Any], served: Path):
    """What a step changes out of sight is put on as it comes near, whichever way one gets there."""
    made = write_synthetic_run(served, method="h2o", prompt_tokens=2500, steps=6, comparison_id="far")
    run = open_run(made)
    lineage = history(run)
    page = visit(f"timeline?run={run.record.run_id}&layer=0&head=0&step=0")
    first, then = states_at(lineage, 0), states_at(lineage, int(lineage.steps[-1]))
    changed = np.flatnonzero(first[:2500] != then[:2500])
    far = int(changed[-1])
    assert far > 1500, "a word that changes and is not in view"
    at_step(page, 0)
    texts = token_texts(run.tokens, lineage.tokens)
    whole_text(page, texts)
    assert page.locator(".kv-strip .t").count() < len(texts), "words out of view are bare text"
    page.locator(".kv-strip [data-part='last']").click()
    at_step(page, int(lineage.steps[-1]))
    for word in (far, 0, int(changed[len(changed) // 2])):
        scroll_to_share(page, word / len(texts))
        page.wait_for_selector(f".kv-strip .t.s{then[word]}[data-p='{word}']", state="attached")
        bring_into_view(page, f".kv-strip .t[data-p='{word}']")
        page.wait_for_selector(f".kv-strip .t.s{then[word]}[data-p='{word}']")
    assert page.locator(".kv-strip [data-part='text']").text_content() == "".join(text or "∅" for text in texts)


def test_the_text_of_a_run_is_sent_once(visit: Callable[..., Any], served: Path):
    """Another head brings its own history, and the words that are there stay."""
    made = write_synthetic_run(served, method="h2o", prompt_tokens=2600, steps=4, comparison_id="once", seed=3)
    run = open_run(made)
    texts = token_texts(run.tokens, history(run).tokens)
    page = visit(f"timeline?run={run.record.run_id}&layer=0&head=0&step=0")
    came = Received(page)
    at_step(page, 0)
    sent = json.dumps(texts[:40])[1:-1].encode()
    assert came.count(sent) == 1
    came.clear()
    page.keyboard.press("j")
    page.wait_for_selector(".kv-strip[data-identity*='/0/1/']", state="attached")
    assert any(len(frame) > 2600 for frame in came.frames), "the history of the other head"
    assert not came.count(sent)
    whole_text(page, texts)
    words = page.locator(".kv-strip .t").all_text_contents()
    assert words == [text or "∅" for text in texts[: len(words)]]


def test_a_word_lights_the_tokens_of_its_slot_and_a_click_goes_into_the_address(
    visit: Callable[..., Any], runs: dict[str, Run]
):
    run, lineage = runs["keepkv"], history(runs["keepkv"])
    owner = lineage.owners(4)
    slot = int(np.bincount(owner[owner >= 0]).argmax())
    texts = run.tokens["text"].tolist()
    word = next(token for token in np.flatnonzero(owner == slot).tolist() if texts[token].strip())
    page = visit(f"timeline?run={run.record.run_id}&layer=0&head=0&step=4")
    at_step(page, 4)
    page.wait_for_selector("[class*='st-key-timeline-states'] .main-svg >> nth=0", state="attached")
    settle(page, ".kv-strip")
    page.locator(f".kv-strip .t[data-p='{word}']").hover()
    page.wait_for_selector(f".kv-strip .t.lit[data-p='{word}']")
    assert lit(page) == np.flatnonzero(owner == slot).tolist()
    told = page.locator(".kv-strip .detail").inner_text()
    assert f"slot {slot} stands for {(owner == slot).sum()} tokens" in told
    masses = re.search(r"true mass ([\d.e-]+).*its slot receives ([\d.e-]+)", told, re.DOTALL)
    assert masses is not None
    for said, recorded, at in zip(masses.groups(), run.attention(0, 0), (word, slot), strict=True):
        assert float(said) == pytest.approx(float(recorded[4, at]), rel=0.06, abs=1e-6)
    settle(page, ".kv-strip")
    page.locator(f".kv-strip .t[data-p='{word}']").click()
    page.wait_for_url(re.compile(f"token={word}"))
    page.get_by_role("tab", name="What flowed into a slot", selected=True).wait_for()
    page.get_by_text(f"Merges into slot {slot}").first.wait_for()


def test_the_prompts_decision_is_played_to_where_it_ended(visit: Callable[..., Any], runs: dict[str, Run]):
    run, lineage = runs["keepkv"], history(runs["keepkv"])
    table = decision(run, 0, 0)
    played, gone = analysed(lineage, table), int((~table["kept"]).sum())
    page = visit(f"timeline?run={run.record.run_id}&play=the+prompt%27s+decision&frame=0")
    at_step(page, 0)
    assert "nothing is evicted" in page.locator(".kv-strip .phase").inner_text()
    settle(page, ".kv-strip")
    page.locator(".kv-strip [data-part='last']").click()
    at_step(page, int(played.steps[-1]))
    assert f"{gone} of {gone} evicted" in page.locator(".kv-strip .phase").inner_text()
    left = lineage.alive(0)[: run.record.prompt_tokens].sum()
    assert int(page.locator(".kv-strip").get_attribute("data-slots")) == left
    page.wait_for_url(re.compile(f"frame={played.steps[-1]}"))


def test_the_wheel_zooms_and_the_value_under_the_pointer_is_the_cosine(visit: Callable[..., Any], runs: dict[str, Run]):
    run = runs["keepkv"]
    unit = run.keys(0, 0)[0].astype(np.float32)
    page = visit(f"similarity?run={run.record.run_id}&layer=0&head=0")
    page.wait_for_selector(".kv-map[data-window='0,96,0,96']")
    settle(page, ".kv-map canvas")
    canvas = page.locator(".kv-map canvas").bounding_box()
    page.mouse.move(canvas["x"] + 200, canvas["y"] + 120)
    shown = page.locator(".kv-map .detail").inner_text()
    value = float(re.search(r"cosine (-?[\d.]+)", shown).group(1))
    row, column = (int(number) for number in re.findall(r"token (\d+)", shown))
    assert value == pytest.approx(float(unit[row] @ unit[column]), abs=1e-4)
    page.mouse.wheel(0, -300)
    page.wait_for_url(re.compile("window="))
    page.wait_for_selector(".kv-map:not([data-window='0,96,0,96'])")
    first, last, left, right = map(int, page.locator(".kv-map").get_attribute("data-window").split(","))
    assert first <= row < last
    assert left <= column < right
    assert last - first == right - left < 96


def test_a_run_is_played_and_where_nothing_merges_a_click_leaves_the_open_tab(
    visit: Callable[..., Any], runs: dict[str, Run]
):
    """Playing tells the address where it stopped; and every format can be taken away."""
    page = visit(f"timeline?run={runs['h2o'].record.run_id}&layer=0&head=0&step=0")
    at_step(page, 0)
    page.get_by_label("Play", exact=True).click()
    at_step(page, 6)
    page.wait_for_url(re.compile("step=6"))
    settle(page, ".kv-strip")
    page.locator(".kv-strip .t[data-p='0']").click()
    page.wait_for_url(re.compile("token=0"))
    page.get_by_role("tab", name="Slots at this step", selected=True).wait_for()
    page.get_by_text("Slots of layer 0, head 0 after step 6").first.wait_for()
    page.wait_for_selector("[class*='st-key-timeline-states'] .main-svg >> nth=0", state="attached")
    settle(page, "[class*='st-key-menu-timeline-mosaic']")
    page.locator("[class*='st-key-menu-timeline-mosaic'] button").first.click()
    for label, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg"), ("CSV", b"position"), ("HTML", b"<!doctype")):
        with page.expect_download() as download:
            page.get_by_role("button", name=re.compile(f"^{label} of ")).click()
        assert download.value.suggested_filename.endswith(f"timeline-layer-0-head-0.{label.lower()}")
        assert Path(download.value.path()).read_bytes().startswith(start), label
