"""Mode `generate`: throughput of a whole request, prompt and continuation, as in the papers' tables.

A step's time changes smoothly with the length, so it is measured at a few lengths between the first and the last new
token and integrated (trapezoidal rule): minutes of decoding become seconds, and the row says so.
"""

from collections.abc import Iterator
from itertools import pairwise

from kvlab.bench.bench import Bench, best_baseline, loads, time_and_rate
from kvlab.bench.competitors import Load, StaticContender, contenders
from kvlab.bench.device import spread
from kvlab.bench.modes.prefill import PrefillRacer
from kvlab.bench.race import Outcome
from kvlab.bench.rows import Row
from kvlab.core.budget import Budget


def measure(bench: Bench) -> Iterator[Row]:
    """Seconds and tokens per second of each contender for prompt plus `new_tokens`."""
    for load in loads(bench.request):
        new = bench.request.shortened(bench.request.new_tokens)
        offsets = sorted({round(new * i / (bench.request.points - 1)) for i in range(bench.request.points)})
        racers = contenders(bench.model, load, bench.request)
        # Outcomes of the prompt; the compiled decoder takes the plain one's.
        reading = [racer for racer in racers if not isinstance(racer, StaticContender)]
        read = bench.race([PrefillRacer(racer) for racer in reading], steps=1)
        by_racer = {id(racer): outcome for racer, outcome in zip(reading, read, strict=True)}
        plain = next(by_racer[id(racer)] for racer in reading if racer.attention == "sdpa")
        prompts = [by_racer.get(id(racer), plain) for racer in racers]
        # budgets as slots of the prompt, as the text grows
        in_slots = tuple(
            choice.model_copy(update={"budget": Budget(choice.budget).slots(load.prompt)})
            for choice in bench.request.choices_run()
        )
        request = bench.request.model_copy(update={"choices": in_slots, "shorten": 1})
        longer = [Load(load.batch, load.prompt, offset) for offset in offsets]
        curves = [bench.race(contenders(bench.model, later, request)) for later in longer]
        totals = [_total(prompt, [curve[index] for curve in curves], offsets) for index, prompt in enumerate(prompts)]
        best = best_baseline(racers, totals)
        full = spread(totals[best].samples) if best is not None else None
        how = f"prompt, and {new} steps summed from {len(offsets)} lengths"
        for index, (racer, total) in enumerate(zip(racers, totals, strict=True)):
            note = total.note or how
            row = bench.row(racer, "request", "s", status=total.status, note=note, is_full=index == best)
            least = new * bench.bytes_seconds(bench.model.bytes_per_pass + total.live_bytes)
            yield from time_and_rate(row, "request rate", total, least, full, racer.load.batch * new)


def _total(prompt: Outcome, curve: list[Outcome], offsets: list[int]) -> Outcome:
    """Seconds of the whole request in each repeat; fails if any part ran out of memory."""
    for part in (prompt, *curve):
        if part.status != "ok":
            return Outcome(status=part.status, note=part.note)
    seconds = []
    for repeat, reading in enumerate(prompt.samples):
        steps = [part.samples[repeat] for part in curve]
        pieces = zip(pairwise(offsets), pairwise(steps), strict=True)
        seconds.append(reading + sum((b - a) * (x + y) / 2 for (a, b), (x, y) in pieces))
    return Outcome(seconds, sum(part.live_bytes for part in curve) // len(curve))
