"""Pages and levels against plain loops, and the table that ships against the document that shows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvlab.core.errors import UserError
from kvlab.core.method_spec import parse_spec
from kvlab.core.methods import make_method, registered
from kvlab.planning.serving_table import (
    BEGIN,
    FURTHER,
    PAGES,
    Freed,
    Held,
    fragmentation,
    held_counts,
    markdown,
    read_csv,
    replace_between,
    touched_pages,
    write_csv,
)
from tests.planning.declared import Declared

ROOT = Path(__file__).resolve().parents[2]
NOTHING = Held(False, False, False, False)


@pytest.mark.parametrize("page", [1, 4, 7, 50])
def test_only_pages_without_a_kept_slot_are_free(page: int) -> None:
    kept = np.random.default_rng(page).random((2, 3, 43)) < 0.12
    free = {"head": 0, "layer": 0, "model": 0}
    for first in range(0, 43, page):
        tokens = range(first, min(first + page, 43))
        for layer in range(2):
            for head in range(3):
                free["head"] += len(tokens) * (not any(kept[layer, head, t] for t in tokens))
            free["layer"] += 3 * len(tokens) * (not any(kept[layer, :, t].any() for t in tokens))
        free["model"] += 6 * len(tokens) * (not any(kept[:, :, t].any() for t in tokens))
    found = Freed.from_kept(kept, page)
    for name, count in free.items():
        assert getattr(found, name) == pytest.approx(count / kept.size)
    assert found.head >= found.layer >= found.model
    assert touched_pages(kept, 1).sum() == kept.sum()
    held = [len(range(first, min(first + page, 43))) * 3 * int(kept[layer, :, first : first + page].any())
            for layer in range(2) for first in range(0, 43, page)]  # fmt: skip
    assert fragmentation(kept, page) == pytest.approx(1 - kept.sum() / sum(held))


def test_the_level_is_the_most_that_is_needed() -> None:
    assert [
        replace(NOTHING, **flags).level
        for flags in (
            {}, {"apart": True, "new_values": True}, {"logical": True}, {"logical": True, "by_layer": True},
            {"by_layer": True, "by_head": True}, {"log_mass": True}, {"merged_keys": True}, {"state": True},
        )
    ] == [0, 0, 1, 2, 3, 4, 4, 4]  # fmt: skip
    assert held_counts(np.array([[3, 3], [3, 3]])) == (False, False)
    assert held_counts(np.array([[3, 3], [4, 4]])) == (False, True)
    assert held_counts(np.array([[2, 4], [4, 2]])) == (True, False)


def test_the_document_shows_the_table_that_ships(tmp_path: Path) -> None:
    """And reading and writing it changes nothing."""
    text = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    assert replace_between(text, BEGIN, markdown(read_csv())) == text, (
        "run `kvlab serve-check --all --write docs/serving.md`"
    )
    write_csv(read_csv(), tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (ROOT / "kvlab/planning/serving_methods.csv").read_bytes()
    with pytest.raises(UserError, match="has no lines"):
        replace_between("# Nothing", BEGIN, markdown(read_csv()))


def test_the_table_has_every_method_and_what_it_declares() -> None:
    """That what a method does is what it declares is asked of tiny models in test_servability.py."""
    rows = read_csv()
    missing = {*registered()} - {row.method for row in rows}
    assert not missing, "run `kvlab serve-check --all --write docs/serving.md`"
    assert [row.method for row in rows] == [*registered(), *FURTHER]
    for row in rows:
        name, values = parse_spec(row.method)
        declared = Declared.from_method(make_method(name, **values))
        seen = (row.held.log_mass, row.decodes, row.second_pass, "hidden states" in row.reads_prompt)
        assert seen == (declared.log_mass, declared.decodes, declared.second_pass, declared.hidden), row.method
        assert row.reads_decode or not declared.reads_decode, row.method
        assert row.store == make_method(name, **values).store
        assert all(0 <= own.model <= own.layer <= own.head < 1 for own in row.freed.values())
        assert [*row.freed] == [*PAGES]
