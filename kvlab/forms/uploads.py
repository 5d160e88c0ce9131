"""Prompts from uploaded files: text, documents, and tables or conversations with one prompt per row."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from kvlab.common.formatting import prompts
from kvlab.core import UserError, check_text, in_one_sentence
from kvlab.models.info import token_count
from kvlab.models.info.chat_template import ChatFormat, RenderedPrompt
from kvlab.models.info.names import context_length
from kvlab.requests.compare import LARGEST_PROMPTS_BYTES, OnePrompt
from kvlab.requests.conversation import as_text
from kvlab.requests.facts import find_facts
from kvlab.requests.repeats import MOST_REPEATS
from kvlab.tasks import rows as files_of_rows
from kvlab.tasks.documents.document import TYPES as DOCUMENTS
from kvlab.tasks.documents.read import is_document, read_document
from kvlab.tasks.prompt_table import NOT_PROMPTS, PromptRow, as_row, join_texts

Keep = Literal["end", "beginning", "both ends"]
KEEPS: tuple[Keep, ...] = ("both ends", "end", "beginning")
MARGIN = 8  # tokens: text on both sides of a cut may be tokenized differently once joined


@dataclass(frozen=True)
class TruncatedPrompt:
    """A prompt in three parts; `removed` is not read. Without truncation all is in `before`."""

    before: str
    removed: str = ""
    after: str = ""

    @property
    def text(self) -> str:
        """The text that is read."""
        return self.before + self.after


def token_spans(text: str, model: str) -> list[tuple[int, int]] | None:
    """(start, stop) in the text of every token; None if the tokenizer is not on this machine."""
    tokenizer = token_count.tokenizer_of(model)
    if tokenizer is None:
        return None
    return [span for span in token_count.encode_text(tokenizer, text, False).offsets if span[1] > span[0]]


def shorten_prompt(read: RenderedPrompt, most: int) -> RenderedPrompt:
    """The same with at most `most` characters of the prompt; a chat template around it is kept."""
    start, stop = read.prompt_span
    end = min(stop, start + most)
    return replace(read, text=read.text[:end] + read.text[stop:], prompt_span=(start, end))


def excess_tokens(prompt: str, how: ChatFormat, new_tokens: int) -> int:
    """How many tokens prompt and new tokens exceed the context window by; 0 if they fit or that is unknown."""
    window = context_length(how.model)
    if window is None:
        return 0
    count, exact = token_count.count_tokens(prompt, how)
    return max(0, count + new_tokens - window) if exact else 0


def truncate_prompt(text: str, how: ChatFormat, new_tokens: int, keep: Keep) -> TruncatedPrompt:
    """The prompt without the excess tokens, removed from its beginning, end or middle.

    A chat template around it is not cut.
    """
    over = excess_tokens(text, how, new_tokens)
    spans = token_spans(text, how.model)
    if not over or not spans:
        return TruncatedPrompt(text)
    left = max(1, len(spans) - over - MARGIN)
    head = {"end": 0, "beginning": left, "both ends": left // 2}[keep]
    tail = left - head
    start = spans[head - 1][1] if head else 0
    stop = spans[len(spans) - tail][0] if tail else len(text)
    return TruncatedPrompt(text[:start], text[start:stop], text[stop:])


def truncate_prompts(
    prompts: Sequence[OnePrompt], how: ChatFormat, new_tokens: int, keep: Keep
) -> tuple[tuple[OnePrompt, ...], dict[int, int]]:
    """Several prompts, each truncated if too long, and the characters removed by prompt index.

    Facts are located again in the remaining text; removed facts are dropped. Conversations stay whole.
    """
    truncated = []
    lost = {}
    for place, one in enumerate(prompts):
        cut = TruncatedPrompt(one.prompt) if one.turns else truncate_prompt(one.prompt, how, new_tokens, keep)
        if cut.removed:
            lost[place] = len(cut.removed)
            texts = [one.prompt[start:stop] for start, stop in one.facts]
            facts = find_facts(cut.text, [fact for fact in texts if fact in cut.text])
            one = one.model_copy(update={"prompt": cut.text, "facts": facts})
        truncated.append(one)
    return tuple(truncated), lost


TEXTS = ("txt", "md", *DOCUMENTS)
TYPES = (*TEXTS, *files_of_rows.TYPES)
UNITS = {".jsonl": "Line", ".ndjson": "Line", ".json": "Entry"}  # in which a file's rows are counted


@dataclass(frozen=True)
class Upload:
    """A file's content: one text, or rows that are a prompt each; `left_out` lists what was not read."""

    name: str
    text: str = ""
    rows: list[PromptRow] = field(default_factory=list)
    left_out: tuple[str, ...] = ()

    @property
    def fields(self) -> list[str]:
        """Columns that can be prompts: conversations, default columns, then other texts, longest first."""
        named = [name for row in self.rows for name in ([row.chat] if row.chat else row.parts)]
        longest: dict[str, int] = {}
        for row in self.rows:
            for name, text in row.texts.items():
                longest[name] = max(longest.get(name, 0), len(text))
        texts = sorted(longest, key=lambda name: (name.casefold() in NOT_PROMPTS, -longest[name]))
        return list(dict.fromkeys([*named, *texts]))

    @property
    def usual(self) -> str:
        """The columns a row's prompt is made of by default: `context, question`."""
        columns = Counter((row.chat,) if row.chat else row.parts for row in self.rows)
        return ", ".join(columns.most_common(1)[0][0]) if columns else ""

    def ask(self, question: str) -> "Upload":
        """The text followed by a question; rows have their own."""
        return self if self.rows or not question.strip() else replace(self, text=join_texts([self.text, question]))

    def one(self, row: int, name: str = "") -> OnePrompt:
        """A row's prompt with its answers and facts; `name` is the only column to read.

        Raises UserError if it is empty or too large, its conversation cannot be answered, or it lacks its facts.
        """
        if not self.rows:
            return OnePrompt(name=self.name[:200], prompt=self.text, notes=self.left_out)
        read = self.rows[row]
        what = f"Row {row + 1} of {self.name}"
        called = read.name or (f"row {row + 1} of {self.name}" if len(self.rows) > 1 else self.name)
        fields: dict[str, Any] = {"name": called[:200], "facts": read.facts}
        if read.answers:
            fields |= {"answer": read.answers[0], "other_answers": read.answers[1:]}
        if read.chat and name in ("", read.chat):
            fields |= {"turns": read.turns(), "notes": read.not_read()}
            token_count.check_prompt(as_text(fields["turns"]))
        elif name:
            fields |= {"prompt": token_count.check_prompt(read.texts.get(name, "")), "notes": read.not_read(name)}
        else:
            fields |= {"prompt": token_count.check_prompt("".join(read.prompt())), "notes": read.not_read()}
        try:
            return OnePrompt(**fields)
        except ValidationError as error:
            raise UserError(f"{what}: {in_one_sentence(error)}") from error


def notes_of(chosen: Sequence[OnePrompt]) -> list[str]:
    """Each note of some prompts once, with the number of prompts if not all have it."""
    counts = Counter(note for prompt in chosen for note in prompt.notes)
    return [
        note if count == len(chosen) else f"{prompts(count).capitalize()}: {note}" for note, count in counts.items()
    ]


def prompts_of(uploads: Sequence[Upload], name: str = "", rows: slice = slice(None)) -> list[OnePrompt]:
    """The prompts in all files; of a table the chosen rows, read from column `name` or by default.

    Raises UserError if one of them cannot be read, a table has no such column, or there are too many.
    """
    chosen: list[OnePrompt] = []
    for upload in uploads:
        numbers = range(len(upload.rows))[rows] if upload.rows else range(1)
        if name and upload.rows and name not in upload.fields:
            raise UserError(f"{upload.name} has no field {name!r}: choose one of {', '.join(upload.fields)}.")
        check_count([*chosen, *numbers])
        chosen += [upload.one(number, name) for number in numbers]
    if not chosen:
        raise UserError("There is no prompt in these rows: the first is number 1.")
    return chosen


def check_count(chosen: Sequence[object]) -> None:
    """Raises UserError for more prompts than one request may have."""
    if len(chosen) > MOST_REPEATS:
        raise UserError(f"There are {len(chosen):,} prompts and the most is {MOST_REPEATS}: choose some of the rows.")


def read_upload(name: str, content: bytes) -> Upload:
    """The content of an uploaded file, by its suffix.

    Raises UserError if it is too large, empty, not text, or not what its suffix says.
    """
    if is_document(name):
        document = read_document(name, content)
        return Upload(
            name,
            text=token_count.check_prompt(check_text(document.text, f"The file {name}")),
            left_out=document.left_out,
        )
    if not files_of_rows.is_table(name):
        return Upload(name, text=token_count.decode_upload(name, content))
    if content.startswith(files_of_rows.PARQUET) or name.lower().endswith(".parquet"):
        token_count.check_upload_size(name, len(content))
        raw_rows = files_of_rows.read_rows(name, content, LARGEST_PROMPTS_BYTES)
    else:
        raw_rows = files_of_rows.rows_of_text(name, token_count.decode_upload(name, content))
    rows = []
    for row in raw_rows:
        what = f"{UNITS.get(Path(name).suffix.lower(), 'Row')} {row.number} of {name}"
        if row.problem:
            raise UserError(f"{what} is not JSON ({row.problem}): give one object per line.")
        rows.append(as_row(row.value, what))
    return Upload(name, rows=rows)
