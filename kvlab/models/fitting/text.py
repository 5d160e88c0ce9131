"""Windows of text for fitting."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

from torch import Tensor

from kvlab.core import UserError, asset_path
from kvlab.models.fitting.request import FitRequest
from kvlab.models.info.mini import VALIDATION_BOOKS, book_paths, read_book
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import Progress

CHARACTERS_A_TOKEN = 8  # more than the mean of any tokenizer, so that a slice has enough tokens
SHORTEST = 256


class Stopped(Exception):
    """The fit was cancelled."""


def windows_to_read(
    request: FitRequest, loaded: LoadedModel, progress: Callable[[Progress], None], cancelled: Callable[[], bool]
) -> Iterator[Tensor]:
    """The `request.windows` windows of a request, as from `text_windows`; reports each once it was read.

    Raises `Stopped` if cancelled, and UserError as `text_windows`.
    """
    texts = text_windows(loaded, request.corpus, request.length, request.seed)
    for number, ids in enumerate(islice(texts, request.windows)):
        if cancelled():
            raise Stopped
        yield ids
        progress(Progress(stage="reading", done=number + 1, total=request.windows))


def text_windows(loaded: LoadedModel, corpus: Path | None, length: int, seed: int) -> Iterator[Tensor]:
    """Endless token ids (1, `length`), with BOS if the model has one, from random places of random books.

    `corpus` is a folder of plain-text books; None: the shipped excerpts. Books used by the tasks are excluded if there
    are others. Raises UserError for a folder without text, or with too little.
    """
    random = Random(seed)
    books = book_paths(corpus or asset_path("prompts/haystack"))
    unseen = {name: path for name, path in books.items() if name not in VALIDATION_BOOKS}
    texts = [read_book(path) for path in (unseen or books).values()]
    length = min(length, int(getattr(loaded.model.config, "max_position_embeddings", length)))
    while True:
        text = random.choice(texts)
        start = random.randrange(max(1, len(text) - CHARACTERS_A_TOKEN * length))
        ids = loaded.encode(text[start : start + CHARACTERS_A_TOKEN * length])[:, :length]
        if ids.shape[1] < min(length, SHORTEST):
            raise UserError(f"A book of {ids.shape[1]} tokens is too short: use texts of at least {SHORTEST} tokens.")
        yield ids
