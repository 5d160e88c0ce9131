"""Edits of tokens add up, replace one another, and can be undone."""

from __future__ import annotations

import pytest

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.restore import Restore
from kvlab.requests.live_session import edit_tokens, edit_words, without_edits

PLAIN = MethodChoice(method="h2o", budget=0.2)


def test_a_token_is_kept_or_dropped_never_both() -> None:
    kept = edit_tokens(edit_tokens(PLAIN, "keep", [5, 3]), "keep", [4])
    assert (kept.force_keep, kept.returned) == ((3, 4, 5), None)
    both = edit_tokens(edit_tokens(kept, "drop", [4]), "drop", [9])
    assert (both.force_keep, both.returned) == ((3, 5), Restore(kind="drop", tokens=(4, 9)))
    back = edit_tokens(both, "keep", [4, 9])
    assert (back.force_keep, back.returned) == ((3, 4, 5, 9), None)
    assert edit_words(both) == "keeps tokens 3, 5; without tokens 4, 9"
    assert (without_edits(both), edit_words(PLAIN)) == (PLAIN, "")


def test_a_merged_token_is_no_longer_kept_or_dropped() -> None:
    dropped = edit_tokens(edit_tokens(PLAIN, "keep", [3]), "drop", [5])
    merged = edit_tokens(dropped, "merge", [3, 5])
    assert (merged.force_keep, merged.returned) == ((), Restore(kind="merge", tokens=(3, 5)))
    assert edit_words(merged) == "merging tokens 3, 5"
    assert without_edits(merged) == PLAIN


def test_edits_of_one_head_add_up_and_do_not_replace_others() -> None:
    first = edit_tokens(PLAIN, "keep", [5], head=(2, 1))
    second = edit_tokens(first, "keep", [6], head=(2, 1))
    assert second.returned == Restore(kind="tokens", tokens=(5, 6), heads=((2, 1),))
    assert edit_tokens(second, "keep", [7]).returned == second.returned, "beside tokens kept everywhere"
    for edit, head in (("keep", (0, 0)), ("drop", (2, 1)), ("drop", None)):
        with pytest.raises(UserError, match=r"already has the edit “\+ tokens 5-6 in layer 2 head 1”: undo it first"):
            edit_tokens(second, edit, [8], head)
