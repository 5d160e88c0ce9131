"""The place in a run that a page shows: layer, head, step and token, chosen by the URL or by the pickers of the bar.

A value that does not exist gets one sentence. Without a choice the page opens where there is something to see
(`kvlab.views.frames.starting_point`), and the picker says why. Keys go to the next and the previous head.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import streamlit as st

from app.base.component import component
from app.base.text import code
from app.navigation import context_bar as bar
from app.navigation.selection import take_choice
from app.session import url_state
from app.session.open_runs import SUGGEST_HEAD, SUGGEST_STEP, to_show_first
from app.session.streamlit_internals import is_fragment_run
from kvlab.trace.reader import Run
from kvlab.views.frames.head_states import recorded_layers


def pick_layer(run: Run) -> int:
    """The layer in the URL or the bar; layers without a recording are not offered."""
    layers = recorded_layers(run)
    if not layers:
        st.warning("Every layer of this model uses sliding-window attention, so nothing was recorded.")
        st.stop()
    sentence = f"is not a recorded layer of this run: choose one of {_span(layers)}"
    layer, reason = _place(run, "layer", layers, sentence)
    st.session_state["pick_layer"] = layer
    return bar.picker("layer", "Layer", layers, str, reason, on_change=take_choice, args=(("layer", "head"),))


def pick_head(run: Run) -> int:
    """The KV head in the URL or the bar."""
    heads = list(range(run.record.model.num_key_value_heads))
    head, reason = _place(run, "head", heads, f"is not a KV head of this run: choose one of {_span(heads)}")
    group = run.record.model.num_attention_heads // run.record.model.num_key_value_heads
    help_text = f"Serves {group} query heads. {reason or ''}"
    st.session_state["pick_head"] = head
    return bar.picker("head", "KV head", heads, str, help_text, on_change=take_choice, args=(("layer", "head"),))


def pick_step(run: Run) -> int:
    """The step in the URL or the bar; 0 is the prefill."""
    steps = list(range(last_step(run) + 1))
    step = chosen_step(run, steps)
    st.session_state["pick_step"] = step
    help_text = f"0 is the prefill, then one step per token. {step_reason(run)}"
    return bar.picker("step", "Step", steps, str, help_text, on_change=take_choice, args=(("step",),))


def pick_token(run: Run) -> int | None:
    """The position of the token in the URL or entered here; None without one."""
    last = max(run.record.prompt_tokens + last_step(run) - 1, 0)
    requested = url_state.get_param("token")
    number = url_state.parse_number(requested)
    if requested is not None and (number is None or str(number) != requested or number > last):
        st.warning(f"Token {code(requested)} is not a token of this run: choose one of 0 to {last}.")
    help_text = f"Position in the text, 0 to {last}; if empty, the figure chooses."
    with bar.row():
        return st.number_input(
            "Token", 0, last, None, 1, **url_state.in_url("token"), help=help_text, width=bar.WIDTHS["step"]
        )


def head_in_view(run: Run) -> tuple[int, int]:
    """The layer and head to outline on a page without pickers for them: the chosen ones, if this run has them."""
    values = [
        url_state.pending_value(name) or url_state.get_param(name) or url_state.chosen_value(name)
        for name in ("layer", "head")
    ]
    layer, head = map(url_state.parse_number, values)
    known = layer in recorded_layers(run) and head in range(run.record.model.num_key_value_heads)
    return (layer, head) if known and layer is not None and head is not None else to_show_first(SUGGEST_HEAD, run)[:2]


def chosen_step(run: Run, steps: Sequence[int]) -> int:
    """The step of `steps` in the URL, else the one chosen on another page, else the one to show first."""
    by_text = {str(step): step for step in steps}
    requested = url_state.url_value("step")
    if requested is not None and requested not in by_text:
        st.warning(f"Step {code(requested)} is not a step of this run: choose one of {steps[0]} to {steps[-1]}.")
        return steps[-1]
    text = requested or url_state.chosen_value("step")
    if text in by_text:
        url_state.remember("step", text)
        return by_text[text]
    first = to_show_first(SUGGEST_STEP, run).step
    return first if first in steps else steps[-1]


def step_reason(run: Run) -> str:
    """Why the page opened at its step; "" if the user chose it."""
    if "step" in url_state.params():
        return ""
    step, reason = to_show_first(SUGGEST_STEP, run)
    return f"Opened at step {step}: {reason}."


def last_step(run: Run) -> int:
    """The last recorded step of a run; 0 if it recorded none."""
    steps = run.select("memory", columns=["step"])["step"]
    return int(steps.max()) if len(steps) else 0


def _place(run: Run, name: str, values: Sequence[int], sentence: str) -> tuple[int, str | None]:
    """The layer or head to show, and the reason if the user chose none."""
    texts = {str(value) for value in values}
    requested = url_state.get_param(name)
    if requested is not None and requested not in texts:
        st.warning(f"{name.capitalize()} {code(requested)} {sentence}.")
    if url_state.params().keys().isdisjoint(("layer", "head")):
        stored = {part: url_state.chosen_value(part) for part in ("layer", "head")}
        if None in stored.values() or stored[name] not in texts:
            telling = to_show_first(SUGGEST_HEAD, run)
            return getattr(telling, name), f"Opened here: {telling.reason}."
        for part, text in stored.items():
            url_state.remember(part, str(text))
        requested = url_state.get_param(name)
    # A link that names only one of the two means the first of the other.
    value = int(requested) if requested in texts else values[0]
    url_state.remember(
        name, str(value), url=requested in (None, str(value))
    )  # a wrong value stays in the URL with its warning
    return value, None


def _span(numbers: Sequence[int]) -> str:
    contiguous = numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]} to {numbers[-1]}" if contiguous else ", ".join(map(str, numbers))


# The token in view, which pages share as long as they show one text.
#
# Positions of another text mean nothing, so the session remembers of which comparison the token was chosen.

TOKEN = "token"
TEXT_OF_TOKEN = "comparison_of_chosen_token"


def chosen_token(comparison: str, tokens: int) -> int | None:
    """The token in the URL, else the one chosen on another page in this text; None if the text has no such token."""
    token = url_state.url_number(TOKEN)
    token = shared_token([comparison]) if token is None else token
    if token is None or token >= tokens:
        return None
    url_state.set_param(TOKEN, str(token))
    share_token(comparison, token)
    return token


def shared_token(comparisons: Collection[str]) -> int | None:
    """The token chosen on another page in the text of one of these comparisons."""
    if st.session_state.get(TEXT_OF_TOKEN) not in comparisons:
        return None
    return url_state.parse_number(url_state.chosen_value(TOKEN))


def share_token(comparison: str, token: int) -> None:
    """Let the other pages of a comparison show this token."""
    url_state.remember(TOKEN, str(token), url=False)
    st.session_state[TEXT_OF_TOKEN] = comparison


def offer_token(comparison: str, last: int) -> None:
    """Let the field `token` of a page, up to `last`, begin with the token chosen on another page in this text."""
    if TOKEN not in url_state.params() and TOKEN not in st.session_state:
        shared = shared_token([comparison])
        if shared is not None and shared <= last:
            st.session_state[TOKEN] = shared


KEY = "page-keys"
HTML = """
<div class="kv-keys">
  <button class="open" title="Keyboard shortcuts of this page (?)">shortcuts ?</button>
  <dialog aria-label="Keyboard shortcuts of this page">
    <h2>Keyboard shortcuts</h2><dl></dl><button class="close">close</button>
  </dialog>
</div>
"""
Keys = tuple[tuple[str, str], ...]  # with their actions
STEP_KEYS: Keys = (
    ("← →", "one step back or forward"),
    ("Home, End", "first or last step"),
    ("n", "next step in which a slot was evicted or merged"),
    ("space", "play or pause"),
)
HEAD_KEYS = (("j or ]", "next head, then the next layer"), ("k or [", "previous head"))
HELP_KEYS = (("?", "show or hide this list"),)

_component = component("shortcuts", HTML, "shortcuts.css")


def page_keys(
    run: Run | None = None, *, steps: bool = True, more: Keys = (), targets: Mapping[str, str] | None = None
) -> None:
    """A small button that lists the keys; with `run`, j and k go through its heads.

    `targets` are by key the selectors of a field that gets the focus or of a button that is clicked; `more` lists them.
    """
    listed = (STEP_KEYS if steps else ()) + (HEAD_KEYS if run else ()) + more + HELP_KEYS
    data = {"keys": [list(pair) for pair in listed], "heads": run is not None, "targets": dict(targets or {})}
    with bar.row(), st.container(key="context-keys", width="content"):
        _component(key=KEY, data=data, on_turned_change=partial(_turn, run) if run else lambda: None)
    if run and _turn(run):  # the next request interrupted the callback, which is not called again
        st.rerun("fragment" if is_fragment_run() else "app")


def next_head(layer: int, head: int, by: int, layers: list[int], heads: int) -> tuple[int, int]:
    """The layer and head `by` places further, through all recorded layers and cyclic at the ends."""
    place = (layers.index(layer) * heads + head + by) % (len(layers) * heads)
    return layers[place // heads], place % heads


def _turn(run: Run) -> bool:
    """Go to the head that the keys have turned to since the last call; whether it is another one."""
    turned = (st.session_state.get(KEY) or {}).get("turned")
    layers = recorded_layers(run)
    # The layer and head shown: the session has them before the URL does.
    shown = [url_state.pending_value(name) or url_state.chosen_value(name) for name in ("layer", "head")]
    numbers = [int(value) for value in shown if value is not None]
    layer, head = numbers if len(numbers) == 2 else to_show_first(SUGGEST_HEAD, run)[:2]
    turned_before = url_state.pending().turned
    if turned is None or turned == turned_before or layer not in layers:
        return False
    heads = run.record.model.num_key_value_heads
    layer, head = next_head(layer, head, int(turned) - turned_before, layers, heads)
    url_state.go_to(int(turned), layer=layer, head=head)
    return True
