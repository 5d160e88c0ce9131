"""Every method has a plain slow reference for what it keeps: those without a file of their own are here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvlab.core.methods import make_method, registered
from tests.cache.layers import HandLayer, draw
from tests.methods.merging import ROTARY, Layer
from tests.methods.test_selection import BUDGET, DIM, TOKENS, kept, mass_of, prompt, top

HERE = Path(__file__).parent
# Where each method's kept slots are compared with its formulas, written token by token.
REFERENCES = {
    "window": "test_selection.py::test_recency_methods",
    "streaming-llm": "test_selection.py::test_recency_methods",
    "h2o": "test_selection.py::test_h2o_prefill_and_decode",
    "snapkv": "test_selection.py::test_snapkv_window",
    "pyramidkv": "test_allocation.py::test_pyramidkv_keeps_the_best_of_its_layers_budget",
    "adakv": "test_allocation.py::test_adakv_against_a_slow_reference",
    "pyramidinfer": "test_allocation.py::test_pyramidinfer_prompt_and_decode",
    "tova": "test_plain_scores.py::test_tova_keeps_what_the_newest_query_looks_at",
    "keydiff": "test_plain_scores.py::test_keydiff_token_by_token",
    "key-norm": "test_plain_scores.py::test_key_norm_token_by_token",
    "lagkv": "test_plain_scores.py::test_lagkv_partition_by_partition",
    "expected-attention": "test_expected_attention.py::test_keeps_what_the_closed_form_says",
    "criticalkv": "test_critical.py::test_half_by_score_and_the_rest_by_what_it_adds",
    "defensivekv": "test_worst_case.py::test_defensivekv_covers_the_mean_first_and_then_the_worst",
    "layer-defensivekv": "test_worst_case.py::test_defensivekv_covers_the_mean_first_and_then_the_worst",
    "rkv": "test_decode_buffer.py::test_rkv_slot_by_slot",
    "chunkkv": "test_chunkkv.py::test_the_best_chunks_stay_whole",
    "grkv": "test_grkv.py::test_survivors_are_refitted_slot_by_slot",
    "asymkv": "test_pair_merge.py::test_neighbours_merge_slot_by_slot",
    "kvslimmer": "test_pair_merge.py::test_neighbours_merge_slot_by_slot",
    "simcalkv": "test_simcalkv.py::test_pairs_merge_slot_by_slot",
    "gvote": "test_gvote.py::test_against_algorithm_1",
    "zsmerge": "test_selection.py::test_zsmerge_scores_decay",
    "kvmerger": "test_kvmerger.py::test_equals_the_algorithms_token_by_token",
    "pyramid-pool": "test_pyramid_pool.py::test_equals_pooling_slot_by_slot",
    "cam": "test_cam.py::test_equals_merging_one_token_at_a_time",
    "d2o": "test_d2o.py::test_equals_the_formulas_token_by_token",
    "less": "test_references.py::test_less_keeps_what_its_evictor_keeps",
    "keepkv": "test_selection.py::test_keepkv_keeps_the_highest_predicted_scores",
    "kvzip": "../cache/test_second_pass.py::test_scores_are_those_of_a_second_reading",
    "kvzap": "test_kvzap.py::test_what_the_networks_score_highest_in_the_model_stays",
    "fast-kvzip": "test_fast_kvzip.py::test_what_the_gates_score_highest_in_the_model_stays",
    "lukv": "test_lukv.py::test_each_head_keeps_the_best_of_its_share",
    "kvzap-threshold": "test_kvzap.py::test_a_threshold_decides_how_much_each_head_keeps",
    "semanticache": "test_semanticache.py::test_clusters_token_by_token",
    "duoattention": "test_profile.py::test_a_file_gives_every_score_its_budgets",
    "attention-matching": "test_attention_matching.py::test_values_and_mass_are_the_least_squares_solutions",
    "exactmerge2": "test_exactmerge2.py::test_what_is_packed_is_fitted_to_its_rounded_keys",
    "random": "test_plain_scores.py::test_random_keeps_a_uniform_sample_of_the_text",
    "triattention": "test_query_statistics.py::test_triattention_keeps_what_the_trigonometric_series_says",
    "qfilter": "test_query_statistics.py::test_qfilter_keeps_what_lies_along_the_direction",
    "raas": "test_time_stamps.py::test_raas_evicts_what_has_been_longest_without_attention",
    "lazyeviction": "test_time_stamps.py::test_lazyeviction_evicts_what_is_silent_for_longer_than_it_used_to_be",
    "kvcompose": "test_kvcompose.py::test_heads_of_a_layer_keep_equally_many_of_their_own",
    "headkv": "test_profile.py::test_headkv_splits_by_profile_and_evenly_and_keeps_snapkvs_best",
    "nacl": "test_nacl.py::test_most_by_score_and_the_rest_by_chance",
    "vase": "test_decode_buffer.py::test_vase_slot_by_slot",
    "finch": "test_question_and_persistence.py::test_finch_weighs_queries_by_what_they_saw",
    "scissorhands": "test_question_and_persistence.py::test_scissorhands_counts_queries_below_an_equal_share",
    "morphkv": "test_decode_buffer.py::test_morphkv_slot_by_slot",
    "cap": "test_leverage.py::test_capkv_keeps_what_adds_most_to_the_determinant",
    "cur": "test_leverage.py::test_curdkv_compares_squared_lengths_within_parts",
    "compactor": "test_leverage.py::test_compactor_blends_leverage_and_attention_both_ways",
    "simlayerkv": "test_simlayerkv.py::test_lazy_layers_stream_and_the_others_keep_all",
    "entropy-gated-chunkkv": "test_chunkkv.py::test_important_chunks_with_few_high_scores_keep_only_those",
    "exactmerge": "test_references.py::test_exactmerge_keeps_the_best_and_merges_the_rest_into_the_next_best",
}


def test_no_method_is_without_one() -> None:
    assert set(REFERENCES) == set(registered()) - {"full", "packed", "sparse", "compose"}, (
        "say where the new method's reference is"
    )
    for place in REFERENCES.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (HERE / file).read_text(encoding="utf-8"), place


def test_positions_in_the_cache_keep_the_same_tokens() -> None:
    layer = Layer(make_method("streaming-llm", positions="cache"), BUDGET, ROTARY)
    layer.feed(*prompt())
    for step in range(5):
        layer.feed(draw(step, 1, 4, 1, DIM), draw(step, 1, 2, 1, DIM), draw(step, 1, 2, 1, DIM))
        seen = TOKENS + step + 1
        expected = [*range(4), *range(seen - BUDGET + 4, seen)]
        assert kept(layer) == [expected, expected]


@pytest.mark.parametrize("evictor", ["h2o", "window", "streaming-llm", "snapkv", "pyramidkv", "adakv"])
def test_less_keeps_what_its_evictor_keeps(evictor: str) -> None:
    """Step by step; its state changes outputs, and in one layer alone nothing that is scored."""
    ours, theirs = HandLayer("less", BUDGET, weights="untrained", evictor=evictor), HandLayer(evictor, BUDGET)
    for hand in (ours, theirs):
        hand.feed(*prompt())
    assert kept(ours) == kept(theirs)
    if evictor == "h2o":  # its scores are attention, of which the state now takes a part
        return
    for step in range(4):
        for hand in (ours, theirs):
            hand.feed(draw(step, 1, 4, 1, DIM), draw(step + 9, 1, 2, 1, DIM), draw(step, 1, 2, 1, DIM))
        assert kept(ours) == kept(theirs)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_exactmerge_keeps_the_best_and_merges_the_rest_into_the_next_best(share: float) -> None:
    window, residual = 4, round(BUDGET * share)
    options = {"window": window, "kernel": 1, "adaptive": False, "shares": (share,)}
    layer, (query, key, value) = Layer(make_method("exactmerge", **options), BUDGET), prompt()
    layer.feed(query, key, value)
    score = mass_of(query, key)[:, -window:].sum(1)
    _, plan, _, _ = layer.notes.decisions[0]
    assert plan.edges is not None
    for head in range(2):
        ranked = top(score[head], range(TOKENS - window), TOKENS - window)
        core = ranked[: BUDGET - window - residual]
        pivots = ranked[BUDGET - window - residual : BUDGET - window]
        assert kept(layer)[head] == sorted([*core, *pivots, *range(TOKENS - window, TOKENS)])
        edges = (part[0, head].tolist() for part in (plan.edges.source, plan.edges.target, plan.edges.active))
        given = {source: target for source, target, active in zip(*edges, strict=True) if active}
        unit = torch.nn.functional.normalize(key[0, head], dim=-1)
        rest = ranked[BUDGET - window :] if residual else []
        assert given == {token: max(pivots, key=lambda p: float(unit[p] @ unit[token])) for token in rest}
