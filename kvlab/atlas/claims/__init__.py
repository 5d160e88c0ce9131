"""The papers' claims, one module per claim or family: rows read from runs, and functions from rows to verdicts."""

from __future__ import annotations

from kvlab.atlas.claims import (
    attention,
    kernel,
    layer_order,
    locality,
    merging_sets,
    pyramid,
    sag,
    sampled_queries,
    slot_influence,
    zsmerge,
)

# Evidence read from recorded runs and shipped with kvlab; `head_shares` is not shipped.
EVIDENCE = (
    attention.CONCENTRATION,
    attention.RETURNING,
    attention.IN_TIME_ROWS,
    attention.PREDICTING,
    kernel.EVIDENCE,
    layer_order.EVIDENCE,
    locality.EVIDENCE,
    merging_sets.EVIDENCE,
    pyramid.AXES,
    pyramid.LINES,
    pyramid.WINDOWS,
    pyramid.DISTANCES,
    sag.EVIDENCE,
    sampled_queries.CHANNELS,
    sampled_queries.QUERIES,
    slot_influence.EVIDENCE,
    zsmerge.DRIFT,
    zsmerge.FILLED,
)
