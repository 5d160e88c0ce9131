"""The shadow lies on the host: a device holds at most one layer more for a full recording, however many there are."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from kvlab.core.attention.pass_view import PassView
from kvlab.core.cache import make_cache
from kvlab.core.contract.view import Slots
from kvlab.core.methods import make_method
from kvlab.engine.recording.recorder import Recorder
from kvlab.engine.recording.shadow import ROOM, HostBlocks, Shadow
from kvlab.models.load import prepare
from kvlab.requests.recording import Recording
from tests.engine.pretend import CUDA, OnPretendCuda, PretendCuda, pretend_cuda, put_there

HEADS, HEAD_DIM, TOKENS, STEPS, BLOCK = 2, 64, 700, 4, 64
ONE_LAYER = 2 * HEADS * (TOKENS + STEPS) * HEAD_DIM * 2  # keys and values in bfloat16


def model_of(layers: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=HEADS, head_dim=HEAD_DIM,
        hidden_size=64, intermediate_size=64, vocab_size=100, max_position_embeddings=2048,
    )  # fmt: skip
    return prepare(LlamaForCausalLM(config).bfloat16().eval())


class Counted:
    """Bytes of all storages that lie on the pretended device, now and at most; and whether one is tokens x tokens."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.holders: Counter[int] = Counter()
        self.bytes = self.most = 0
        self.square, self.watching = "", False
        plain = PretendCuda.__torch_function__

        def counting(mode: PretendCuda, function: Callable, types: Any, given: tuple = (), named: Any = None) -> Any:
            result = plain(mode, function, types, given, named)
            for made in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(made, Tensor):
                    self._note(made)
            return result

        patch.setattr(PretendCuda, "__torch_function__", counting)

    def _note(self, made: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            if self.watching and sum(size >= TOKENS for size in made.shape) > 1:
                self.square = str(tuple(made.shape))
            if not isinstance(made, OnPretendCuda):
                return
            storage = made.untyped_storage()
            place, size = storage.data_ptr(), storage.nbytes()
        self.holders[place] += 1
        if self.holders[place] == 1:
            self.bytes += size
            self.most = max(self.most, self.bytes)
        weakref.finalize(made, self._gone, place, size)

    def _gone(self, place: int, size: int) -> None:
        self.holders[place] -= 1
        self.bytes -= size if self.holders[place] == 0 else 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.watching = True
        yield
        self.watching = False


def watched(recorder: Recorder, counted: Counted) -> None:
    for name in ("attended", "compressed", "end_step"):
        inner = getattr(recorder, name)

        def shown(*given: Any, inner: Callable = inner) -> None:
            with counted.recording():
                inner(*given)

        setattr(recorder, name, shown)


def most_bytes(layers: int, method: str, recorded: bool, patch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The most bytes alive on the device while the prompt is read, and while decoding."""
    model = SimpleNamespace(num_hidden_layers=layers)
    record = SimpleNamespace(model=model, sliding_layers=(), recording=Recording(), left_out={})
    nobody: Any = SimpleNamespace(
        before_flush=[], append=lambda *_: None, write_arrays=lambda *_: None, update=lambda **_: None, record=record
    )
    ids = torch.randint(3, 100, (1, TOKENS + STEPS), generator=torch.Generator().manual_seed(1))
    with patch.context() as here, pretend_cuda(here), torch.inference_mode():
        counted = Counted(here)
        recorder = Recorder(nobody, "full", TOKENS, STEPS) if recorded else None
        if recorder is not None:
            watched(recorder, counted)
        model, found = put_there(model_of(layers)), []
        cache = make_cache(model, make_method(method), 0.2, observer=recorder)
        for place in ((0, TOKENS), *((at, at + 1) for at in range(TOKENS, TOKENS + STEPS))):
            if place[0] in (0, TOKENS):
                counted.most = counted.bytes
            model(ids[:, slice(*place)].to(CUDA), past_key_values=cache, use_cache=True, logits_to_keep=1)
            if recorder is not None:
                recorder.end_step(cache)
            if place[1] in (TOKENS, TOKENS + STEPS):
                found.append(counted.most)
        assert counted.square == "", f"a recorder's tensor is {counted.square}"
    return found[0], found[1]


@pytest.mark.parametrize("method", ["h2o", "keepkv", "adakv", "full"])
def test_a_full_recording_adds_at_most_one_layer_to_the_device(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kvlab.engine.recording.shadow.TOKENS_AT_ONCE", "kvlab.engine.recording.events.VALUE_BLOCK"):
        monkeypatch.setattr(name, BLOCK)
    monkeypatch.setattr("kvlab.core.attention.pass_view.KEY_BLOCK", BLOCK)
    for layers in (2, 4):
        bare, full = (most_bytes(layers, method, recorded, monkeypatch) for recorded in (False, True))
        added = [there - without for there, without in zip(full, bare, strict=True)]
        assert max(added) <= ONE_LAYER, f"{layers} layers: {[round(a / ONE_LAYER, 2) for a in added]} layers"


def slots_of(keys: Tensor, values: Tensor, position: Tensor) -> Slots:
    plain = torch.zeros(keys.shape[:3])
    return Slots(keys, values, position.to(torch.int32).expand(keys.shape[:3]), plain, plain, plain, plain == 0, {})


@pytest.mark.parametrize("absent", [(), (3, 4, 11)])
@pytest.mark.parametrize("block", [4, 7, 64])
def test_the_truth_over_blocks_is_plain_attention(
    absent: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt's 20 tokens, some of which never came, and three more, one at a time; weighed one by one."""
    monkeypatch.setattr("kvlab.engine.recording.shadow.TOKENS_AT_ONCE", block)
    shadow, scaling = Shadow(24), 0.3
    there = [token for token in range(23) if token not in absent]
    states = {token: (torch.randn(2, 5), torch.randn(2, 5)) for token in there}
    for last in (20, 21, 22, 23):
        seen = [token for token in there if token < last]
        order = torch.randperm(len(seen)).tolist()  # slots lie in any order
        keys, values = (torch.stack([states[seen[at]][of] for at in order], 1)[None] for of in (0, 1))
        query = torch.randn(1, 4, 1, 5)
        shadow.append(slots_of(keys, values, torch.tensor([seen[at] for at in order])), len(seen) if last == 20 else 1)
        truth = shadow.truth(PassView(query, keys, None, None, scaling))
        assert truth.mass.shape == (2, last)
        for head in range(4):
            weights = [float((query[0, head, 0] * states[token][0][head // 2]).sum()) * scaling for token in seen]
            share = torch.tensor(weights, dtype=torch.float64).softmax(0)
            output = sum(float(part) * states[token][1][head // 2] for part, token in zip(share, seen, strict=True))
            torch.testing.assert_close(truth.output[head], output, rtol=1e-5, atol=1e-6)
        assert truth.mass.sum(-1).tolist() == pytest.approx([1.0, 1.0])
        assert all(truth.mass[0, token] == 0 for token in absent)
    stored = shadow.stored("values", [1])
    assert stored.unit.shape == (1, 23, 5)
    for token in range(23):
        expected = states[token][1][1].numpy() if token in states else torch.zeros(5).numpy()
        assert stored.unit[0, token] * stored.norm[0, token] == pytest.approx(expected, rel=3e-3, abs=3e-3)


def test_blocks_are_sent_ahead_in_order_and_never_more_than_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent for another layer than the one that is asked is sent again."""
    with pretend_cuda(monkeypatch):
        host = HostBlocks(CUDA)
        layers = [[torch.full((2, 1), 10.0 * layer + at) for at in range(3)] for layer in range(3)]
        for layer, following in ((0, 1), (1, 2), (0, 2), (2, 0)):
            found = []
            for block in host.each(layers[layer], layers[following]):
                assert block.device == CUDA and 1 <= len(host.sent) <= ROOM
                found.append(float(block[0, 0]))
            assert found == [10.0 * layer + at for at in range(3)]
            ahead = [float(block[0, 0]) for block, _ in host.sent]
            assert ahead == [10.0 * following + at for at in range(ROOM)][: len(ahead)] and ahead


NOT_HERE = ("pin_memory", "non_blocking")


class SideStream:
    """A stream whose copies are made at once, or as late as its events allow."""

    late = False
    current: SideStream | None = None

    def __init__(self, device: torch.device) -> None:
        self.waiting: list[Callable[[], Any]] = []

    def do(self, copy: Callable[[], Any]) -> None:
        self.waiting.append(copy)
        if not self.late:
            self.synchronize()

    def record_event(self) -> tuple[SideStream, list[Callable[[], Any]]]:
        return self, list(self.waiting)

    def synchronize(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()

    def wait_stream(self, stream: MainStream) -> None:
        """The main stream is never behind."""

    def wait_event(self, event: None) -> None:
        """Nor are its events."""

    def __enter__(self) -> None:
        SideStream.current = self

    def __exit__(self, *_: object) -> None:
        SideStream.current = None


class MainStream:
    """What is computed is computed at once."""

    def record_event(self) -> None:
        return None

    def wait_event(self, event: tuple[SideStream, list[Callable[[], Any]]]) -> None:
        stream, before = event
        while stream.waiting and stream.waiting[0] in before:
            stream.waiting.pop(0)()


@contextmanager
def pretended_streams(patch: pytest.MonkeyPatch, late: bool) -> Iterator[None]:
    """The pretended device has streams: copies under `torch.cuda.stream` are left to that stream."""
    with patch.context() as here, pretend_cuda(here):
        plain = PretendCuda.__torch_function__

        def with_streams(
            mode: PretendCuda, function: Callable, types: Any, given: tuple = (), named: Any = None
        ) -> Any:
            named = {
                name: value for name, value in dict(named or ()).items() if name not in ("pin_memory", "non_blocking")
            }
            stream, call = SideStream.current, partial(plain, mode, function, types, given, named)
            if getattr(function, "__name__", "") != "copy_" or stream is None:
                return call()
            return stream.do(call)

        here.setattr(PretendCuda, "__torch_function__", with_streams)
        here.setattr(Tensor, "record_stream", lambda *_: None)
        here.setattr(SideStream, "late", late)
        here.setattr(torch.cuda, "is_available", lambda: True)
        here.setattr(torch.cuda, "Stream", SideStream)
        here.setattr(torch.cuda, "stream", lambda stream: stream)
        here.setattr(torch.cuda, "current_stream", lambda device: MainStream())
        yield


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("block", [4, 16])
def test_streams_bring_the_same_whether_they_are_quick_or_slow(
    late: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three layers in turns, 20 tokens and six more: each truth is that of the same states on the host."""
    monkeypatch.setattr("kvlab.engine.recording.shadow.TOKENS_AT_ONCE", block)
    states = torch.randn(3, 2, 1, 2, 26, 5)
    queries = torch.randn(7, 3, 1, 4, 1, 5)

    def truths(device: torch.device) -> list[Tensor]:
        host = HostBlocks(device)
        shadows, found = [Shadow(26, host) for _ in range(3)], []
        for step, last in enumerate(range(20, 27)):
            for layer, shadow in enumerate(shadows):
                keys, values = (part[:, :, :last].to(device) for part in states[layer])
                slots = slots_of(keys, values, torch.arange(last, device=device))
                shadow.append(slots.map(lambda tensor: tensor.to(device)), 20 if step == 0 else 1)
                following = shadows[(layer + 1) % 3] if step else None
                layer_pass = PassView(queries[step, layer].to(device), keys, None, None, 0.3)
                truth = shadow.truth(layer_pass, following)
                found += [truth.mass.cpu(), truth.output.cpu()]
        return [*found, *(torch.from_numpy(shadow.stored("keys", [0]).unit) for shadow in shadows)]

    expected = truths(torch.device("cpu"))
    with pretended_streams(monkeypatch, late):
        given = truths(CUDA)
    for ours, theirs in zip(given, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
