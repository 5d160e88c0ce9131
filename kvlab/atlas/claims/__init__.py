"""The papers' claims, one file a claim or family: what is read from a run, and a pure function from rows to verdict."""

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

# Everything that recorded runs are asked for by the five papers, and that ships; `head_shares` is asked here only.
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
