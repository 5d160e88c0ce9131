"""SnapKV: attention of an observation window at the prompt's end, pooled over neighbours."""

from typing import ClassVar

from kvlab.methods.allocators.uniform import Uniform
from kvlab.methods.base import register
from kvlab.methods.eviction.window_scored import POOLED_EDGES, SHARED_HEADS, WindowEvicting
from kvlab.methods.going_on import GOING_ON
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.eviction.evict import Evict

WHILE_DECODING = "R-KV, rkv/compression/snapkv.py"
UTILS = "snapkv/monkeypatch/snapkv_utils.py"
ZEROS = ("zeros", f"{UTILS}, avg_pool1d counts its padding")


@register
class SnapKV(WindowEvicting):
    """Keeps the prompt tokens that the prompt's last queries look at, with their neighbours.

    Acts once, after the prompt, as published: generated tokens are kept on top of the budget, unless `decode=budget`.
    """

    name: ClassVar[str] = "snapkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "SnapKV"
    paper: ClassVar[str] = "https://arxiv.org/abs/2404.14469"

    presets: ClassVar = {
        "paper": Preset(
            "the paper's LongBench tables, with 1,024 to 4,096 slots",
            {
                "window": (32, "section 5.3"),
                "kernel": (7, "section 5.3; LongBench/config/ablation_c1024_w32_k7_maxpool.json"),
                "pooling": ("max", "section 5.3; the same file"),
            },
            SHARED_HEADS,
        ),
        "needle": Preset(
            "the paper's needle in a haystack and its ablation of pooling, with 1,024 slots",
            {
                "window": (16, "sections 5.1.1 and 5.2"),
                "kernel": (5, "sections 5.1.1 and 5.2"),
                "pooling": ("max", "sections 5.1.1 and 5.2"),
            },
            SHARED_HEADS,
        ),
        "command-r": Preset(
            "the paper's experiments with Command-R, with 4,096 slots",
            {"window": (64, "section 5.4"), "kernel": (13, "section 5.4")},
            SHARED_HEADS,
        ),
        "decode": Preset(
            "what R-KV compares itself with: SnapKV while decoding",
            {
                "window": (8, f"{WHILE_DECODING}, window_size"),
                "kernel": (7, f"{WHILE_DECODING}, kernel_size"),
                "pooling": ("max", f"{WHILE_DECODING}, max_pool1d"),
                "decode": ("budget", "R-KV, README, baselines"),
                "buffer": (128, "R-KV, run_math.py, divide_length"),
            },
            "There the group's highest logit is taken before the softmax, and the window gets no part of it.",
        ),
        "code": Preset(
            "what the authors' code does where a model's config says nothing, with 2,048 slots",
            {
                "window": (32, f"{UTILS}, init_snapkv"),
                "kernel": (5, f"{UTILS}, init_snapkv"),
                "pooling": ("average", f"{UTILS}, init_snapkv"),
                "edges": ZEROS,
            },
            SHARED_HEADS,
        ),
        "class": Preset(
            "the defaults of the authors' class, with 320 slots",
            {
                "window": (64, f"{UTILS}, SnapKVCluster"),
                "kernel": (5, f"{UTILS}, SnapKVCluster"),
                "pooling": ("average", f"{UTILS}, SnapKVCluster"),
                "edges": ZEROS,
            },
            SHARED_HEADS,
        ),
    }
    reasons: ClassVar = {
        "window": "the paper's LongBench tables; 16 is for its needle test, 64 for Command-R and the class's default",
        "kernel": "the paper's LongBench tables; 5 is for its needle test and the code's own default, 13 for Command-R",
        "pooling": "the paper's tables; the code's own default averages, and section 5.2 sees no clear difference",
        "edges": POOLED_EDGES,
        **GOING_ON,
    }

    def pipeline(self) -> Pipeline:
        """Pooled window attention, the window protected, prefill only."""
        score = self.window_attention()
        select = LowestScore(recent=self.window)
        return self.going_on(Pipeline(score, Uniform(), select, Evict(), decode=False))
