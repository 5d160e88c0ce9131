"""Cache: what has become of every token, from all heads to one head to one slot, in one run, two, or all."""

from __future__ import annotations

import streamlit as st

from app.base.widgets import one_of
from app.cache import lineage, spans, timeline, wall
from app.run_views import page

# From all heads to one head to one slot; then by part of the prompt.
SENTENCES = {
    "Wall": "All heads at once: layers across, KV heads down. Each tile is the text, read like a page, in the colours "
    "of what its head has made of each token. Move through the steps, zoom in until you read the words, click a head "
    "to take it to the views below and to every other page.",
    "Difference": "Which tokens only one of two runs still holds, in every head at once: **A** is the run, **B** the "
    "one that it is compared with.",
    "Timeline": "Which token each slot holds at every step, and which slots were dropped or merged. Move through the "
    "steps with the slider, the play button or the arrow keys; hover over a word, a slot or the mosaic to highlight "
    "the words of one slot.",
    "Lineage": "A merged slot is a weighted sum of tokens. The **river** shows which tokens were merged into it, the "
    "curves how much of each is left after further merges: its **half-life**.",
    "Spans": "Which part of the prompt does each method forget? Each number is the share of a part's tokens, over all "
    "layers and heads, that are **kept whole**, in a slot of their own; tokens merged with others are in the strip "
    "below it. Under the parts stands whether the answer is right.",
}


def main() -> None:
    page.heading("Cache", "What has become of every token: in all heads, in one head, in one slot.")
    zoom = one_of("Look at", tuple(SENTENCES), key="zoom", label_visibility="collapsed")
    st.markdown(SENTENCES[zoom])
    if zoom in ("Wall", "Difference"):
        wall.draw(differs=zoom == "Difference")
    else:
        {"Timeline": timeline, "Lineage": lineage, "Spans": spans}[zoom].draw()


main()
