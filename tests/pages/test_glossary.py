"""The page Glossary: every animation is of a term, has words for those who do not see it, and shows true numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from streamlit.testing.v1 import AppTest

from app.base.text import TERMS
from app.entries import glossary
from kvlab.browser import read_static


def test_each_animation_is_of_a_term_and_has_words_instead() -> None:
    assert set(glossary.SCENES) <= set(TERMS) and len(glossary.SCENES) >= 8
    for term in glossary.SCENES:
        light, dark = (ElementTree.fromstring(glossary.svg(term, theme)) for theme in ("light", "dark"))
        assert light.get("role") == "img" and len(light.get("aria-label") or "") > 40
        assert [one.tag for one in light.iter()] == [one.tag for one in dark.iter()]
        styles = read_static("glossary.css")
        assert "animation: none" in styles and "prefers-reduced-motion" in styles
        looks = {look for one in light.iter() for look in (one.get("class") or "").split()}
        assert all(f".{look}" in styles for look in looks), term


def test_the_numbers_of_the_animations_are_those_of_the_formulas() -> None:
    # Four equal tokens have a quarter each; two in one slot a third, and with log 2 on its logit 2 of 4 parts.
    assert pytest.approx([1 / 4] * 4) == glossary.APART and pytest.approx([1 / 3] * 3) == glossary.MERGED
    assert pytest.approx([2 / 4, 1 / 4, 1 / 4]) == glossary.WEIGHTED
    assert pytest.approx(1 / 2 - 1 / 3) == glossary.SAG
    expected = 0.0
    for full, other in zip(glossary.FULL_CACHE, glossary.THIS_CACHE, strict=True):
        expected += full * (math.log(full) - math.log(other))
    assert glossary.divergence(glossary.FULL_CACHE, glossary.THIS_CACHE) == pytest.approx(expected)
    assert glossary.divergence(glossary.FULL_CACHE, glossary.FULL_CACHE) == 0
    assert "17 %" in glossary.svg("sag", "light") and "50 %" in glossary.svg("log mass", "dark")


def test_the_page_shows_all_terms_or_the_one_of_the_address(open_page: Callable[..., AppTest]) -> None:
    every = open_page("glossary")
    assert not every.exception
    shown = " ".join(one.value for one in every.markdown)
    assert all(f"**{term}**" in shown for term in TERMS)
    one = open_page("glossary", term="log mass")
    assert TERMS["log mass"] in [text.value for text in one.markdown]
    assert TERMS["sink"] not in [text.value for text in one.markdown]
