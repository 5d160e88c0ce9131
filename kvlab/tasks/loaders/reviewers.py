"""Files that reviewers name: lost-in-the-middle's key-value pairs, MT-bench's turns, depth-first-search states."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, model_validator
from transformers import PreTrainedTokenizerBase

from kvlab.core.errors import UserError
from kvlab.tasks.loaders.jsonl import Loaded, read_records, sample_of
from kvlab.tasks.sample import Further, Part

VALUE_TOKENS = 100  # the authors' limit
TURN_TOKENS = 512  # of each answer; MT-bench allows 1,024
_STEP_TOKENS = 16
_STATE_TOKENS = 64


class PairsRecord(BaseModel):
    """One line of a key-value file: the pairs in order, and the key that is asked for."""

    ordered_kv_records: list[tuple[str, str]] = Field(min_length=1)
    key: str = Field(min_length=1)
    value: str = Field(min_length=1)

    @model_validator(mode="after")
    def _key_is_there(self) -> "PairsRecord":
        if [self.key, self.value] not in [list(pair) for pair in self.ordered_kv_records]:
            raise UserError("the asked key and its value are no pair of 'ordered_kv_records'")
        return self


def load_pairs(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """Lost-in-the-middle's key-value files: `ordered_kv_records`, `key` and `value` per line.

    The prompt is that of the paper (arXiv 2307.03172): a JSON object and one of its keys. Scored as there by whether
    the value is in the answer. A row's depth is the pair's place: 0 is the first pair, 1 the last. Raises UserError
    naming the first malformed line.
    """
    records, skipped = read_records(path, PairsRecord, skip_malformed)
    head = "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n"
    samples = []
    for number, record in records:
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in record.ordered_kv_records]
        place = next(i for i, (key, _) in enumerate(record.ordered_kv_records) if key == record.key)
        samples.append(
            sample_of(
                number,
                tokenizer,
                head + "{" + ",\n ".join(lines) + "}",
                f'\n\nKey: "{record.key}"\nCorresponding value:',
                task=f"pairs/{path.stem}",
                answers=[record.value],
                metric="string_match_part",
                max_new_tokens=VALUE_TOKENS,
                stop=None,
                depth=place / max(len(lines) - 1, 1),
                meta={"statements": [lines[place]]},
            )
        )
    return Loaded(samples, skipped)


class TurnsRecord(BaseModel):
    """One question of MT-bench: its turns, and references for some."""

    turns: list[str] = Field(min_length=1)
    category: str = ""
    reference: list[str] = Field(default_factory=list)


def load_mt_bench(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """MT-bench's questions: `turns` (two), `category`, and `reference` for some; each turn keeps the answers so far.

    MT-bench has a model as judge; kvlab has none, so a turn only scores whether it is answered without ending in a
    loop (`no_loop`). Compare the texts, and give a budget in slots, since the first turn is short. Raises UserError
    naming the first malformed line.
    """
    records, skipped = read_records(path, TurnsRecord, skip_malformed)
    samples = []
    for number, record in records:
        first, *later = record.turns
        answers = [*record.reference, *[""] * len(record.turns)][: len(record.turns)]
        fields: Any = {"further": tuple(Further(question=f"\n\n{turn}\n") for turn in later), "keeps_answers": True}
        parts = tuple(Part(kind=f"turn {turn}") for turn in range(1, len(record.turns) + 1))
        samples.append(
            sample_of(
                number,
                tokenizer,
                first,
                "\n",
                task=f"mt_bench/{record.category or path.stem}",
                answers=answers,
                metric="no_loop",
                max_new_tokens=TURN_TOKENS,
                stop=None,
                parts=parts,
                **fields,
            )
        )
    return Loaded(samples, skipped)


class Graph(BaseModel):
    """An undirected graph."""

    nodes: list[int] = Field(min_length=1)
    edges: list[tuple[int, int]]


class State(BaseModel):
    """Where a search is: its node, and the path to it."""

    current_node: int
    stack: list[int] = Field(min_length=1)


SEARCH = (
    "A graph has these edges:\n{edges}\n\nA depth-first search starts at node {start}, which is alone on its stack. In "
    "each step it visits the neighbour with the smallest number that was not visited before and puts it on the stack; "
    "if there is none, it takes the current node off the stack and goes back."
)
TRACE = "\n\nTrace the first {steps} steps, one a line. Then write a last line such as: Node 4, stack 0, 2, 4"


class SearchRecord(BaseModel):
    """One state query: a graph, where its search starts, the number of steps, and the state after them."""

    graph: Graph
    start_node: int
    steps: int = Field(ge=1)
    answer: State


def load_search(path: Path, tokenizer: PreTrainedTokenizerBase, skip_malformed: bool = False) -> Loaded:
    """Depth-first-search state queries of TriAttention: JSON with `graph`, `start_node`, `steps` and `answer`.

    The answer traces the search and ends with a line that has the node and the stack; both must be there. It tests
    memory while generating, so give a budget in slots. The wording is kvlab's, the rules are those that the files'
    answers follow: neighbours in ascending order, a step back is a step. Raises UserError naming the first malformed
    line.
    """
    records, skipped = read_records(path, SearchRecord, skip_malformed)
    samples = []
    for number, record in records:
        edges = "\n".join(f"{one} - {other}" for one, other in record.graph.edges)
        stack = f"stack {', '.join(map(str, record.answer.stack))}"
        samples.append(
            sample_of(
                number,
                tokenizer,
                SEARCH.format(edges=edges, start=record.start_node),
                TRACE.format(steps=record.steps),
                task=f"search/{path.stem}",
                metric="last_line",
                stop=None,
                answers=[f"node {record.answer.current_node}", stack],
                max_new_tokens=_STEP_TOKENS * record.steps + _STATE_TOKENS,
            )
        )
    return Loaded(samples, skipped)
