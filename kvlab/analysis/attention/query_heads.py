"""How many query heads of a model look at one slot."""

from kvlab.trace.reader import Run


def query_heads_a_slot(run: Run) -> int:
    """Query heads to a KV head; above 1 no merged slot can be exact for each of them (docs/grouped-queries.md)."""
    return run.record.model.num_attention_heads // run.record.model.num_key_value_heads
