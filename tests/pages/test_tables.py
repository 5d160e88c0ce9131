"""Tables of slots, tokens and events read without code: words, per cents, visible white space, no None."""

from __future__ import annotations

import json

import numpy as np
from streamlit.testing.v1 import AppTest


def script() -> None:
    import pandas as pd

    from app.figures.tables import show_table

    table = pd.DataFrame(
        {
            "source_text": [" a\n", "<b>"],
            "true mass": [0.25, -1e-9],
            "mass": [2.5e-6, 0.419431],
            "lost at step": pd.array([3, None], "Int32"),
            "votes": [1.0, 2.0],
        }
    )
    show_table(table, "A table")


def test_a_table_is_readable():
    page = AppTest.from_function(script).run()
    assert not page.exception
    shown = page.dataframe[0].value
    assert list(shown) == ["source text", "true mass", "mass", "lost at step", "votes"]
    assert shown["source text"].tolist() == ["·a⏎", "<b>"]
    assert shown["true mass"].tolist() == [25, 0]
    assert not str(shown["true mass"].iloc[1]).startswith("-")
    # Small attention is not shown as none: the browser writes three significant digits.
    np.testing.assert_allclose(shown["mass"], [2.5e-4, 41.9431])
    columns = json.loads(page.dataframe[0].proto.columns)
    assert columns["mass"]["type_config"]["format"] == "%.3g %%"
    assert shown["lost at step"].tolist() == ["3", ""]


def long_script() -> None:
    import numpy as np
    import pandas as pd

    from app.figures.tables import show_table

    show_table(pd.DataFrame({"votes": np.arange(9000)}), "A long table")


def test_a_long_table_says_how_much_of_it_is_shown():
    page = AppTest.from_function(long_script).run()
    assert page.dataframe[0].value["votes"].tolist() == list(range(4000))
    assert [caption.value for caption in page.caption] == ["The first 4,000 of 9,000 rows."]
