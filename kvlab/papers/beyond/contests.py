"""Claims decided by two arms on the same prompts."""

from __future__ import annotations

from kvlab.papers.beyond.contest import LEVEL_KL, MORE, NEEDLES, TEXT, Contest
from kvlab.papers.evaluations import NOT_BEHIND, Arm

FULL = Arm("full")
MATCHING = Arm("attention-matching", {"ridge": 0.1, "bias": False, "on_policy": False})
GRKV = Arm("grkv")
# the paper's blocks have 128 tokens
BLOCKS = Arm("keydiff")
AT_ONCE = Arm("keydiff", {"block": 0})


def reading(name: str, **options: float) -> Arm:
    """Every token held, a part of the slots read at each step."""
    return Arm("sparse", {"read": name, **options})


CONTESTS = (
    Contest(
        "tab-1", "KVzip against SnapKV, the question unseen",
        "KVzip: compressed before the question is known, a cache serves any question; SnapKV's does not.",
        "How far SnapKV falls where its window cannot hold the question.",
        Arm("kvzip"), Arm("snapkv"), 0.1, NEEDLES, short="KVzip, question unseen",
    ),
    Contest(
        "tab-2", "A repetition against the question itself",
        "KVzip: what the text asks of itself covers what is asked of it, even where the question could be seen.",
        "Whether reading the context again is as good as reading the question.",
        Arm("kvzip"), Arm("snapkv"), 0.1, NEEDLES, unseen=False, threshold=NOT_BEHIND, short="KVzip, question seen",
    ),
    Contest(
        "tab-3", "The largest attention against the mean",
        "KVzip: a pair's score is the most attention it gets from the repetition, and not the mean.",
        "Whether the mean loses what one query alone looks at.",
        Arm("kvzip", {"over": "max"}), Arm("kvzip", {"over": "mean"}), 0.05, NEEDLES,
        names=("largest attention", "mean attention"), short="Largest or mean attention",
    ),
    Contest(
        "tab-4", "Budgets by head against equal heads",
        "Attention Matching: head budgets are the biggest part of it.",
        "Whether one cut over the model beats as many slots in every head.",
        Arm("attention-matching", {"ridge": 0.1, "bias": False, "on_policy": False, "allocate": "global"}),
        Arm("attention-matching", {"ridge": 0.1, "bias": False, "on_policy": False, "allocate": "equal"}), 0.1, NEEDLES,
        names=("budgets by head", "equal heads"), short="Budgets by head",
    ),
    Contest(
        "tab-5", "Fitted log mass",
        "Attention Matching: a fitted bias a slot, the least of its parts, still helps.",
        "The sign of the difference: with a bias minus without.",
        Arm("attention-matching", {"ridge": 0.1, "bias": True, "on_policy": False}), MATCHING, 0.05, TEXT,
        names=("with bias", "without bias"),
    ),
    Contest(
        "tab-6", "Refitting with a ridge and without",
        "GRKV: a refit of values needs a ridge, without which it harms.",
        "How large KL gets where the least squares are plain.",
        MATCHING, Arm("attention-matching", {"ridge": 0.0, "bias": False, "on_policy": False}), 0.2, TEXT,
        names=("with ridge", "without ridge"), short="Refitting with a ridge",
    ),
    Contest(
        "tab-7", "GRKV against its base",
        "GRKV: fitting the survivors' values to the full outputs improves on the eviction beneath.",
        "Whether the interval of the difference lies above zero.",
        GRKV, Arm("snapkv"), 0.1, TEXT, samples=MORE,
    ),
    Contest(
        "tab-8", "More queries for GRKV's fit",
        "GRKV: 32 surrogate queries are best; 64 make it worse.",
        "The sign of the difference: 32 rows minus 64.",
        Arm("grkv", {"rows": 32}), Arm("grkv", {"rows": 64}), 0.1, TEXT, names=("32 queries", "64 queries"),
    ),
    Contest(
        "tab-9", "4-bit slots",
        "KIVI: 4 bits are free, also where heads share keys.",
        "Whether the loss stays within five points of score.",
        Arm("packed", {"store": "kivi4"}), FULL, 1.0, ("needle", "key_value", "few_shot"), threshold=NOT_BEHIND,
        samples=MORE, names=("4 bits", ""),
    ),
    Contest(
        "tab-10", "2-bit slots",
        "KIVI under grouped queries: 2 bits cost where 4 do not.",
        "KL to the full cache with 2 bits, and with 4.",
        Arm("packed", {"store": "kivi4"}), Arm("packed", {"store": "kivi2"}), 1.0, TEXT, names=("4 bits", "2 bits"),
    ),
    Contest(
        "tab-11", "KVzip at a third of the cache",
        "KVzip: a cache three times smaller loses nothing in context.",
        "Whether few-shot prompts and lists keep their score.",
        Arm("kvzip"), FULL, 0.33, ("few_shot", "key_value"), threshold=NOT_BEHIND, samples=MORE,
    ),
    Contest(
        "tab-12", "Heads that stream",
        "DuoAttention: heads that retrieve need the text, all others only sinks and the newest tokens.",
        "Whether whole heads kept beat the same bytes of sinks and newest tokens in every head.",
        Arm("duoattention", {"sinks": 4, "recent": 16}), Arm("streaming-llm"), 0.5, NEEDLES, names=("duoattention", ""),
    ),
    Contest(
        "tab-13", "Keys alone, without attention",
        "KeyDiff: keys unlike the others are what a text needs, without any attention.",
        "On text, not on needles: digits in prose have unusual keys.",
        Arm("keydiff"), Arm("snapkv"), 0.2, TEXT, threshold=LEVEL_KL,
    ),
    Contest(
        "tab-14", "On-policy queries",
        "Attention Matching: queries read through the layers already compressed fit better than the full cache's.",
        "The sign of the difference: on-policy minus not, both without self-study.",
        Arm("attention-matching", {"ridge": 0.1, "bias": False, "on_policy": True}), MATCHING, 0.05, TEXT,
        names=("on-policy", "off-policy"),
    ),
    Contest(
        "tab-15", "Predicted instead of rehearsed",
        "KVzap: networks on hidden states give what KVzip finds, in one pass.",
        "Whether the prediction is within five points of the second reading.",
        # The published window of 128 tokens would use most of a short prompt's budget.
        Arm("kvzap", {"recent": 16}), Arm("kvzip"), 0.2, NEEDLES, threshold=NOT_BEHIND, samples=MORE,
        names=("kvzap", ""),
    ),
    Contest(
        "tab-16", "KeyDiff block by block: needles",
        "KeyDiff: cut back to the budget after every block of 128 tokens, it finds needles as it does at once.",
        "Whether blocks, which never hold the whole prompt, stay within five points of score.",
        BLOCKS, AT_ONCE, 0.2, ("needle",), threshold=NOT_BEHIND, samples=2 * MORE, names=("in blocks", "at once"),
        short="KeyDiff in blocks: needles",
    ),
    Contest(
        "tab-17", "KeyDiff block by block: text",
        "KeyDiff: cut back to the budget after every block of 128 tokens, it goes on with a text as well as at once.",
        "How many nats more of KL blocks have than the whole prompt at once.",
        BLOCKS, AT_ONCE, 0.2, TEXT, threshold=LEVEL_KL, samples=3 * MORE, names=("in blocks", "at once"),
        short="KeyDiff in blocks: text",
    ),
    Contest(
        "tab-18", "KeyDiff block by block: lists",
        "KeyDiff: cut back to the budget after every block of 128 tokens, it finds a list's entries as at once.",
        "Whether a list, whose keys are all unusual, loses more where it is cut block by block.",
        BLOCKS, AT_ONCE, 0.2, ("key_value",), threshold=NOT_BEHIND, samples=2 * MORE, names=("in blocks", "at once"),
        short="KeyDiff in blocks: lists",
    ),
    Contest(
        "tab-19", "Quest's pages against random slots",
        "Quest: a bound on the logits of a page finds the pages that a query needs.",
        "How much closer to the full cache the bounded pages are, where as many slots are read.",
        reading("quest", read_share=0.1), reading("random", read_share=0.1), 1.0, TEXT, names=("Quest", "random slots"),
        short="Quest against random slots",
    ),
    Contest(
        "tab-20", "A tenth of the slots read by Quest",
        "Quest: a small share of the pages, chosen for each query, answers as the whole cache does.",
        "Whether the loss stays within five points of score.",
        reading("quest", read_share=0.1), FULL, 1.0, NEEDLES, threshold=NOT_BEHIND, samples=MORE, names=("Quest", ""),
        short="Quest at a tenth",
    ),
    Contest(
        "tab-21", "A sixteenth of the slots read by Double Sparsity",
        "Double Sparsity: a sixteenth of the tokens, found by a few channels of the keys, loses nothing.",
        "Whether the loss stays within five points of score.",
        reading("double-sparsity", read_share=0.0625), FULL, 1.0, NEEDLES, threshold=NOT_BEHIND, samples=MORE,
        names=("Double Sparsity", ""), short="Double Sparsity at a sixteenth",
    ),
    Contest(
        "tab-22", "Product-quantised keys against bounds of pages",
        "PQCache: quantised keys find the slots of a query better than bounds of whole pages.",
        "The sign of the difference, where as many slots are read.",
        reading("pqcache", read_share=0.1), reading("quest", read_share=0.1), 1.0, TEXT, names=("PQCache", "Quest"),
        short="PQCache against Quest",
    ),
    Contest(
        "tab-23", "Centroids for what is not read",
        "RetroInfer: centroids that stand for unread clusters bring the output closer to the full cache's.",
        "The sign of the difference: with estimated clusters minus without.",
        reading("retroinfer"), reading("retroinfer/estimate=0"), 1.0, TEXT, names=("estimated", "left out"),
    ),
    Contest(
        "tab-24", "A random sample beside the heaviest slots",
        "vAttention: a sample of the rest, with weights, estimates what the heaviest slots alone leave out.",
        # At 1,024 tokens vAttention reads a third of mini's slots.
        "The sign of the difference to the third of the slots with truly highest attention, about as many as it reads.",
        reading("vattention"), reading("oracle-topk", read_share=0.33), 1.0, TEXT,
        names=("vAttention", "highest attention"), short="vAttention's sample",
    ),
    Contest(
        "tab-25", "Compactor against SnapKV, the question unseen",
        "Compactor: leverage and attention within chunks serve questions that were not in sight.",
        "How far SnapKV falls where its window cannot hold the question.",
        Arm("compactor"), Arm("snapkv"), 0.2, NEEDLES, short="Compactor, question unseen",
    ),
    Contest(
        "tab-26", "Lengths of keys and values against attention",
        "CurDKV: leverage of keys and values keeps more of a text than the attention of its last tokens.",
        "Whether the interval of the difference lies above zero.",
        Arm("cur"), Arm("snapkv"), 0.1, TEXT, samples=MORE, short="CurDKV against SnapKV",
    ),
    Contest(
        "tab-27", "Chunks gated by entropy",
        "Entropy-gated ChunkKV: a chunk with one good token is not worth all its slots.",
        "Whether the gate finds more needles and entries of lists than whole chunks.",
        Arm("entropy-gated-chunkkv"), Arm("chunkkv"), 0.2, NEEDLES, names=("gated", "whole chunks"),
        short="Entropy-gated chunks",
    ),
    Contest(
        "tab-28", "A share of the budget drawn at random",
        "NACL: slots drawn at random beside the highest scores make eviction more robust.",
        "The sign of the difference: a tenth drawn minus none, the question unseen.",
        Arm("nacl", {"drawn": 0.1}), Arm("nacl", {"drawn": 0.0}), 0.2, TEXT, samples=MORE,
        names=("a tenth drawn", "none drawn"), short="A share drawn at random",
    ),
)  # fmt: skip
TABLES = tuple(one.exhibit() for one in CONTESTS)
