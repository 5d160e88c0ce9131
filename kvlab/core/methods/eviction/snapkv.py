"""SnapKV: attention of an observation window at the prompt's end, pooled over neighbours."""

from kvlab.core.contract import Preset, register
from kvlab.core.methods.eviction import window_methods


@register
class SnapKV(window_methods.WindowEvicting):
    """Keeps the prompt tokens that the prompt's last queries attend to, with their neighbours.

    Acts once, after the prompt, as published: generated tokens are kept in addition to the budget, unless
    `decode=budget`.
    """

    name = "snapkv"
    family = "eviction"
    title = "SnapKV"
    paper = "https://arxiv.org/abs/2404.14469"
    presets = {
        "paper": Preset(
            "the paper's LongBench tables, with 1,024 to 4,096 slots",
            {
                "window": (32, "section 5.3"),
                "kernel": (7, "section 5.3; LongBench/config/ablation_c1024_w32_k7_maxpool.json"),
                "pooling": ("max", "section 5.3; the same file"),
            },
            beyond=window_methods.SHARED_HEADS,
        ),
        "needle": Preset(
            "the paper's needle in a haystack and its ablation of pooling, with 1,024 slots",
            {
                "window": (16, "sections 5.1.1 and 5.2"),
                "kernel": (5, "sections 5.1.1 and 5.2"),
                "pooling": ("max", "sections 5.1.1 and 5.2"),
            },
            beyond=window_methods.SHARED_HEADS,
        ),
        "command-r": Preset(
            "the paper's experiments with Command-R, with 4,096 slots",
            {
                "window": (64, "section 5.4"),
                "kernel": (13, "section 5.4"),
            },
            beyond=window_methods.SHARED_HEADS,
        ),
        "decode": Preset(
            "R-KV's baseline: SnapKV while decoding",
            {
                "window": (8, "R-KV, rkv/compression/snapkv.py, window_size"),
                "kernel": (7, "R-KV, rkv/compression/snapkv.py, kernel_size"),
                "pooling": ("max", "R-KV, rkv/compression/snapkv.py, max_pool1d"),
                "decode": ("budget", "R-KV, README, baselines"),
                "buffer": (128, "R-KV, run_math.py, divide_length"),
            },
            beyond="The original takes the group's highest logit before the softmax, and excludes the window from it.",
        ),
        "rocketkv": Preset(
            "RocketKV: SnapKV with a wide kernel, then pages of the survivors at each step, with 2,048 slots",
            {
                "window": (32, "TensorRT-LLM, RocketSparseAttentionConfig, window_size"),
                "kernel": (63, "TensorRT-LLM, RocketSparseAttentionConfig, kernel_size"),
                "read": ("rocketkv", "RocketKV (arXiv 2502.14051), the second stage"),
            },
            beyond=window_methods.SHARED_HEADS,
        ),
        "code": Preset(
            "the authors' code with its defaults and 2,048 slots",
            {
                "window": (32, "snapkv/monkeypatch/snapkv_utils.py, init_snapkv"),
                "kernel": (5, "snapkv/monkeypatch/snapkv_utils.py, init_snapkv"),
                "pooling": ("average", "snapkv/monkeypatch/snapkv_utils.py, init_snapkv"),
                "edges": ("zeros", "snapkv/monkeypatch/snapkv_utils.py, avg_pool1d includes its padding"),
            },
            beyond=window_methods.SHARED_HEADS,
        ),
        "class": Preset(
            "the defaults of the authors' class, with 320 slots",
            {
                "window": (64, "snapkv/monkeypatch/snapkv_utils.py, SnapKVCluster"),
                "kernel": (5, "snapkv/monkeypatch/snapkv_utils.py, SnapKVCluster"),
                "pooling": ("average", "snapkv/monkeypatch/snapkv_utils.py, SnapKVCluster"),
                "edges": ("zeros", "snapkv/monkeypatch/snapkv_utils.py, avg_pool1d includes its padding"),
            },
            beyond=window_methods.SHARED_HEADS,
        ),
    }
    reasons = {
        "window": "the paper's LongBench tables; 16 is for its needle test, 64 for Command-R and the class's default",
        "kernel": "the paper's LongBench tables; 5 is for its needle test and the code's own default, 13 for Command-R",
        "pooling": "the paper's tables; the code's own default averages, and section 5.2 sees no clear difference",
        **window_methods.WINDOW_REASONS,
        "decode": window_methods.PROMPT_ONLY,
        "buffer": window_methods.RKV_BUFFER,
    }
