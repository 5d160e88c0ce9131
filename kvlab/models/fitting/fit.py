"""`kvlab fit`: fit whatever a method needs, also as a queued job."""

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from kvlab.common.atomic_write import replace_text
from kvlab.core import UserError, read_json
from kvlab.core.cache import make_cache
from kvlab.core.fitted.kinds import write_profile
from kvlab.models.fitting.curves import fit_curves
from kvlab.models.fitting.kvzap import fit_kvzap
from kvlab.models.fitting.less import fit_less
from kvlab.models.fitting.query_statistics import fit_query_statistics
from kvlab.models.fitting.request import SETTING, FitJob, FitRequest, fitted_file
from kvlab.models.fitting.text import Stopped, text_windows, windows_to_read
from kvlab.models.load import held_model
from kvlab.requests.compare import Progress

BUDGETS = (0.05, 0.1, 0.2, 0.5)


def make_profile(request: FitRequest, out: Path, say: Callable[[str], None] = lambda line: None) -> torch.Tensor:
    """Write the profile to `out` and return its shares (budgets, L, H), which sum to 1 per budget.

    Each window of text is read, and read again, as in `kvzip` with 16 recent tokens; a head's share is its part of all
    slots after the cut. Raises UserError as `load_model` and `text_windows`.
    """
    loaded = held_model(request)
    found = []
    windows = islice(text_windows(loaded, request.corpus, request.length, request.seed), request.windows)
    for number, ids in enumerate(windows):
        slots = []  # (L, H) given to each head, by budget
        for budget in BUDGETS:
            with torch.inference_mode():
                cache = make_cache(loaded, "kvzip", budget, recent=16)
                loaded.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                layers = cache.compressed_layers()
                slots.append(torch.stack([layer.budget[0].cpu() for layer in layers if layer.budget is not None]))
        found.append(torch.stack(slots))
        say(f"text {number + 1} of {request.windows}: {found[-1].shape[1]} layers, {found[-1].shape[2]} heads")
    counts = torch.stack(found).double().mean(0)
    shares = counts / counts.sum((1, 2), keepdim=True)
    about = {"texts": str(request.windows), "tokens": str(request.length), "seed": str(request.seed)}
    out.parent.mkdir(parents=True, exist_ok=True)
    write_profile(out, list(BUDGETS), shares, loaded.model, about | {"model": loaded.name})
    for budget, by_layer in zip(BUDGETS, shares.sum(-1).tolist(), strict=True):
        parts = ", ".join(f"{100 * share:.0f}" for share in by_layer)
        say(f"at {100 * budget:g} % the layers get these percentages of all slots: {parts}")
    return shares


ASKED = "request.json"


def fit(
    request: FitRequest,
    out: Path,
    *,
    kept: Path | None = None,
    progress: Callable[[Progress], None] = lambda progress: None,
    cancelled: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = print,
) -> None:
    """Run the fit of `request` and write it to `out` atomically.

    `kept` is a folder for resuming a stopped fit; None starts from scratch. Raises UserError for invalid input.
    """
    with suppress(Stopped):
        if request.method == "less":
            begun = time.process_time()
            seconds = round(60 * request.minutes)
            report = _following(say, progress, cancelled, seconds, lambda: round(time.process_time() - begun))
            fit_less(request, out, say=report)
        elif request.method == "duoattention":
            read = count(1)
            report = _following(say, progress, cancelled, request.windows, lambda: next(read))
            make_profile(request, out, say=report)
        else:
            loaded = held_model(request)
            windows = windows_to_read(request, loaded, progress, cancelled)
            if request.method in ("triattention", "qfilter"):
                fit_query_statistics(request, loaded, out, windows, say)
            elif request.method == "lukv":
                fit_curves(request, loaded, out, windows, say)
            else:
                with TemporaryDirectory() as scratch:
                    place = Path(scratch) if kept is None else kept
                    fit_kvzap(request, loaded, out, windows, kept=place, cancelled=cancelled, report=say)
    if out.exists():
        # The method that reads the file, or a composition with the score whose curves were measured.
        composed = f"compose:score={request.score}:allocate=curves"
        reader = composed if request.method == "lukv" != request.score else request.method
        say(f"written to {out}: use it with {reader}:{SETTING[request.method]}={out}")


def _following(
    say: Callable[[str], None],
    progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
    total: int,
    done: Callable[[], int],
) -> Callable[[str], None]:
    """Wrap `say`: each line reports progress, `done` of `total`, and stops the fit once it is cancelled."""

    def report(line: str) -> None:
        say(line)
        progress(Progress(stage=line, done=min(done(), total), total=total))
        if cancelled():
            raise Stopped

    return report


def run_fit(job: FitJob, root: Path, *, progress: Callable[[Progress], None], cancelled: Callable[[], bool]) -> Path:
    """Fit into `<root>/fit/<name>` and return the file; an existing file is not created again.

    Raises UserError as `fit`, and if another fit has that name.
    """
    out = fitted_file(root, job.name)
    request_file = out.parent / ASKED
    given = job.request.model_dump(mode="json")
    if request_file.exists() and read_json(request_file.read_text(encoding="utf-8")) != given:
        raise UserError(f"Another fit is called {job.name}: choose another name, or delete {out.parent}.")
    replace_text(request_file, job.request.model_dump_json(indent=1))
    if not out.exists():
        fit(job.request, out, kept=out.parent / "windows", progress=progress, cancelled=cancelled)
    return out
