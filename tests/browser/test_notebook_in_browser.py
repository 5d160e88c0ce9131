"""What a notebook mounts, in a page without a notebook: the module of anywidget with a model that keeps what is set."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvlab
from kvlab.notebook import LiveView
from tests.synthetic.runs import write_synthetic_run

MOUNT = """async ([source, state]) => {
  const bytes = (text) => new DataView(Uint8Array.from(atob(text), (one) => one.charCodeAt(0)).buffer);
  const values = { ...state, content: bytes(state.content) };
  values.shared = Object.fromEntries(Object.entries(state.shared).map(([name, text]) => [name, bytes(text)]));
  const handlers = {};
  const model = {
    get: (name) => values[name], save_changes: () => {}, off: () => {},
    on: (name, handler) => { (handlers[name] ??= []).push(handler); },
    set: (name, value) => { values[name] = value; for (const handler of handlers[`change:${name}`] ?? []) handler(); },
  };
  const { default: module } = await import(`data:text/javascript;base64,${source}`);
  const el = document.body.appendChild(document.createElement("div"));
  window.values = values;
  window.unmount = module.render({ model, el });
}"""


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    opened = browser.new_page()
    opened.set_viewport_size({"width": 1000, "height": 900})
    yield opened
    opened.close()


def mount(page: Any, view: LiveView, before: str = "") -> None:
    assert view.widgets is not None
    state = view.widgets[1].get_state()
    packed = {name: b64encode(data).decode() for name, data in state["shared"].items()}
    content = b64encode(state["content"]).decode()
    names = ("component", "markup", "styles", "picture", "place", "token", "step")
    page.set_content(before)
    kept = {name: state[name] for name in names} | {"shared": packed, "content": content}
    page.evaluate(MOUNT, [b64encode(state["_esm"].encode()).decode(), kept])


def test_a_click_on_the_wall_sets_the_place_and_marks_it(page: Any, tmp_path: Path) -> None:
    view = kvlab.open_run(write_synthetic_run(tmp_path, method="keepkv", prompt_tokens=40, steps=6)).view("wall")
    ending = view._repr_mimebundle_()["image/png"][-64:]
    mount(page, view, f'<img src="data:image/png;base64,{ending}"><img src="data:image/png;base64,AAAA">')
    canvas = page.locator("canvas")
    box = canvas.bounding_box()
    assert page.evaluate("values.place") is None
    canvas.click(position={"x": box["width"] * 0.75, "y": box["height"] * 0.5})
    layer, head, position = page.evaluate("values.place")
    assert (layer, head in (0, 1), -1 <= position < 46) == (1, True, True), "two layers of two heads, 46 tokens"
    page.locator("[data-part=back]").click()
    page.wait_for_function("values.step === 5")
    assert page.locator("img").evaluate_all("all => all.map((one) => one.style.display)") == ["none", ""]
    page.evaluate("unmount()")


def test_a_click_in_the_text_of_a_head_sets_the_token(page: Any, tmp_path: Path) -> None:
    run = kvlab.open_run(write_synthetic_run(tmp_path, method="keepkv", prompt_tokens=40, steps=6))
    mount(page, run.view("timeline", layer=1, head=0))
    page.locator("[data-p='7']").click()
    assert page.evaluate("values.token") == 7
