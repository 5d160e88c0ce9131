"""Any prompts, with or without answers: a table, or a folder of texts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from kvlab.common.errors import UserError
from kvlab.common.formatting import listed, prompts
from kvlab.tasks.loaders.jsonl import Loaded, read_records, read_text, sample_of
from kvlab.tasks.loaders.table import table_sample
from kvlab.tasks.prompt_table import NEW_TOKENS, PromptRecord
from kvlab.tasks.sample import UNSCORED, Sample

PROSE = (".txt", ".md", ".text")


def load_prompts(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """Any prompts, answers optional: a table as for the format table, or a folder with one text per prompt.

    A column `group` names the group of a prompt. Prompts without answers get no score: they are compared with the full
    cache's text or predictions only. Raises UserError for a folder without texts, and naming the first malformed line.
    """
    if path.is_dir():
        return _of_folder(path, tokenizer)
    records, skipped = read_records(path, PromptRecord, skip_malformed)
    counts = Counter(note for _, record in records for note in record.notes)
    notes = [f"{path}, {prompts(count)}: {note}" for note, count in counts.items()]
    return Loaded([table_sample(path, number, record, tokenizer) for number, record in records], skipped, notes)


def _of_folder(folder: Path, tokenizer: PreTrainedTokenizerBase) -> Loaded:
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in PROSE and file.is_file())
    texts = [(file, read_text(file)) for file in files]
    empty = [file.name for file, text in texts if not text.strip()]
    samples = [
        _of_text(folder, number, text, tokenizer)
        for number, text in enumerate((text for _, text in texts if text.strip()), 1)
    ]
    if not samples:
        raise UserError(f"{folder} has no text to use as a prompt: put files that end in {', '.join(PROSE)} there.")
    return Loaded(samples, notes=[f"{folder}: left out as empty: {listed(empty[:4])}."] if empty else [])


def _of_text(folder: Path, number: int, text: str, tokenizer: PreTrainedTokenizerBase) -> Sample:
    return sample_of(
        number, tokenizer, text, "", task=folder.name or "prompts", answers=[], metric=UNSCORED,
        max_new_tokens=NEW_TOKENS, stop=None,
    )  # fmt: skip
