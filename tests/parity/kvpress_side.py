"""Run by kvpress's own Python (`make parity`): a recording of each press's cache, and ThinK's channels as JSON.

Usage: kvpress_side.py MODEL_FOLDER GIVEN_FOLDER KEEP_RATIO WINDOW KERNEL. The given folder holds the recorder
(`kvlab watch --write`) and gets the recordings.
"""

import json
import sys
from pathlib import Path

import torch
from kvpress import (
    AdaKVPress,
    CapPress,
    ChunkKVPress,
    CompactorPress,
    CriticalKVPress,
    CURPress,
    EntropyGatedChunkKVPress,
    ExpectedAttentionPress,
    FastKVzipPress,
    FinchPress,
    KeyDiffPress,
    KnormPress,
    KVComposePress,
    KVzipPress,
    LagKVPress,
    LUKVPress,
    ObservedAttentionPress,
    PyramidKVPress,
    QFilterPress,
    SimLayerKVPress,
    SnapKVPress,
    StreamingLLMPress,
    ThinKPress,
    TOVAPress,
)
from kvpress.presses.fastkvzip_press import FastKVzipGate
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, DynamicCache


def main() -> None:
    folder, place, keep, window, kernel = sys.argv[1:]
    given = Path(place)
    ids = torch.tensor([json.loads((given / "ids.json").read_text())])
    ratio, options = 1 - float(keep), {"window_size": int(window), "kernel_size": int(kernel)}
    presses = {
        "streaming-llm": (StreamingLLMPress(ratio, n_sink=4), "sdpa"),
        "snapkv": (SnapKVPress(ratio, **options), "sdpa"),
        "pyramidkv": (PyramidKVPress(ratio, beta=4, **options), "sdpa"),
        "adakv": (AdaKVPress(SnapKVPress(ratio, **options), alpha_safeguard=0.2), "sdpa"),
        "observed-attention": (ObservedAttentionPress(ratio), "eager"),
        "cap": (CapPress(ratio), "sdpa"),
        "cur": (CURPress(ratio), "sdpa"),
        "compactor": (CompactorPress(ratio, blending=0.35), "sdpa"),
        "entropy-gated-chunkkv": (
            EntropyGatedChunkKVPress(SnapKVPress(ratio, window_size=int(window), kernel_size=1)),
            "sdpa",
        ),
        "finch": (finch(ratio, int(window)), "sdpa"),
        "tova": (TOVAPress(ratio), "sdpa"),
        "lagkv": (LagKVPress(ratio, n_sink=4, lag_size=32), "sdpa"),
        "keydiff": (KeyDiffPress(ratio), "sdpa"),
        "key-norm": (KnormPress(ratio), "sdpa"),
        "criticalkv": (CriticalKVPress(SnapKVPress(ratio, **options)), "sdpa"),
        "chunkkv": (ChunkKVPress(SnapKVPress(ratio, window_size=int(window), kernel_size=1), chunk_length=10), "sdpa"),
        "qfilter": (qfilter(ratio, given / "filters.json"), "sdpa"),
        "fast-kvzip": (fast_kvzip(ratio, given / "gates.safetensors"), "sdpa"),
        **{name: (lukv(ratio, given / f"{name}.json"), "sdpa") for name in ("lukv", "lukv-whole")},
        "kvzip": (KVzipPress(ratio), "sdpa"),
        "kvcompose": (KVComposePress(compression_ratio=ratio), "eager"),
        "simlayerkv": (SimLayerKVPress(lazy_threshold=0.5, n_recent=65), "sdpa"),
    }
    sys.path.insert(0, place)
    from kvlab_watch import watch

    for name, (press, attention) in presses.items():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
        with watch(model, title=name, path=str(given / f"{name}.kvlab"), logits=False), torch.no_grad(), press(model):
            model(ids, past_key_values=DynamicCache())
    (given / "think.json").write_text(json.dumps(channels(folder, ids, 0.4)))


def finch(ratio: float, window: int) -> FinchPress:
    """With a window of a known length, so that no delimiter has to be found; keys stay where they are."""
    press = FinchPress(ratio, rerotate_keys=False)
    press.window_size, press.delimiter_token_id = window, -1
    return press


def fast_kvzip(ratio: float, gates: Path) -> FastKVzipPress:
    """With gates from a file, by layer and parameter, in place of those of the hub."""
    press, given = FastKVzipPress(ratio), load_file(gates)
    press.gates = []
    for layer in range(len({name.partition(".")[0] for name in given})):
        state = {name.partition(".")[2]: tensor for name, tensor in given.items() if name.startswith(f"{layer}.")}
        heads, _, sinks, rank = state["k_base"].shape
        width, group = state["k_proj.weight"].shape[1], state["b"].shape[2]
        gate = FastKVzipGate(layer, width, heads, group, torch.float32, rank, sinks)
        gate.load_state_dict(state)
        press.gates.append(gate)
    return press


def lukv(ratio: float, curves: Path) -> LUKVPress:
    """With curves (99, layers, KV heads) from a file, in place of those of the hub."""
    press = LUKVPress(ExpectedAttentionPress(epsilon=2e-2), ratio)
    press._budget_curves = torch.tensor(json.loads(curves.read_text())).numpy()
    return press


def qfilter(ratio: float, filters: Path) -> QFilterPress:
    """With filters (layers, KV heads, d) from a file, in place of those of the hub."""
    press = QFilterPress(ratio)
    press.q_filters = torch.tensor(json.loads(filters.read_text()))
    press.post_init_from_model = lambda model: None
    return press


def channels(folder: str, ids: torch.Tensor, ratio: float) -> list[list[list[int]]]:
    """Channels that ThinK leaves of the keys, by layer and KV head."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    cache = DynamicCache()
    with torch.no_grad(), ThinKPress(ratio, window_size=32)(model):
        model(ids, past_key_values=cache)
    return [[(head != 0).any(0).nonzero()[:, 0].tolist() for head in layer.keys[0]] for layer in cache.layers]


main()
