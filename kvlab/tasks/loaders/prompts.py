"""Any prompts, with or without answers: a table, a text, a document, or a folder of these."""

from collections import Counter
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from kvlab.common.formatting import join_words, prompts
from kvlab.core import UserError, read_file
from kvlab.tasks import rows
from kvlab.tasks.documents import document as documents
from kvlab.tasks.documents.read import is_document, read_document
from kvlab.tasks.loaders.jsonl import Loaded, read_records, read_text, sample_of
from kvlab.tasks.loaders.table import table_sample
from kvlab.tasks.prompt_table import NEW_TOKENS, PromptRecord
from kvlab.tasks.sample import UNSCORED, Sample

PROSE = ("txt", "md", "text")
TYPES = (*PROSE, *documents.TYPES, *rows.TYPES)


def load_prompts(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """Any prompts, answers optional: a table, a text, a document (PDF, DOCX, HTML, notebook), or a folder of these.

    A text or a document is one prompt, a table has one per row (columns as for the format table; a column `group` names
    the group of a prompt). Prompts without answers get no score: they are compared with the full cache's text or
    predictions only. Raises UserError for a folder without prompts, naming the first malformed line, and for a document
    that cannot be read, which `skip_malformed` leaves out.
    """
    if path.is_dir():
        return _of_folder(path, tokenizer, skip_malformed)
    if is_document(path.name):
        document = read_document(path.name, read_file(path, "The document", documents.LARGEST_BYTES))
        found = _of_text(path, document.text, tokenizer)
        return Loaded(found.samples, notes=[f"{path}: {note}" for note in document.left_out])
    if path.suffix.lower().removeprefix(".") in PROSE:
        text = read_text(path)
        first = next(rows.rows_of_text(path.name, text), None)
        if first is None or not isinstance(first.value, dict):  # a file of lines of JSON may be called .txt too
            return _of_text(path, text, tokenizer)
    records, skipped = read_records(path, PromptRecord, skip_malformed)
    counts = Counter(note for _, record in records for note in record.notes)
    notes = [f"{path}, {prompts(count)}: {note}" for note, count in counts.items()]
    return Loaded([table_sample(path, number, record, tokenizer) for number, record in records], skipped, notes)


def _of_folder(folder: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool) -> Loaded:
    there = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    read = [file for file in there if file.suffix.lower().removeprefix(".") in TYPES]
    samples: list[Sample] = []
    skipped: list[str] = []
    notes: list[str] = []
    for file in read:
        is_prose = file.suffix.lower().removeprefix(".") in PROSE
        try:
            found = (
                _of_text(file, read_text(file), tokenizer)
                if is_prose
                else load_prompts(file, tokenizer, skip_malformed)
            )
        except UserError as error:
            if not skip_malformed:
                raise
            skipped.append(str(error))
            continue
        named = {} if rows.is_table(file.name) else {"task": folder.name or "prompts"}
        samples += [
            one.model_copy(update={"index": len(samples) + at, **named}) for at, one in enumerate(found.samples)
        ]
        skipped += found.skipped
        notes += found.notes
    if not samples:
        ends = ", ".join(f".{kind}" for kind in TYPES)
        raise UserError(f"{folder} has no text to use as a prompt: put files there that end in {ends}.")
    if others := [file.name for file in there if file not in read]:
        notes.append(f"{folder}: left out, as no text, document or table: {join_words(others[:4])}.")
    return Loaded(samples, skipped, notes)


def _of_text(path: Path, text: str, tokenizer: PreTrainedTokenizerBase) -> Loaded:
    """The one prompt of a text, or none if it is empty."""
    if not text.strip():
        return Loaded([], notes=[f"{path}: left out as empty."])
    return Loaded(
        [
            sample_of(
                1,
                tokenizer,
                text,
                "",
                task=path.stem,
                answers=[],
                metric=UNSCORED,
                max_new_tokens=NEW_TOKENS,
                stop=None,
            )
        ]
    )
