"""Tables of slots, tokens and events with readable column names, percentages and few digits."""

import re
from typing import Any

import pandas as pd
import streamlit as st

from app.base.text import slug
from app.figures.export_menu import Offer, show_title
from kvlab.report.views import table_of
from kvlab.views.base.words import MARKS, percent

MOST_ROWS = 4000  # all of them are sent to the browser
SHARES = {  # columns of fractions, with their tooltips
    "mass": "This slot's share of the head's attention at this step.",
    "true mass": "The share that this query would give the tokens of this slot with nothing dropped.",
    "lost": "True mass minus mass; negative if gained. For a slot of several tokens this is sag.",
    "mass source": "Attention of the evicted or merged slot, before the step.",
    "mass target": "Attention of the slot it was merged into, before the step.",
    "mass after": "Attention of the target slot after all merges of the step, for the same query.",
    "perturbation": "Relative change of the head's output by the whole step.",
    "key weight": "Weight of the merged slot in the target's new key.",
    "value weight": "The same for the value.",
}
FEATURES = {  # likewise, of heads
    "sink": "Attention on the first 4 tokens.",
    "local": "Attention on the last 32 tokens.",
    "regret": "Share of the attention, with nothing dropped, that would go to dropped tokens.",
}
SMALLEST = 6  # decimals of a percentage: recorded attention has none smaller
PLAIN = {
    "similarity": "Cosine of the two keys.",
    "key likeness": "Mean cosine of neighbouring keys.",
    "votes": "How many tokens the slot represents.",
    "votes source": "Tokens that the evicted or merged slot represented.",
    "votes target": "Tokens that the target slot represented before.",
    "votes after": "Tokens that the target slot represents after all merges of the step.",
}


def show_table(table: pd.DataFrame, alt: str, source: str = "", **options: Any) -> None:
    """Show the first `MOST_ROWS` of the table without its index, under the title `alt`; white space is made visible.

    Without `source` the table is from the run in the URL.
    """
    if len(table) > MOST_ROWS:
        st.caption(f"The first {MOST_ROWS:,} of {len(table):,} rows.")
        table = table.head(MOST_ROWS)
    words = table.rename(columns=lambda name: str(name).replace("_", " "))
    # Adding zero turns -0 into 0.
    shares = {
        name: (100 * words[name].astype(float)).round(SMALLEST) + 0.0 for name in words if name in SHARES | FEATURES
    }
    shown = words.assign(**shares)
    # Streamlit shows a missing number as None; an empty cell is clearer for counts.
    gaps = [name for name in shown.select_dtypes("integer") if shown[name].isna().any()]
    shown = shown.assign(**{name: shown[name].astype("string").fillna("") for name in gaps})
    texts = [name for name in shown if name == "text" or str(name).endswith(" text")]
    shown = shown.assign(**{name: [text.translate(MARKS) for text in shown[name]] for name in texts})
    offer = Offer(
        alt,
        lambda: table_of(
            shown.assign(**{name: [percent(value / 100) for value in values] for name, values in shares.items()})
        ),
        source=source,
    )
    # Without numbers, so that a table has the same key at every step.
    show_title(offer, "table-" + slug(re.sub(r"\d+", "", alt)))
    config = {
        name: st.column_config.NumberColumn(format=digits, help=text)
        for digits, texts_of in (("%.3g %%", SHARES | FEATURES), ("%.3g", PLAIN))
        for name, text in texts_of.items()
    }
    st.dataframe(shown, hide_index=True, column_config=config, alt=alt, **options)


def csv_button(table: pd.DataFrame, file: str) -> None:
    """A button that exports the table as `file`.csv."""
    data = table.to_csv(index=False)
    st.download_button("CSV", data, f"{file}.csv", key=f"{file}-csv", on_click="ignore", icon=":material/download:")
