"""A page of a few lines, run alone: what it says and what the address says then."""

from __future__ import annotations

from collections.abc import Callable

from streamlit.testing.v1 import AppTest

PATIENCE_SECONDS = 30


def opened(page: Callable[[], None], **query: str) -> AppTest:
    test = AppTest.from_function(page, default_timeout=PATIENCE_SECONDS)
    for name, value in query.items():
        test.query_params[name] = value
    return test.run()


def text(page: AppTest) -> str:
    assert not page.exception
    return page.text[-1].value if page.text else ""


def query(page: AppTest) -> dict[str, str]:
    return {name: value if isinstance(value, str) else value[0] for name, value in page.query_params.items()}
