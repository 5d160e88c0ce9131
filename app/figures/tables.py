"""Tables of slots, tokens and events as a person reads them: words for names, shares in per cent, few digits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from app.figures.export_menu import Offer, titled
from app.figures.figure import slug
from kvlab.figures.base.words import MARKS, percent
from kvlab.report.views import table_of
from kvlab.results.provenance import FigureSource

MOST_ROWS = 4000  # all of them go to the browser, whether someone scrolls there or not
SHARES = {  # columns that hold shares of one: what each is, for the tip at its head
    "mass": "What this slot gets of the head's attention at this step.",
    "true mass": "What the full cache gives the tokens of this slot.",
    "lost": "True mass minus mass; negative: gained. In a slot of several tokens, what is lost is sag.",
    "mass source": "Attention of the slot that left, before the step.",
    "mass target": "Attention of the slot it went into, before the step.",
    "mass after": "Attention of that slot after all merges of the step, same query.",
    "perturbation": "Relative change of the head's output by the whole step.",
    "key weight": "Share of the slot that left in the other's new key.",
    "value weight": "The same for its value.",
}
FEATURES = {  # the same for features of heads, which are large
    "sink": "Attention on the first 4 tokens.",
    "local": "Attention on the last 32 tokens.",
    "regret": "Share of the full cache's attention that goes to dropped tokens.",
}
PLAIN = {
    "similarity": "Cosine of the two keys.",
    "key likeness": "Mean cosine of neighbouring keys.",
    "votes": "How many tokens the slot stands for.",
    "votes source": "Tokens the slot that left stood for.",
    "votes target": "Tokens the slot it went into stood for before.",
    "votes after": "Tokens it stands for after all merges of the step.",
}


def show_table(table: pd.DataFrame, alt: str, source: FigureSource = "", **options: Any) -> None:
    """The table without its index, its first `MOST_ROWS` at most, under a title; token texts show their white space.

    `alt` says what it is. `source` is where it came from; without it, it is of the run that the address names.
    """
    if len(table) > MOST_ROWS:
        st.caption(f"The first {MOST_ROWS:,} of {len(table):,} rows.")
        table = table.head(MOST_ROWS)
    words = table.rename(columns=lambda name: str(name).replace("_", " "))
    # Adding zero turns -0 into 0, which a column of rounded shares would show.
    parts = {name: (100 * words[name].astype(float)).round(3) + 0.0 for name in words if name in SHARES | FEATURES}
    shown = words.assign(**parts)
    # Streamlit shows a missing number as None; in counts, such as steps, an empty cell says it better.
    gaps = [name for name in shown.select_dtypes("integer") if shown[name].isna().any()]
    shown = shown.assign(**{name: shown[name].astype("string").fillna("") for name in gaps})
    texts = [name for name in shown if name == "text" or str(name).endswith(" text")]
    shown = shown.assign(**{name: [text.translate(MARKS) for text in shown[name]] for name in texts})
    offer = Offer(alt, lambda: table_of(_in_per_cent(shown, parts)), source=source)
    titled(offer, f"table-{slug(without_numbers(alt))}")
    shares = {name: st.column_config.NumberColumn(format="%.3f %%", help=text) for name, text in SHARES.items()}
    features = {name: st.column_config.NumberColumn(format="%.1f %%", help=text) for name, text in FEATURES.items()}
    plain = {name: st.column_config.NumberColumn(format="%.3g", help=text) for name, text in PLAIN.items()}
    st.dataframe(shown, hide_index=True, column_config=shares | features | plain, alt=alt, **options)


def _in_per_cent(shown: pd.DataFrame, shares: Mapping[str, pd.Series]) -> pd.DataFrame:
    """The table with the unit in its cells, for where no column can carry one."""
    return shown.assign(**{name: [percent(value / 100) for value in values] for name, values in shares.items()})


def without_numbers(text: str) -> str:
    """The same name for a table whatever the step it is of, so that its menu stays."""
    return re.sub(r"\d+", "", text)


def csv_button(table: pd.DataFrame, file: str) -> None:
    """A button that gives the table as `file`.csv, and is named after it."""
    data = table.to_csv(index=False)
    st.download_button("CSV", data, f"{file}.csv", key=f"{file}-csv", on_click="ignore", icon=":material/download:")
