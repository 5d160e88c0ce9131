"""Numbers recorded in float16 become float32 as numpy makes them, each of the 65,536 there are."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.views.frames import float16

EVERY = np.arange(2**16, dtype=np.uint16).view(np.float16)


def test_every_number_there_is_even_what_is_none() -> None:
    np.testing.assert_array_equal(float16.as_float32(EVERY), EVERY.astype(np.float32))
    finite = EVERY[np.isfinite(EVERY)]
    found = float16.as_float32(finite)
    assert found.dtype == np.float32 and (found.view(np.uint32) == finite.astype(np.float32).view(np.uint32)).all()


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_other_types_and_shapes(kind: type) -> None:
    given = np.arange(24, dtype=kind).reshape(2, 3, 4)[:, ::2]
    assert float16.as_float32(given).tolist() == given.tolist()
    assert float16.as_float32(given.astype(np.float16)).tolist() == given.tolist()
    assert float16.as_float32(given[:0].astype(np.float16)).shape == (0, 2, 4)


def test_room_is_written_over_and_never_read() -> None:
    room = np.full(10, -1, np.int32)
    first = float16.as_float32(EVERY[100:106].reshape(2, 3), room)
    assert np.shares_memory(first, room) and (first == EVERY[100:106].reshape(2, 3)).all()
    assert (float16.as_float32(EVERY[7:17], room) == EVERY[7:17]).all()
    np.testing.assert_array_equal(
        float16.as_float32(EVERY[31_740:31_750], room), EVERY[31_740:31_750]
    )  # infinity, none


def test_sums_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float16, "TOKENS_AT_ONCE", 7)
    random = np.random.default_rng(0)
    weights, unit = random.random((3, 20)).astype(np.float16), random.normal(size=(20, 5)).astype(np.float16)
    norm = random.random(20).astype(np.float16)
    values = [[float(length) * float(one) for one in row] for length, row in zip(norm, unit, strict=True)]
    columns = list(zip(*values, strict=True))
    expected = [[sum(float(w) * v for w, v in zip(row, column, strict=True)) for column in columns] for row in weights]
    plain = [sum(column) for column in columns]
    np.testing.assert_allclose(float16.weighted_sums(weights, unit, norm), [*expected, plain], rtol=1e-5)
