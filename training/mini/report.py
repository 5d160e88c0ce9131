"""The acceptance table of a mini model: full cache, evaluation seeds, validation books only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from training.mini import measures, task_rows
from training.mini.presets import CPU_PHASES, Phase
from training.mini.rows import Row
from training.mini.text import Text, validation_text

SEED = 2  # below phrasing.TRAINING_SEED_START
SINK_SHARE = 0.3
INDUCTION_SHARE = 0.3
CONTEXTS = (128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Line:
    """One measure: its name, the result, and the requirement of issue 2 (empty if only reported)."""

    measure: str
    value: str
    wanted: str = ""


def _row_maker(text: Text, length: int, make: Callable[..., Row], **exactly: object) -> Callable[..., Row]:
    needles, pairs = (1, 64) if make is task_rows.needle_row else (8, 64)
    phase = Phase("report", CPU_PHASES[-1].shape, length, 1, 1, 0.0, {}, 0.0, needles=needles, pairs=pairs)
    return lambda rng: make(rng, text, phase, **exactly)


def recall_lines(model: LlamaForCausalLM, text: Text, samples: int) -> Iterator[Line]:
    """Share of answers predicted in full, `samples` prompts each."""
    longest = model.config.max_position_embeddings
    tests: list[tuple[str, int, Callable[..., Row], dict[str, int], str]] = [
        (f"one needle, {n} tokens", n, task_rows.needle_row, {"count": 1}, "98 %") for n in (1024, 2048, 4096)
    ]
    tests += [
        ("eight needles, all asked, 2048 tokens", 2048, task_rows.needle_row, {"count": 8}, "95 %"),
        ("key-value recall, 64 pairs, 1024 tokens", 1024, task_rows.key_value_row, {"count": 64}, "95 %"),
        ("variable tracking, 3 hops, 1024 tokens", 1024, task_rows.variables_row, {"hops": 3}, "80 %"),
        ("few-shot labels, 8 classes x 4, 1024 tokens", 1024, task_rows.labels_row, {"full": True}, "80 %"),
        ("several needles in one question, 1024 tokens", 1024, task_rows.multi_query_row, {}, ""),
        ("all values of a name, 1024 tokens", 1024, task_rows.multi_value_row, {}, ""),
        ("three most common words, 1024 tokens", 1024, task_rows.words_row, {}, ""),
        ("copy of a passage, 1024 tokens", 1024, task_rows.copy_row, {}, ""),
        ("sum of two retrieved numbers, 1024 tokens", 1024, task_rows.arithmetic_row, {}, ""),
    ]
    for name, length, make, exactly, wanted in tests:
        if length <= longest:
            share = measures.recall(model, _row_maker(text, length, make, **exactly), samples, SEED)
            yield Line(name, f"{share:.1%}", wanted)


def text_lines(model: LlamaForCausalLM, text: Text, windows: int | None) -> Iterator[Line]:
    """Bits per byte at the full trained context, and perplexity as the context grows."""
    longest = model.config.max_position_embeddings
    bits = measures.bits_per_byte(model, text, longest, windows)
    yield Line(f"bits per byte on validation books, context {longest}", f"{bits:.3f}", "1.75")
    contexts = tuple(context for context in CONTEXTS if context <= longest)
    curve = measures.perplexity_by_context(model, text, contexts, windows=64)
    shown = ", ".join(f"{context}: {value:.1f}" for context, value in curve.items())
    yield Line("perplexity by context", shown, "falling")


def head_lines(model: LlamaForCausalLM, text: Text) -> Iterator[Line]:
    """Heads that attend to the first token, and induction heads."""
    sinks = measures.sink_scores(model, text)
    yield Line(
        f"heads with over {SINK_SHARE:.0%} on the first token",
        f"{int((sinks > SINK_SHARE).sum())} of {sinks.numel()} (most {float(sinks.max()):.0%})",
        "some",
    )
    scores = measures.induction_scores(model, text.bos_token_id)
    found = [(float(scores[i, j]), int(i), int(j)) for i, j in (scores > INDUCTION_SHARE).nonzero().tolist()]
    named = ", ".join(f"layer {i} head {j}: {score:.2f}" for score, i, j in sorted(found, reverse=True))
    yield Line("induction heads (score)", f"{len(found)} ({named})", "2")


def report(folder: Path, corpus: Path, samples: int = 200, windows: int | None = None) -> Iterator[Line]:
    """Lines of a model folder's table, measured in bfloat16; `windows` shortens the text measure."""
    started = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(str(folder), trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) / 1e6
    yield Line("folder size, load time", f"{size:.1f} MB, {seconds:.2f} s", "40 MB, 2 s")
    yield Line("parameters", f"{model.num_parameters() / 1e6:.2f} M")
    model = model.eval()
    text = validation_text(corpus, tokenizer)
    yield from recall_lines(model, text, samples)
    yield from text_lines(model, text, windows)
    yield from head_lines(model, text)


def print_report(folder: Path, corpus: Path, samples: int = 200, windows: int | None = None) -> list[Line]:
    """Print each line as soon as it is measured, as a Markdown table; returns all of them."""
    print("| measure | reached | wanted |\n|---|---|---|")
    lines = []
    for line in report(folder, corpus, samples, windows):
        print(f"| {line.measure} | {line.value} | {line.wanted} |", flush=True)
        lines.append(line)
    return lines
