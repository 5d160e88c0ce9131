"""What each code of a store may change of the numbers it holds."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch

from kvlab.core.errors import UserError
from kvlab.core.stores import STORES, store_bytes, store_of
from kvlab.core.stores.code import pack_bits, unpack_bits
from kvlab.core.stores.eight_bit import Eight
from kvlab.core.stores.ggml import Blocks, Format
from kvlab.core.stores.kivi import PerChannel, PerToken
from kvlab.core.stores.store import KeptChannels
from kvlab.core.stores.turbo import Rotated, normal_levels
from tests.stores.test_stores import PACKING, draw, learned

WIDTHS = [32, 80, 37, 8]
PARTS = ("step", "least", "high", "codes")  # of a block in a file, in this order


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("count", [1, 7, 8, 33])
def test_packed_numbers_come_back(bits: int, count: int) -> None:
    codes = torch.randint(0, 2**bits, (3, 5, count), generator=torch.Generator().manual_seed(count))
    lots = pack_bits(codes, bits)
    assert lots.dtype == torch.uint8
    assert lots.shape[-1] <= math.ceil(count * bits / 8) + 2
    assert (unpack_bits(lots, bits, count) == codes).all()


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("width", WIDTHS)
def test_kivis_keys_are_off_by_half_a_step_of_their_channel_and_group(bits: int, width: int) -> None:
    """The step is range / (2^bits - 1), as KIVI's section 3.2 says; found here by loops over groups and channels."""
    states, code = draw(1, 2, 64, width) * torch.logspace(-3, 2, width), PerChannel(bits)
    back = code.decode(code.encode(states, torch.ones(1, 2, 64, dtype=torch.bool)), width)
    for head in range(2):
        for first in (0, 32):
            for channel in range(width):
                group = states[0, head, first : first + 32, channel]
                step = (group.max() - group.min()) / (2**bits - 1)
                rounded = 2.0**-10 * (group.abs().max() + (2**bits) * step) + 1e-6  # step and least have 16 bits
                assert (back[0, head, first : first + 32, channel] - group).abs().max() <= step / 2 + rounded


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("width", WIDTHS)
def test_kivis_values_are_off_by_half_a_step_of_their_token(bits: int, width: int) -> None:
    states, code = draw(1, 2, 40, width) * torch.logspace(-3, 2, 40)[:, None], PerToken(bits)
    back = code.decode(code.encode(states, torch.ones(1, 2, 40, dtype=torch.bool)), width)
    parts = math.ceil(width / 32)
    size = math.ceil(width / parts)
    for slot in range(40):
        for part in range(parts):
            own = slice(part * size, min((part + 1) * size, width))
            group = states[0, :, slot, own]
            step = (group.amax(-1) - group.amin(-1)) / (2**bits - 1)
            rounded = 2.0**-10 * (group.abs().amax(-1) + (2**bits) * step) + 1e-6
            assert ((back[0, :, slot, own] - group).abs().amax(-1) <= step / 2 + rounded).all()


@pytest.mark.parametrize(("kind", "share"), [("fp8", 2**-4), ("int8", 0.5 / 127)])
def test_eight_bits_are_as_exact_as_their_numbers(kind: str, share: float) -> None:
    """e4m3 has 3 bits of mantissa: off by 1/16 of a number; whole numbers: off by half of 1/127 of the largest."""
    states, code = draw(1, 2, 40, 24) * torch.logspace(-4, 4, 40)[:, None], Eight(kind)
    back = code.decode(code.encode(states, torch.ones(1, 2, 40, dtype=torch.bool)), 24)
    largest = states.abs().amax(-1, keepdim=True)
    # Below e4m3's normal numbers (2^-6 of 448) steps are even: 2^-9 of a scale of largest / 448.
    bound = share * states.abs() + largest / 448 * 2**-10 if kind == "fp8" else share * largest
    assert ((back - states).abs() <= bound * 1.002 + 2.0**-11 * states.abs() + 1e-6).all()


@pytest.mark.parametrize(("bits", "lost"), [(2, 0.1175), (3, 0.03454), (4, 0.009497)])
def test_turbos_levels_lose_what_lloyd_and_max_say(bits: int, lost: float) -> None:
    """Max (1960), table I: mean squared errors of the best quantiser of a standard normal number."""
    levels, grid = normal_levels(bits).double(), torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    nearest = (grid[:, None] - levels).square().amin(1) * torch.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    assert float(torch.trapezoid(nearest, grid)) == pytest.approx(lost, rel=2e-3)
    states, code = draw(1, 1, 4000, 64) * 3, Rotated(bits)
    back = code.decode(code.encode(states, torch.ones(1, 1, 4000, dtype=torch.bool)), 64)
    error = (back - states).square().sum(-1) / states.square().sum(-1)
    # Stretched so that its product with the vector itself is right, a decoded vector of squared length 1 - lost
    # (levels are means) has 1 / (1 - lost), and its error is that less 1. 64 coordinates of a unit vector have lighter
    # tails than normal numbers and lose a little less.
    assert 0.88 * lost / (1 - lost) < float(error.mean()) < 1.02 * lost / (1 - lost)
    torch.testing.assert_close((back * states).sum(-1), states.square().sum(-1), rtol=2e-3, atol=0)


def test_a_vector_of_one_channel_is_no_worse_for_turbo() -> None:
    states = torch.zeros(1, 1, 64, 64)
    states[0, 0, torch.arange(64), torch.arange(64)] = 100.0
    code = Rotated(4)
    back = code.decode(code.encode(states, torch.ones(1, 1, 64, dtype=torch.bool)), 64)
    assert ((back - states).square().sum(-1) / 1e4).mean() < 0.012


@pytest.mark.parametrize("name", PACKING)
@pytest.mark.parametrize("number", [0.0, -3.25, 1e-9])
def test_constant_groups_are_safe(name: str, number: float) -> None:
    states, real = torch.full((1, 2, 64, 32), number), torch.ones(1, 2, 64, dtype=torch.bool)
    for code in (STORES[name].keys, STORES[name].values):
        assert code is not None
        code = learned(code, states, real)
        back = code.decode(code.encode(states, real), 32)
        # TurboQuant's error is a share of the norm whatever the vector, and ThinK loses half of the channels; the
        # others hold a constant to 16 bits.
        share = 0.3 if isinstance(code, Rotated) else 0.71 if isinstance(code, KeptChannels) else 2e-3
        assert torch.isfinite(back).all()
        assert ((back - number).norm(dim=-1) <= share * abs(number) * 32**0.5 + 1e-7 * 32**0.5).all()


@pytest.mark.parametrize("name", PACKING)
def test_slots_that_are_not_valid_change_no_other(name: str) -> None:
    states, real = draw(1, 2, 64, 32), torch.rand(1, 2, 64, generator=torch.Generator().manual_seed(3)) < 0.7
    wild = states.masked_fill(~real[..., None], 1e6)
    for code in (STORES[name].keys, STORES[name].values):
        assert code is not None
        own = [learned(code, given, real) for given in (states, wild)]
        ours, theirs = (one.decode(one.encode(given, real), 32) for one, given in zip(own, (states, wild), strict=True))
        assert torch.equal(ours[real], theirs[real]) and torch.isfinite(theirs).all()


# packing


@pytest.mark.parametrize(
    ("name", "bytes_at_128"),
    [("turboquant_k8v4", 196), ("turboquant_4bit_nc", 134), ("turboquant_k3v4_nc", 118), ("turboquant_3bit_nc", 102)],
)
def test_vllms_stores_take_its_bytes_and_keep_lengths(name: str, bytes_at_128: int) -> None:
    """Keys: float8, or a code for each rotated coordinate that is as long as the key; values: a step for each slot."""
    store, states = STORES[name], draw(1, 2, 24, 128) * torch.logspace(-1, 1, 24)[:, None]
    assert store.keys is not None and store.values is not None and not store.keys.shared and not store.values.shared
    assert store_bytes(store, 128, 128) == (bytes_at_128, 0)
    real = torch.ones(1, 2, 24, dtype=torch.bool)
    key, value = (code.decode(code.encode(states, real), 128) for code in (store.keys, store.values))
    if name == "turboquant_k8v4":  # three bits of mantissa, or the smallest float8
        assert ((key - states).abs() <= states.abs() * 2**-4 + 2**-10).all()
    else:
        torch.testing.assert_close(key.norm(dim=-1), states.norm(dim=-1), rtol=2e-3, atol=1e-4)
        cosine = torch.cosine_similarity(key, states, dim=-1)
        assert (cosine > (0.99 if "4bit" in name else 0.97)).all()
    for slot in range(24):
        own = states[0, :, slot]
        step = (own.amax(-1) - own.amin(-1)) / (2 ** (3 if "3bit" in name else 4) - 1)
        assert ((value[0, :, slot] - own).abs().amax(-1) <= step * 0.52 + 1e-3 * own.abs().amax(-1)).all()


def ggml_block(numbers: np.ndarray, name: Format) -> bytes:
    """ggml-quants.c, quantize_row_NAME_ref, of one block of 32 float32, number by number."""
    one = np.float32(1)
    half_up = np.float32(0.5)
    if name == "q8_0":
        step = np.abs(numbers).max() / np.float32(127)
        scaled = [abs(float(number * (one / step if step else step))) for number in numbers]
        whole = [math.floor(size) + (size - math.floor(size) >= 0.5) for size in scaled]
        codes = [int(math.copysign(size, number)) for size, number in zip(whole, numbers, strict=True)]
        return struct.pack("<e32b", step, *codes)
    if name == "q4_0":
        furthest = max(numbers, key=abs)  # the first of several
        step = furthest / np.float32(-8)
        codes = [min(15, int(number * (one / step if step else step) + np.float32(8.5))) for number in numbers]
        return struct.pack("<e16B", step, *(codes[at] | codes[at + 16] << 4 for at in range(16)))
    least = numbers.min()
    step = (numbers.max() - least) / np.float32(31)
    codes = [min(31, int((number - least) * (one / step if step else step) + half_up)) for number in numbers]
    fifth = sum((code >> 4) << at for at, code in enumerate(codes))
    return struct.pack(
        "<2eI16B", step, least, fifth, *((codes[at] & 15) | (codes[at + 16] & 15) << 4 for at in range(16))
    )


def gguf_blocks(states: np.ndarray, name: Format) -> bytes:
    """Of the package gguf, which reads and writes llama.cpp's files."""
    gguf = pytest.importorskip("gguf", reason="needs gguf: install kvlab[gguf]")
    return gguf.quants.quantize(states, getattr(gguf.GGMLQuantizationType, name.upper())).tobytes()


@pytest.mark.parametrize("name", ["q8_0", "q5_1", "q4_0"])
@pytest.mark.parametrize("source", ["definition", "gguf"])
def test_blocks_are_llama_cpps_byte_for_byte(name: Format, source: str) -> None:
    """Of float32 and bfloat16 numbers of all sizes, ties, constants and zeros; of rotated ones, of what is rotated."""
    states = draw(1, 2, 60, 64) * torch.logspace(-4, 3, 60)[:, None]
    states = torch.cat(
        [states, states.bfloat16().float(), states.sign(), torch.full((1, 2, 1, 64), -3.25), torch.zeros_like(states)],
        2,
    )
    real = torch.ones(states.shape[:3], dtype=torch.bool)
    hadamard = torch.ones(1, 1)
    for _ in range(6):
        hadamard = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), hadamard)
    for code, turned in ((Blocks(name, rotation=0), states), (Blocks(name), states @ (hadamard / 8))):
        coded = code.encode(states, real)
        rows = turned.numpy().reshape(-1, 32)
        parts = [coded[part].contiguous().view(torch.uint8).reshape(len(rows), -1) for part in PARTS if part in coded]
        ours = torch.cat(parts, 1).numpy()
        expected = gguf_blocks(rows, name) if source == "gguf" else b"".join(ggml_block(row, name) for row in rows)
        assert ours.tobytes() == expected
        assert store_bytes(replace(STORES[name], keys=code, values=code), 64, 64) == (4 * len(expected) // len(rows), 0)


@pytest.mark.parametrize("name", ["q8_0", "q5_1", "q4_0"])
@pytest.mark.parametrize("width", [*WIDTHS, 64, 192])
def test_blocks_give_back_what_their_codes_and_steps_say(name: Format, width: int) -> None:
    """Off by half a step of the block, or a whole one at q4_0's open end; also of a width that llama.cpp refuses."""
    states = draw(1, 2, 24, width) * torch.logspace(-2, 2, 24)[:, None]
    real = torch.ones(1, 2, 24, dtype=torch.bool)
    code = Blocks(name, rotation=0)
    back = code.decode(code.encode(states, real), width)
    for first in range(0, width, 32):
        block, error = (tensor[..., first : first + 32] for tensor in (states, (back - states).abs()))
        largest = block.abs().amax(-1)
        step = {"q8_0": largest / 127, "q5_1": (block.amax(-1) - block.amin(-1)) / 31, "q4_0": largest / 8}[name]
        assert (error.amax(-1) <= step * (1.01 if name == "q4_0" else 0.51) + largest * 2**-10).all()


def test_keys_are_rotated_by_the_widest_matrix_and_values_by_64() -> None:
    """llama.cpp's sizes (build_input_k_rot, build_input_v_rot): none unless 64 divides the width."""
    keys = STORES["q4_0"].keys
    values = STORES["q4_0"].values
    assert isinstance(keys, Blocks) and isinstance(values, Blocks)
    sizes = {width: (keys.matrix_size(width), values.matrix_size(width)) for width in (32, 64, 80, 96, 128, 192, 256)}
    assert sizes == {32: (0, 0), 64: (64, 64), 80: (0, 0), 96: (0, 0), 128: (128, 64), 192: (64, 64), 256: (256, 64)}
    asked = store_of("q4_0/rotation=32").keys
    assert isinstance(asked, Blocks) and [asked.matrix_size(width) for width in (32, 80, 128)] == [32, 16, 32]
    # A loud channel makes its block's step large; rotated, it is spread over all channels.
    states = 0.3 * draw(1, 1, 8, 128)
    real = torch.ones(1, 1, 8, dtype=torch.bool)
    states[..., 5] = 8.0
    plain, rotated = (
        (code.decode(code.encode(states, real), 128) - states)[..., :32].square().mean()
        for code in (replace(keys, rotation=0), keys)
    )
    assert plain > 5 * rotated
    with pytest.raises(UserError, match="kivi4 has no rotation"):
        store_of("kivi4/rotation=0")
