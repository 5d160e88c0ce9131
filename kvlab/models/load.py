"""Load a model by name so that it runs kvlab's attention, and keep it between requests."""

import gc
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from kvlab.core import UserError, check_ids, path_of
from kvlab.core.attention import register_attention
from kvlab.core.attention.inline_attention import INLINE
from kvlab.core.families import SUPPORTED, check_supported, model_class, prepare
from kvlab.models import checkpoint
from kvlab.models.bfloat16_weights import check_bfloat16, round_weights
from kvlab.models.downloads import Report, fetch
from kvlab.models.info.model_faults import about, no_tokenizer
from kvlab.models.placement import BFLOAT16, BITS, DTYPES, device_map, input_device, pick_device, quantization
from kvlab.models.sources import EMBEDDED, Source
from kvlab.requests.compare import ModelRequest

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
    before, after = ([Split(Regex(one), "isolated") for one in rules] for rules in (rule.splits, rule.after))
    backend.pre_tokenizer = Sequence([*before, ByteLevel(add_prefix_space=False, use_regex=rule.gpt2), *after])
    backend.model.ignore_merges = rule.whole
    return ""


__all__ = ["EMBEDDED", "SUPPORTED", "LoadedModel", "check_supported", "load_model", "pick_device", "prepare"]


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for compressed caches, its tokenizer, and its requested name."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    quantization: str = ""  # type of a GGUF file's weights, such as Q4_1
    checksum: str = ""  # SHA-256 of that file
    notes: tuple[str, ...] = ()  # what is not known of that file
    rounding_kl: float | None = None  # of weights in bf16: `round_weights`

    @property
    def device(self) -> torch.device:
        """Device of token ids."""
        return input_device(self.model)

    def encode(self, text: str, special: bool = True) -> torch.Tensor:
        """Token ids (1, T) of a text on the model's device.

        Special tokens follow the tokenizer, as in training: most, including `mini`'s, put BOS first, which then is the
        attention sink; Qwen's, OLMo's and Pythia's put none. `special` False omits them, for text rendered by a chat
        template. Raises UserError for a token without embedding.
        """
        ids = self.tokenizer(text, return_tensors="pt", verbose=False, add_special_tokens=special)["input_ids"]
        check_ids(ids[0].tolist(), self.model, self.tokenizer)
        return ids.long().to(self.device)


def load_model(
    name_or_path: str = "mini",
    device: str = "auto",
    dtype: str = "auto",
    *,
    placement: str = "single",
    weights: str | None = None,
    revision: str | None = None,
    cache_dir: str | None = None,
    report: Report | None = None,
) -> LoadedModel:
    """Load the embedded model `mini`, a local folder, a GGUF file, or a hub name, in evaluation mode.

    `device` auto prefers cuda, then mps, then cpu; `cuda:1` selects one of several. `dtype` auto is float32 on cpu,
    else the checkpoint's. `placement` auto spreads the weights over all devices with accelerate. `weights` bf16 rounds
    linear layers and keeps the cache's type; 4bit or 8bit quantizes with bitsandbytes or torchao. `revision` is a
    branch, tag or commit of a hub name, `cache_dir` the folder for its files. Code that comes with a model never runs.
    `report` gets download progress. Raises UserError for an unknown name, a damaged checkpoint or one that does not
    match its config, an unsupported family, or a missing device, instruction or package.
    """
    folder = None if cache_dir is None else str(path_of(cache_dir, "The folder of downloads"))
    source = Source(str(path_of(name_or_path, "The model")), revision, folder)
    place = pick_device(device)
    if source.gguf is not None and weights in BITS:
        raise UserError(f"The weights of {source.name!r} are quantized as they are: leave {weights} out.")
    if weights == BFLOAT16:
        check_bfloat16(place, placement)
    if dtype not in ("auto", *DTYPES):
        raise UserError(f"There is no number format {dtype!r}: use auto, {', '.join(DTYPES)}.")
    kind = DTYPES.get(dtype) or (torch.float32 if place.type == "cpu" else "auto")
    where = device_map(placement, place)
    packed = quantization(weights)
    raw = checkpoint.read_config(source.config_file(), source.name)
    with _loading(source, raw):
        config = AutoConfig.from_pretrained(source.where, **source.options)
        check_supported(config)
        if source.folder is not None and source.gguf is None:
            checkpoint.check_files(config, source.folder, source.name)
        elif source.folder is None and report is not None:
            fetch(source, report)
        tokenizer = AutoTokenizer.from_pretrained(source.where, **source.options)
        model, info = _read_weights(source, config, kind, where, packed)
        checkpoint.check_loaded(model, info, tokenizer, source.name)
        prepare(model).eval()
    known = {} if source.gguf is None else about(Path(source.where))
    model = model if where or packed else model.to(place)
    return LoadedModel(
        model,
        tokenizer,
        source.name,
        known.get("quantization", ""),
        known.get("checksum", ""),
        tuple(known.get("notes", ())),
        round_weights(model, tokenizer) if weights == BFLOAT16 else None,
    )


def _read_weights(source: Source, config: Any, kind: Any, where: Any, packed: Any) -> tuple[Any, dict[str, Any]]:
    """The model in the dtype `kind`, and transformers' report on its weights."""
    # Some models select a class by their attention and accept only theirs; `prepare` changes it.
    attention = "eager" if config.model_type in INLINE else register_attention()
    options = {"device_map": where, "attn_implementation": attention, "output_loading_info": True}
    if (file := source.gguf) is None:
        return model_class(config).from_pretrained(
            source.where,
            dtype=kind,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # `check_loaded` reports them
            **options,
            **source.options,
            **({} if packed is None else {"quantization_config": packed}),  # None would undo the checkpoint's own
        )
    import gguf

    # transformers (5.23) makes the table of all tensor names once a module, which is 40 % of a load: make it once.
    make = gguf.get_tensor_name_map
    try:
        gguf.get_tensor_name_map = cache(make)
        with redirect_stderr(io.StringIO()):  # a progress bar that cannot be turned off
            model, info = model_class(config).from_pretrained(
                file.parent,
                gguf_file=file.name,
                config=config,  # reading it from the file again takes seconds
                dtype=config.dtype if kind == "auto" else kind,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,
                **options,
            )
    finally:
        gguf.get_tensor_name_map = make
    if hasattr(model.config, "quantization_config"):  # the weights no longer are: they can be moved, cast and saved
        del model.config.quantization_config
        vars(model).pop("hf_quantizer", None)
    return model, info


@contextmanager
def _loading(source: Source, raw: dict[str, Any]) -> Iterator[None]:
    """Turn transformers' errors about a model's files into one sentence; memory errors pass through.

    Progress bars and transformers' table of tensors are suppressed: `check_loaded` reports them in a sentence.
    """
    before = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        name = source.name
        reason = checkpoint.reason(error)
        packing = raw.get("quantization_config")
        if "trust_remote_code" in str(error):
            message = checkpoint.FOREIGN_CODE.format(name=name)
        elif source.gguf is not None:
            message = f"The GGUF file {name!r} cannot be loaded ({reason})."
        elif packing and isinstance(error, ImportError | RuntimeError):
            kind = packing.get("quant_method", "packed") if isinstance(packing, dict) else "packed"
            message = f"The weights of {name!r} are in {kind} form, which cannot be read here ({reason})."
        elif source.folder is not None and (lacks := no_tokenizer(source.folder, name)):
            message = lacks
        elif isinstance(error, ImportError):
            message = f"The model {name!r} needs a package that is not installed ({reason})."
        elif source.folder is None and isinstance(error, OSError):
            message = f"The files of {name!r} cannot be downloaded ({reason}); only safetensors checkpoints are loaded."
        else:
            what = "folder" if source.folder is not None else "repository"
            message = f"The {what} {name!r} does not hold a loadable safetensors model ({reason})."
        raise UserError(message) from error
    finally:
        logging.set_verbosity(before)


_held: dict[tuple[object, ...], LoadedModel] = {}
when_dropped: list[Callable[[], object]] = []  # called when the held model is dropped, to drop what keeps its weights


def held_model(request: ModelRequest, report: Report | None = None) -> LoadedModel:
    """The model a request names, cached or newly loaded; `report` gets download progress.

    Two models are never in memory together, even if loading the second fails. Raises UserError as `load_model`.
    """
    key = (request.model, *request.loading.items())
    if key not in _held:
        drop_model()
        _held[key] = load_model(request.model, **request.loading, report=report)
    return _held[key]


def drop_model() -> None:
    """Free the model and its device memory."""
    _held.clear()
    for act in when_dropped:
        act()
    gc.collect()  # modules and hooks form reference cycles
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
