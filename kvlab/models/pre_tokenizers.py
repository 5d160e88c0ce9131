"""Pre-tokenizers by the name in a GGUF file: how text is cut before its pieces are merged to tokens.

A file holds vocabulary, merges and this name. transformers knows some of the names, and cuts text of the others as
GPT-2 does. Each name here gives llama.cpp's ids, but where that simplifies the model's own rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

# Parts of the rules: English endings, words, signs with the line ends after them, white space.
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CAPITAL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = (r"[^\r\n\p{L}\p{N}]?" + CAPITAL + "*" + SMALL + "+", r"[^\r\n\p{L}\p{N}]?" + CAPITAL + "+" + SMALL + "*")
PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
DIGIT = r"\p{N}"
THREE = r"\p{N}{1,3}"


@dataclass(frozen=True)
class Rule:
    """Cut by each of `splits` in turn, then as GPT-2 does if `gpt2`, then by each of `after`.

    `whole`: a piece that is a token stays one, whatever the merges make of it.
    """

    splits: tuple[str, ...] = ()
    gpt2: bool = False
    after: tuple[str, ...] = ()
    whole: bool = False

    def as_pre_tokenizer(self) -> PreTokenizer:
        """The stages of `tokenizers`."""
        before, after = ([Split(Regex(rule), "isolated") for rule in rules] for rules in (self.splits, self.after))
        return Sequence([*before, ByteLevel(add_prefix_space=False, use_regex=self.gpt2), *after])


GPT2 = Rule(gpt2=True)
SINGLE_DIGITS = Rule((DIGIT,), gpt2=True)
LLAMA3 = "|".join((ENDING, WORD, THREE, SIGNS, SPACE))
QWEN2 = Rule(("|".join((ENDING, WORD, DIGIT, SIGNS, SPACE)),))
QWEN35 = Rule(
    ("|".join((ENDING, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", DIGIT, r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", SPACE)),)
)
TEKKEN = Rule(("|".join((*CASED, DIGIT, PATHS, SPACE)),), whole=True)
GPT4O = Rule(("|".join((*(f"{word}{ENDING}?" for word in CASED), THREE, PATHS, SPACE)),))
FALCON = Rule((r"[\p{P}\$\+<=>\^~\|`]+",), gpt2=True, after=("[0-9][0-9][0-9]",))
DEEPSEEK_CODER = Rule(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGIT))
BLOOM = Rule((r" ?[^(\s|.,!?…。，、।۔،)]+",))

NAMES: dict[Rule, str] = {
    GPT2: "gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat a.x-4.0 mpt "
    "olmo jais trillion granite-docling exaone4 mellum modern-bert",
    SINGLE_DIGITS: "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    Rule((LLAMA3,)): "dbrx smaug-bpe chatglm-bpe",
    Rule((LLAMA3,), whole=True): "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano glm4 "
    "glm5",
    QWEN2: "qwen2 stablelm2 deepseek-r1-qwen kormo f2llmv2 megrez hunyuan solar-open grok-2",
    QWEN35: "qwen35",
    TEKKEN: "tekken",
    GPT4O: "gpt-4o llama4 kanana2 talkie minimax-m2",
    FALCON: "falcon",
    DEEPSEEK_CODER: "deepseek-coder",
    BLOOM: "bloom poro-chat gpt3-finnish",
}
RULES = {name: rule for rule, names in NAMES.items() for name in names.split()}


def set_pre_tokenizer(tokenizer: Any, model: str | None, name: str | None) -> str:
    """Cut text as a file's pre-tokenizer `name` does; a note if it is not known, else an empty text.

    `model` is the file's kind of tokenizer: byte-pair merges of bytes (`gpt2`) have a pre-tokenizer, others none.
    """
    if model != "gpt2":
        return ""
    if (rule := RULES.get(name or "")) is None:
        named = (
            "names no pre-tokenizer" if name is None else f"names the pre-tokenizer {name!r}, which kvlab does not know"
        )
        return f"The GGUF file {named}: its text is cut as transformers does, so token ids may be others than its own."
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = rule.as_pre_tokenizer()
    backend.model.ignore_merges = rule.whole
    return ""
