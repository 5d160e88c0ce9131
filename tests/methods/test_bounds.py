"""Every number of every method's settings ends somewhere, says where, and works there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from kvlab.core.contract.method import make_method, registered
from kvlab.core.contract.preset import LEAST, MOST, MOST_WHOLE
from kvlab.core.errors import UserError


def numbers() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, setting and schema of every number."""
    for name, method in registered().items():
        for field, schema in method.model_json_schema().get("properties", {}).items():
            for part in schema.get("anyOf", [schema]):
                if part.get("type") in ("integer", "number"):
                    yield name, field, part


def ends(part: dict[str, Any]) -> list[float]:
    """The least and the most that a number's schema allows, next to an end that is not allowed itself."""
    step = 1 if part["type"] == "integer" else 1e-6
    given = {"minimum": 0, "maximum": 0, "exclusiveMinimum": step, "exclusiveMaximum": -step}
    return [part[name] + inside for name, inside in given.items() if name in part]


def test_every_number_says_where_it_ends() -> None:
    found = list(numbers())
    assert len(found) > 100
    for name, field, part in found:
        assert len(ends(part)) == 2, (name, field)
        assert max(map(abs, ends(part))) <= (MOST_WHOLE if part["type"] == "integer" else MOST), (name, field)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2 * MOST, LEAST / 2, 2**70, -(2**70), MOST_WHOLE + 1])
def test_no_number_goes_beyond(value: float) -> None:
    """But what is no number to a setting (a fraction for a count) it refuses by itself."""
    for name, field, part in numbers():
        if part["type"] == "integer" and isinstance(value, float):
            continue
        if part["type"] == "number" and isinstance(value, int) and value <= MOST:
            continue
        with pytest.raises(UserError) as refused:
            make_method(name, **{field: value})
        assert "\n" not in str(refused.value), (name, field)


@pytest.mark.parametrize(
    ("name", "given", "named"),
    [
        ("zsmerge", {"recent": 0.9, "residual": 0.9}, "share one budget"),
        ("compose", {"settle": "h2o"}, "settle 'evict'"),
        ("compose", {"settle": "snapkv"}, "settle 'evict'"),
        ("chunkkv", {"kernel": 4}, "odd"),
        ("grkv", {"ridge": 1e-300}, "0.000001"),
        ("attention-matching", {"ridge": 1e-300}, "1e-09"),
        ("exactmerge2", {"ridge": 1e-300}, "1e-09"),
    ],
)
def test_settings_that_cannot_be_meant(name: str, given: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        make_method(name, **given)
