"""The tokenizer: 4,096 byte-level BPE tokens, one token per digit, <bos> added automatically."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from kvlab.models.info import mini

BOS = "<bos>"
EOS = "<eos>"
VOCABULARY_SIZE = 4096

# Words with their leading space, single digits, punctuation runs, single newlines (paragraph breaks stay visible).
_PIECES = r"\n| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s"


# Fixed words of the synthetic prompts, repeated so that "Question", "Answer" or "VAR" become tokens.
_FORMS = " ".join(
    [
        mini.word_list(["king"]),
        mini.key_value_list([("king", "1")]),
        mini.FEW_SHOT_EXAMPLE.format(adjective="blue", noun="king", label="wine"),
        "Labels: Text: VAR x is assigned to. Which label? Copy the text. What are all the numbers?",
        "How many coins? Which variables are assigned the value? occur most often? special magic number ledger stands",
        mini.ask("Which value?", "", ["1"]).prompt,
    ]
)
_FORM_REPEATS = 2_000


def train_tokenizer(texts: Iterable[str], vocabulary_size: int = VOCABULARY_SIZE) -> PreTrainedTokenizerFast:
    """Train the merges on the given texts and return a fast tokenizer that starts every text with BOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(chain(texts, repeat(_FORMS, _FORM_REPEATS)), trainer)
    bos_id = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, bos_id)]
    )
    return _for_transformers(tokenizer)


def _for_transformers(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=EOS)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write tokenizer.json and its config."""
    tokenizer.save_pretrained(str(folder))


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Read a tokenizer written by save_tokenizer."""
    return _for_transformers(Tokenizer.from_file(str(folder / "tokenizer.json")))
