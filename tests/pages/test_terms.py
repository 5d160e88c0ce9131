"""The terms of a figure are explained on hover, and only those that it uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.base.text import TERMS, terms_in
from tests.pages.conftest import ROOT, RUN, switch_to

LINK = "[Glossary, with animations](glossary)"


def test_only_the_terms_that_a_text_uses_are_explained() -> None:
    assert terms_in("Nothing to explain here.") is None
    merging, vote, sag = (f"**{term}**: {TERMS[term]}" for term in ("merging", "vote", "sag"))
    assert terms_in("The sag of 3 merges, 5 votes.") == "\n\n".join((merging, vote, sag, LINK))
    assert terms_in("Sagging and massive kl") is None, "whole words; an abbreviation in capitals"
    assert terms_in("its log mass") == f"**log mass**: {TERMS['log mass']}\n\n{LINK}", "not mass as well"
    both = terms_in("its log mass and the mass of others")
    assert both is not None
    assert both.startswith("**mass**: ") and "**log mass**: " in both


def test_captions_have_their_terms_as_help(shared_runs: Path, open_page: Callable[..., AppTest]) -> None:
    page = open_page("sag", run=RUN)
    assert not page.exception
    assert any(TERMS["sag"] in (caption.help or "") for caption in page.caption)


@pytest.mark.parametrize(("name", "of_the_other"), [("glossary", "the run"), ("timeline", True)])
def test_pages_whose_choices_have_one_name_do_not_take_each_other_s(
    shared_runs: Path, name: str, of_the_other: object
) -> None:
    page = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60)
    page.session_state["play"] = of_the_other
    switch_to(page, name)
    assert not page.run().exception
