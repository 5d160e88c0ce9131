"""Budgets of bytes beside methods that take none are told, not silently dropped."""

from __future__ import annotations

from kvlab.core.methods.spec import parse_choices, unused_byte_budgets


def test_methods_without_a_budget_say_that_bytes_do_not_bind_them() -> None:
    told = unused_byte_budgets("gvote,h2o", "10%B")
    assert told.startswith("GVote takes no budget: it holds as many bytes as it needs, whatever ")
    assert unused_byte_budgets("gvote,kvzap-threshold,snapkv", "10%B,64MiB").startswith(
        "GVote and KVzap by threshold take no"
    )
    assert unused_byte_budgets("h2o,snapkv,full", "10%B") == "" and unused_byte_budgets("gvote", "0.2,128") == ""
    assert [choice.budget for choice in parse_choices("gvote,h2o", "10%B")] == [1.0, "10%B"]
