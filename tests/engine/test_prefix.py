"""A prefix in a file: answers as before, what it refuses, and that nothing half-written is left."""

from __future__ import annotations

import copy
import errno
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import kvlab
from kvlab.core.assets import asset_path
from kvlab.core.cache import make_cache
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.errors import UserError
from kvlab.engine.prefix import Prefix, provenance
from kvlab.engine.prefix import prefix as tensor_file
from kvlab.library import prefixes
from kvlab.library.prefixes import FORMAT, check_tensors, list_prefixes, read_prefix, read_texts, seal
from kvlab.models.load import LoadedModel, load_model
from kvlab.requests.live_session import GAP
from tests.families import CHAT_TEMPLATE, ON_ANY_MODEL
from tests.families import tiny_folder as model_folder

TEXT = (asset_path("prompts/haystack") / "alice_in_wonderland.txt").read_text(encoding="utf-8")[2000:2900]
METHODS = (
    "full", "snapkv", "h2o", "zsmerge", "keepkv", "kvmerger", "gvote", "pyramidkv", "exactmerge2", "kvzip",
    "streaming-llm", "less", "d2o", "attention-matching",
)  # fmt: skip
STORES = ("kivi4", "kivi2", "turbo4", "int8", "fp8", "lean4")
COMPOSED = {"score": "snapkv", "allocate": "adakv", "settle": "zsmerge"}
CASES = [
    ("compose", "native"),
    *((name, "native") for name in METHODS),
    *(("snapkv", store) for store in STORES),
    ("keepkv", "kivi4"),
]
# Fitted to other models than these.
SETTINGS = {
    **ON_ANY_MODEL,
    "compose": COMPOSED,
    "exactmerge2": {"heads": "untrained"},
    "attention-matching": {"profile": "even"},
}


def made(model: LoadedModel, method: str = "snapkv", budget: float = 0.3, text: str = TEXT, **options) -> Prefix:
    return Prefix.make(model, text, method, budget, **options, **SETTINGS.get(method, {}))


@torch.inference_mode()
def next_logits(prefix: Prefix, tokens: int = 8) -> Tensor:
    """Logits of a turn of three tokens and of decode steps after the prefix, which stays as it is."""
    cache = copy_cache(prefix.cache)
    pieces = [torch.tensor([[5, 6, 7]]), *(torch.tensor([[20 + step]]) for step in range(tokens))]
    return torch.cat([prefix.model.model(ids, past_key_values=cache).logits for ids in pieces], 1)


@pytest.mark.parametrize(("method", "store"), CASES)
def test_a_loaded_prefix_answers_bit_for_bit_as_before(
    tiny: LoadedModel, tmp_path: Path, method: str, store: str
) -> None:
    """And its tensors take the bytes that the memory table promises."""
    before = made(tiny, "packed" if (method, store) == ("full", "kivi4") else method, store=store)
    before.save(tmp_path / "a.safetensors")
    after = Prefix.load(tmp_path / "a.safetensors", tiny)
    assert after.ask("Who was late?", 6) == before.ask("Who was late?", 6)
    assert torch.equal(next_logits(after), next_logits(before))
    after.ask("Who was late?", 4, keep=True)
    before.ask("Who was late?", 4, keep=True)
    assert torch.equal(next_logits(after, 2), next_logits(before, 2))
    file = read_prefix(tmp_path / "a.safetensors")
    assert file.header.layers and file.header.tokens == before.header.context_tokens
    beside = ("texts", "padding.", "layers.0.generator", "layers.1.generator")
    taken = sum(end - start for name, (*_, start, end) in file.tensors.items() if not name.startswith(beside))
    assert taken == pytest.approx(file.header.allocated_bytes, rel=0.05)


def test_the_file_is_plain_safetensors_with_aligned_tensors(tiny: LoadedModel, tmp_path: Path) -> None:
    prefix, path = made(tiny), tmp_path / "a.safetensors"
    prefix.save(path)
    mapped, file = tensor_file.mapped_tensors(read_prefix(path)), read_prefix(path)
    with safe_open(path, "pt") as plain:
        assert {*plain.keys()} == mapped.keys()
        assert all(torch.equal(plain.get_tensor(name), tensor) for name, tensor in mapped.items())
    assert all(start % 64 == 0 for name, (*_, start, _) in file.tensors.items() if not name.startswith("padding."))
    content = path.read_bytes()
    for tensor in mapped.values():
        tensor.view(torch.uint8 if tensor.dim() else tensor.dtype).zero_()
    assert path.read_bytes() == content, "changes of mapped tensors stay in the process"
    assert [(one.kind, one.text) for one in read_texts(file)] == [("context", TEXT)]


def by_hand(model: LoadedModel, *pieces: list[int]) -> Tensor:
    """Logits after reading pieces one after the other into one cache, as turns."""
    cache = make_cache(model, "snapkv", 0.3)
    cache.expect(len(pieces[0]))
    with torch.inference_mode():
        for ids in pieces:
            logits = model.model(torch.tensor([ids]), past_key_values=cache).logits[0, -1]
    return logits


def test_text_on_top_is_read_as_a_second_turn(tiny: LoadedModel) -> None:
    prefix, more, question = made(tiny), "The Queen lost her thimble under the third chair.", "Who lost it?"
    first = next_logits(prefix)
    with pytest.raises(UserError, match="The text is empty"):
        prefix.extend(" ")
    assert torch.equal(next_logits(prefix), first)
    other = prefix.fork()
    prefix.extend(more)
    assert torch.equal(next_logits(other), first), "a fork goes on apart"
    ids = [
        tiny.encode(TEXT)[0].tolist(),
        *(tiny.encode(GAP + one, special=False)[0].tolist() for one in (more, question)),
    ]
    assert prefix.ask(question, 1).token_ids == (int(by_hand(tiny, *ids).argmax()),)
    assert prefix.header.tokens == len(ids[0]) + len(ids[1])
    assert [text.kind for text in prefix.texts] == ["context", "extension"]


def test_a_question_leaves_the_prefix_and_a_kept_one_continues_it(tmp_path: Path) -> None:
    """In the turns of a chat template, where an answer ends with a token that the next turn repeats."""
    model = load_model(str(model_folder(tmp_path / "model", chat_template=CHAT_TEMPLATE)), device="cpu")
    prefix = Prefix.make(model, "The Hatter has five cups. " * 8, "h2o", 0.5, system="Be brief.")
    first = next_logits(prefix)
    answer = prefix.ask("How many?", 3)
    assert torch.equal(next_logits(prefix), first)
    assert prefix.ask("How many?", 3) == answer and not prefix.header.questions
    assert prefix.ask("How many?", 3, keep=True) == answer
    assert prefix.header.questions == 1
    assert [text.text for text in prefix.texts[1:]] == ["How many?", answer.text]
    prefix.save(tmp_path / "a.safetensors")
    loaded = Prefix.load(tmp_path / "a.safetensors", model)
    assert loaded.ask("And whose?", 3) == prefix.ask("And whose?", 3)
    assert loaded.turns == prefix.turns and "<turn>" in loaded.turns.between
    tokens = loaded.header.tokens
    loaded.extend("The March Hare has none.")
    asked = loaded.model.encode(loaded.turns.between + "The March Hare has none.", special=False)
    assert loaded.header.tokens == tokens + asked.shape[1], "a text after an answer begins a turn of its own"


@pytest.fixture
def saved(tiny: LoadedModel, tmp_path: Path) -> Path:
    made(tiny).save(tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def changed(model: LoadedModel, **config: object) -> LoadedModel:
    """The model with a slightly changed weight, or with another config."""
    other = copy.deepcopy(model.model)
    if not config:
        with torch.no_grad():
            next(other.parameters()).mul_(1.001)
    for name, value in config.items():
        setattr(other.config, name, value)
    return replace(model, model=other)


def test_another_model_is_refused(tiny: LoadedModel, saved: Path) -> None:
    rope = {**tiny.model.config.rope_parameters, "rope_theta": 5e5}
    half = replace(tiny, model=copy.deepcopy(tiny.model).bfloat16())
    words = copy.deepcopy(tiny.tokenizer)
    words.chat_template = CHAT_TEMPLATE
    for model, sentence in (
        (changed(tiny), "load that model, or make the prefix again"),
        (changed(tiny, rope_parameters=rope), "rope_theta 10000.0.*rope_theta 500000.0"),
        (half, "holds keys and values in float32, and the model computes in bfloat16"),
        (replace(tiny, tokenizer=words), "tokenizer or chat template of .* has changed"),
    ):
        with pytest.raises(UserError, match=sentence):
            Prefix.load(saved, model)


def test_a_model_elsewhere_is_refused(tiny: LoadedModel, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoadedModel, "device", property(lambda self: torch.device("meta")))
    with pytest.raises(UserError, match="made on cpu and the model is on meta"):
        Prefix.load(saved, tiny)


def test_damage_is_found_before_an_answer(tiny: LoadedModel, saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    *_, start, end = read_prefix(saved).tensors["layers.0.buckets.0.table._slots.keys"]
    content[(start + end) // 2] ^= 1
    saved.write_bytes(content)
    prefix = Prefix.load(saved, tiny)
    for act in (lambda: prefix.ask("Who?", 1), lambda: prefix.extend("More."), lambda: prefix.save(saved)):
        with pytest.raises(UserError, match=r"damaged \(layers.0.buckets.0.table._slots.keys\)"):
            act()
    with pytest.raises(UserError, match="is damaged"):
        check_tensors(read_prefix(saved))
    assert saved.read_bytes() == content
    *_, start, _ = read_prefix(saved).tensors["texts"]
    content[start + 20] ^= 1
    saved.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged \(its text\)"):
        Prefix.load(saved, tiny)


def rewritten(path: Path, change) -> None:
    """The file with its metadata changed, and sealed again."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    told = json.loads(content[8 : 8 + length])
    about = told.pop("__metadata__")
    change(about)
    about.pop("seal")
    header = json.dumps({**told, "__metadata__": {**about, "seal": seal(told, about)}}).encode()
    header += b" " * (-(8 + len(header)) % 64)
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])


def test_files_that_are_no_whole_prefix_are_refused(tiny: LoadedModel, saved: Path, tmp_path: Path) -> None:
    content = saved.read_bytes()
    for broken, sentence in (
        (content[:-10], "is cut off or was added to"),
        (content + b"x", "is cut off or was added to"),
        (content[:5000], "is not a kvlab prefix|cut off"),
        (content[:4], "is not a kvlab prefix"),
        (b"%PDF-1.7 and more", "is not a kvlab prefix"),
        (content.replace(b"snapkv", b"snapkw"), r"damaged \(its header\)"),
    ):
        saved.write_bytes(broken)
        with pytest.raises(UserError, match=sentence):
            Prefix.load(saved, tiny)
    save_file({"a": torch.zeros(3)}, saved, {"by": "another program"})
    with pytest.raises(UserError, match="is not a kvlab prefix"):
        Prefix.load(saved, tiny)
    saved.write_bytes(content)
    rewritten(saved, lambda about: about.update(kvlab_prefix=str(FORMAT + 1)))
    with pytest.raises(UserError, match=f"has format {FORMAT + 1}, and this version of kvlab reads format {FORMAT}"):
        Prefix.load(saved, tiny)
    saved.write_bytes(content)
    rewritten(saved, lambda about: about.update(state=about["state"].replace('"HeadBudgets"', '"Share"')))
    with pytest.raises(UserError, match="read the text again"):
        Prefix.load(saved, tiny)
    with pytest.raises(UserError, match="cannot be read: no such file"):
        Prefix.load(tmp_path / "nothing.safetensors", tiny)


def test_a_method_that_is_gone_is_refused(tiny: LoadedModel, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "registered", dict)
    with pytest.raises(UserError, match="compressed by 'snapkv', which this kvlab does not have"):
        Prefix.load(saved, tiny)
    rewritten(saved, lambda about: about.update(header=about["header"].replace('"origin":""', '"origin":"mine 1.0"')))
    with pytest.raises(UserError, match=r"of the plug-in mine 1\.0: name its file with --plugin"):
        Prefix.load(saved, tiny)
    monkeypatch.undo()
    rewritten(saved, lambda about: about.update(header=about["header"].replace('"settings":{', '"settings":{"old":1,')))
    with pytest.raises(UserError, match="settings of another version of 'snapkv'"):
        Prefix.load(saved, tiny)


def test_a_full_disk_leaves_what_was_saved(tiny: LoadedModel, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, prefix, read = saved.read_bytes(), Prefix.load(saved, tiny), tensor_file._bytes
    asked = []

    def full(tensor: Tensor) -> np.ndarray:
        """Each tensor is read twice, to be summed and to be written: the disk is full at the third that is written."""
        asked.append(id(tensor))
        if sum(asked.count(one) > 1 for one in set(asked)) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return read(tensor)

    monkeypatch.setattr(tensor_file, "_bytes", full)
    for path in (saved, saved.with_name("b.safetensors")):
        asked.clear()
        with pytest.raises(UserError, match="is full: what was saved before stays readable"):
            prefix.save(path)
    assert [path.name for path in saved.parent.iterdir()] == ["a.safetensors"]
    assert saved.read_bytes() == content


def test_bad_requests_are_one_sentence(tiny: LoadedModel, tmp_path: Path) -> None:
    for act, sentence in (
        (lambda: Prefix.make(tiny.model, TEXT), "pass what kvlab.load_model"),
        (lambda: made(tiny, text=" "), "The text is empty"),
        (lambda: made(tiny, text=TEXT * 4), "the context window of"),
        (lambda: made(tiny, "nothing"), "There is no method called"),
        (lambda: made(tiny, budget=-1.0), "The budget cannot be -1.0"),
        (lambda: made(tiny, chat="maybe"), "The setting chat cannot be 'maybe'"),
        (lambda: made(tiny, system="Be brief."), "would have no effect"),
        (lambda: made(tiny).ask(" "), "The question is empty"),
        (lambda: made(tiny).ask("Who?", 4096), "the context window of"),
        (lambda: made(tiny).extend(TEXT * 4), "the context window of"),
        (lambda: prefixes.prefix_path(tmp_path, "../a"), "cannot be called"),
    ):
        with pytest.raises(UserError, match=sentence):
            act()
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    assert made(tiny, text=file).header.text_sha256 == made(tiny).header.text_sha256
    whole, parts = made(tiny, "h2o"), made(tiny, "h2o", prefill_chunk=100)
    assert parts.header.live_bytes == whole.header.live_bytes and parts.ask("Who?", 2) == whole.ask("Who?", 2)
    assert kvlab.Prefix is Prefix


def test_lists_name_what_cannot_be_read(tiny: LoadedModel, tmp_path: Path) -> None:
    prefix = made(tiny, title="A story")
    prefix.save(prefixes.free_path(tmp_path, "story"))
    (tmp_path / prefixes.FOLDER / "broken.safetensors").write_bytes(b"nothing")
    (found,), (problem,) = list_prefixes(tmp_path)
    assert (found.name, found.header.title) == ("story", "A story")
    assert "broken.safetensors is not a kvlab prefix" in problem
    with pytest.raises(UserError, match="already a prefix 'story'"):
        prefixes.free_path(tmp_path, "story")
    copy_of = prefixes.fork_prefix(tmp_path, "story", "branch")
    assert copy_of.path.read_bytes() == found.path.read_bytes()
    with pytest.raises(UserError, match="no prefix 'gone'"):
        prefixes.remove_prefixes(tmp_path, ["branch", "gone"])
    prefixes.remove_prefixes(tmp_path, ["branch"])
    assert not copy_of.path.exists()
