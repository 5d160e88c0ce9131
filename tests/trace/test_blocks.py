"""What is read of an array file is held against the sums of its own blocks, and damage is told by whoever reads it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kvlab.core.errors import UserError
from kvlab.trace import RunWriter, open_run
from kvlab.trace.checksums import BLOCK, SUMS, block_sums, read_parts
from kvlab.trace.thinning import Thinnable, thin
from kvlab.trace.verify import verify_run
from tests.synthetic.runs import write_synthetic_run

STEPS, HEADS, TOKENS = 3, 4, 100_000  # a head's row of half numbers takes three blocks, one of them alone
FILE = "attention-layer-000.safetensors"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose attention arrays are of several blocks a head."""
    root = tmp_path_factory.mktemp("blocks")
    made = open_run(write_synthetic_run(root / "made", layers=1, heads=HEADS, prompt_tokens=12, steps=2))
    rows = np.random.default_rng(0).random((2, STEPS, HEADS, TOKENS)).astype(np.float16)
    writer = RunWriter(root, made.record.model_copy(update={"status": "running"}))
    for table in ("tokens", "steps", "memory"):
        writer.append(table, {name: column.to_numpy() for name, column in made.select(table).items()})
    writer.write_arrays("attention", 0, {"true_mass": rows[0], "slot_mass": rows[1]})
    writer.finish("complete")
    return writer.path


def place_of(path: Path, step: int, head: int) -> int:
    """The byte in the middle of a head's row in the first tensor of the file, found by its content."""
    content = (path / "arrays" / FILE).read_bytes()
    row = load_file(path / "arrays" / FILE)["true_mass"][step, head].tobytes()
    return content.index(row) + len(row) // 2


def flipped(sound: Path, to: Path, step: int, head: int) -> Path:
    path = Path(shutil.copytree(sound, to / sound.name))
    place, file = place_of(path, step, head), path / "arrays" / FILE
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    return path


def test_every_block_has_its_sum(sound: Path):
    content = (sound / "arrays" / FILE).read_bytes()
    expected = [hashlib.sha256(content[start : start + BLOCK]).digest() for start in range(0, len(content), BLOCK)]
    assert [row.tobytes() for row in load_file(sound / SUMS)[FILE]] == expected
    assert hashlib.sha256((sound / SUMS).read_bytes()).hexdigest() == open_run(sound).record.checksums[SUMS]
    assert len(content) / (sound / SUMS).stat().st_size > 1_000
    assert verify_run(sound).problems == ()


@pytest.mark.parametrize(("step", "head"), [(0, 0), (1, 2), (2, 3)])
def test_damage_is_told_to_whoever_reads_it(sound: Path, tmp_path: Path, step: int, head: int):
    path = flipped(sound, tmp_path, step, head)
    run = open_run(path)
    for other in set(range(HEADS)) - {head}:
        whole, row = run.attention(0, other), run.attention_row(0, other, step)
        assert row is not None
        np.testing.assert_array_equal(whole[1][step], row[1])
        np.testing.assert_array_equal(whole[0], load_file(sound / "arrays" / FILE)["true_mass"][:, other])
    for elsewhere in set(range(STEPS)) - {step}:
        assert run.attention_row(0, head, elsewhere) is not None
    with pytest.raises(UserError, match="damaged"):
        run.attention(0, head)
    with pytest.raises(UserError, match="damaged"):
        run.attention_row(0, head, step)
    assert verify_run(path).problems


def test_what_is_changed_after_it_was_read_is_told(sound: Path, tmp_path: Path):
    path = Path(shutil.copytree(sound, tmp_path / sound.name))
    run, file = open_run(path), path / "arrays" / FILE
    before = run.attention(0, 1)[0]
    content = bytearray(file.read_bytes())
    content[place_of(path, 1, 1)] ^= 4
    file.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        run.attention(0, 1)
    file.write_bytes((sound / "arrays" / FILE).read_bytes())
    np.testing.assert_array_equal(run.attention(0, 1)[0], before)


@pytest.mark.parametrize("left", [0, 5, 300, BLOCK, -1])
def test_a_file_cut_off_anywhere_is_told(sound: Path, tmp_path: Path, left: int):
    path = Path(shutil.copytree(sound, tmp_path / sound.name))
    file = path / "arrays" / FILE
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(UserError, match="damaged"):
        open_run(path).attention(0, HEADS - 1)


@pytest.mark.parametrize("left", [0, 5, 300, BLOCK, -1])
def test_it_is_told_where_a_run_has_no_checksums_at_all(sound: Path, tmp_path: Path, left: int):
    path = Path(shutil.copytree(sound, tmp_path / sound.name))
    file, run = path / "arrays" / FILE, open_run(path)
    run.record = run.record.model_copy(update={"checksums": None})
    np.testing.assert_array_equal(run.attention(0, 1)[0], load_file(file)["true_mass"][:, 1])
    file.write_bytes(file.read_bytes()[:left])
    for read in (lambda: run.attention(0, HEADS - 1), lambda: run.attention_row(0, HEADS - 1, STEPS - 1)):
        with pytest.raises(UserError, match="damaged"):
            read()


@pytest.mark.parametrize(
    "header",
    [b"[" * 5_000, b'{"true_mass":1}', b'{"slot_mass":{"dtype":"F16","shape":[0],"data_offsets":[0,0]}}',
     b'{"true_mass":{"dtype":"F16","shape":[1000000000000,9,0],"data_offsets":[0,0]}}',
     b'{"true_mass":{"dtype":"BF16","shape":[1,4,0],"data_offsets":[0,0]}}',
     b'{"true_mass":{"dtype":"F16","shape":[1,4,1000000000],"data_offsets":[0,8000000000]}}'],
    ids=["deep", "number", "absent", "endless", "other type", "beyond"],
)  # fmt: skip
def test_a_made_up_header_is_a_sentence_whatever_its_sums_say(sound: Path, tmp_path: Path, header: bytes):
    path = Path(shutil.copytree(sound, tmp_path / sound.name))
    file, run = path / "arrays" / FILE, open_run(path)
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    run.record.checksums[f"arrays/{FILE}"] = hashlib.sha256(file.read_bytes()).hexdigest()
    for sums in (block_sums(file), None):
        run._block_sums = {} if sums is None else {FILE: sums}
        with pytest.raises(UserError, match="damaged"):
            run.true_mass(0, 1)


@pytest.mark.parametrize("harm", ["damaged", "missing", "unlisted"])
def test_without_sums_of_blocks_the_whole_file_is_checked(sound: Path, tmp_path: Path, harm: str):
    path = flipped(sound, tmp_path, 1, 2)
    if harm == "damaged":
        (path / SUMS).write_bytes((path / SUMS).read_bytes()[:-1])
    else:
        (path / SUMS).unlink()
    run = open_run(path)
    if harm == "unlisted":  # as of a run that is older than these sums
        del run.record.checksums[SUMS]
    with pytest.raises(UserError, match="damaged"):
        run.attention(0, 0)
    names = " ".join(verify_run(path).problems)
    assert "blocks.safetensors" in names
    assert FILE in names


def test_rows_beyond_the_last_are_none(sound: Path, tmp_path: Path):
    path = Path(shutil.copytree(sound, tmp_path / sound.name))
    assert open_run(path).attention_row(0, 1, STEPS) is None
    (path / SUMS).unlink()
    assert open_run(path).attention_row(0, 1, STEPS) is None


def test_sums_leave_with_the_arrays(sound: Path, tmp_path: Path):
    path = Path(shutil.copytree(sound, tmp_path / sound.name))
    thin(tmp_path, [Thinnable(path.name, "", "", "", 0)])
    assert not (path / SUMS).exists()
    assert verify_run(path).problems == ()


@pytest.mark.parametrize("shape", [(5, 3, 40_000), (2, 70_000), (1,)])
def test_any_part_of_any_tensor_is_found(tmp_path: Path, shape: tuple[int, ...]):
    """Each part in turn, in a file with one block damaged: told exactly where the part's bytes lie in that block."""
    tensors = {name: np.random.default_rng(seed).random(shape) for seed, name in enumerate(("a", "b"))}
    file = tmp_path / "file.safetensors"
    save_file(tensors, file)
    sums, content = block_sums(file), file.read_bytes()
    damaged = (len(content) - 1) // BLOCK // 2 * BLOCK or len(content) // 2
    file.write_bytes(content[:damaged] + bytes([content[damaged] ^ 1]) + content[damaged + 1 :])
    block = damaged // BLOCK
    for name, tensor in tensors.items():
        for place in np.ndindex(*shape[:-1]):
            part = tensor[place].tobytes()
            begins = content.index(part)
            touched = begins // BLOCK <= block <= (begins + len(part) - 1) // BLOCK
            found = read_parts(file, sums, {name: place})
            assert (found is None) == (touched or block == 0)
            if found is not None:
                np.testing.assert_array_equal(found[name], tensor[place])
