"""The terms of a figure are explained on hover, and only those that it uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from streamlit.testing.v1 import AppTest

from app.base.terms import TERMS, terms_in
from tests.pages.conftest import RUN

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
