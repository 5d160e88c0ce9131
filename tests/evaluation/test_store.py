"""Rows on disk: whole parts only, each key once, one writer at a time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.evaluation.results import rows as store_module
from kvlab.evaluation.results.rows import ROWS, PromptIdentity, ResultStore, read_results, row_key


def row(key):
    return dict.fromkeys(ROWS.names) | {"key": key, "task": "needle", "content": key, "score": 0.5}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 20), max_size=6), max_size=8))
def test_every_key_is_read_back_once_in_the_order_written(tmp_path_factory, batches):
    folder = tmp_path_factory.mktemp("results")
    for batch in batches:
        with ResultStore.opened(folder) as store:
            store.append([row(str(number)) for number in batch])
    expected = list(dict.fromkeys(str(number) for batch in batches for number in batch))
    assert ResultStore(folder).frame()["key"].tolist() == expected
    assert ResultStore(folder).keys() == set(expected)


def test_rows_are_on_disk_when_the_block_ends_by_an_error(tmp_path):
    def interrupted():
        with ResultStore.opened(tmp_path) as store:
            store.append([row("a")])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ResultStore(tmp_path).keys() == {"a"}


def test_many_parts_become_one_and_no_row_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "MOST_PARTS", 3)
    for number in range(6):
        with ResultStore.opened(tmp_path) as store:
            store.append([row(str(number))])
    with ResultStore.opened(tmp_path) as store:
        assert len(list(tmp_path.glob("part-*.parquet"))) <= 4
        assert store.frame()["key"].tolist() == [str(number) for number in range(6)]


def test_a_kill_while_joining_parts_leaves_no_doubles(tmp_path, monkeypatch):
    with ResultStore.opened(tmp_path) as store:
        for key in "abc":
            store.append([row(key)])
            store.flush()
        store._write(
            next(store._tables(None)), store._next_part()
        )  # part 0 once more, as if the kill came before the removing
    assert read_results(tmp_path)["key"].tolist() == ["a", "b", "c"]


def test_unfinished_and_damaged_parts_are_passed_over(tmp_path):
    with ResultStore.opened(tmp_path) as store:
        for key in "ab":
            store.append([row(key)])
            store.flush()
    parts = sorted(tmp_path.glob("part-*.parquet"))
    parts[1].write_bytes(parts[1].read_bytes()[:100])
    (tmp_path / "part-000009.unfinished").write_bytes(b"PAR1")
    with ResultStore.opened(tmp_path) as store:
        assert store.keys() == {"a"}
        assert store.damaged == [parts[1]]
        assert not list(tmp_path.glob("*.unfinished"))
        store.append([row("b")])
    assert ResultStore(tmp_path).keys() == {"a", "b"}


def test_two_writers_are_refused(tmp_path):
    with ResultStore.opened(tmp_path):
        second = ResultStore.opened(tmp_path)
        with pytest.raises(UserError, match="Another evaluation"):
            second.__enter__()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another --out"), ResultStore.opened(tmp_path / "file" / "out"):
        pass


def test_a_full_disk_is_one_sentence_and_leaves_the_rows_before(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    with ResultStore.opened(tmp_path) as store:
        store.append([row("a")])
        store.flush()
        store.append([row("b")])
        with monkeypatch.context() as context:
            context.setattr(store_module.pq, "write_table", full)
            with pytest.raises(UserError, match="No space left"):
                store.flush()
    assert ResultStore(tmp_path).keys() == {"a", "b"}


def test_reading_an_empty_folder_says_what_to_run(tmp_path):
    with pytest.raises(UserError, match="kvlab eval"):
        read_results(tmp_path)


IDENTITY = PromptIdentity("needle", "{}", 100, 0.5, 3, 0)
CHOICE = MethodChoice(method="h2o", budget=0.2)


@pytest.mark.parametrize(
    ("identity", "choice", "aware", "model", "digest"),
    [
        (PromptIdentity("needle", '{"a":1}', 100, 0.5, 3, 0), CHOICE, True, "m", "d"),
        (PromptIdentity("needle", "{}", 101, 0.5, 3, 0), CHOICE, True, "m", "d"),
        (PromptIdentity("needle", "{}", 100, None, 3, 0), CHOICE, True, "m", "d"),
        (PromptIdentity("needle", "{}", 100, 0.5, 4, 0), CHOICE, True, "m", "d"),
        (PromptIdentity("needle", "{}", 100, 0.5, 3, 1), CHOICE, True, "m", "d"),
        (PromptIdentity("copy", "{}", 100, 0.5, 3, 0), CHOICE, True, "m", "d"),
        (IDENTITY, MethodChoice(method="snapkv", budget=0.2), True, "m", "d"),
        (IDENTITY, MethodChoice(method="h2o", budget=0.3), True, "m", "d"),
        (IDENTITY, MethodChoice(method="h2o", budget=0.2, hyper_parameters={"a": 1}), True, "m", "d"),
        (IDENTITY, CHOICE, False, "m", "d"),
        (IDENTITY, CHOICE, True, "n", "d"),
        (IDENTITY, CHOICE, True, "m", "e"),
    ],
)
def test_whatever_changes_the_measurement_changes_its_key(identity, choice, aware, model, digest):
    assert row_key(IDENTITY, CHOICE, {}, True, "m", "d") != row_key(
        identity, choice, choice.hyper_parameters, aware, model, digest
    )


def test_a_fraction_and_a_slot_count_are_two_budgets():
    one = [MethodChoice(method="h2o", budget=1), MethodChoice(method="h2o", budget=1.0)]
    assert len({row_key(IDENTITY, choice, choice.hyper_parameters, True, "m", "d") for choice in one}) == 2


def test_equal_hyper_parameters_in_another_order_have_one_key():
    one = [MethodChoice(method="x", hyper_parameters=values) for values in ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
    assert len({row_key(IDENTITY, choice, choice.hyper_parameters, True, "m", "d") for choice in one}) == 1


def test_a_default_that_changes_makes_another_measurement_and_takes_the_old_ones_place(tmp_path):
    before, after = ({"recent": value} for value in (0.5, 0.8))
    keys = [row_key(IDENTITY, CHOICE, settings, True, "m", "d") for settings in (before, after)]
    assert keys[0] != keys[1]
    with ResultStore.opened(tmp_path) as store:
        store.append([row(keys[0]) | {"content": "a", "settings": '{"recent":0.5}'}])
        store.append([row("older")])
        store.append([row(keys[1]) | {"content": "a", "settings": '{"recent":0.8}'}])
    found = read_results(tmp_path)
    assert found["key"].tolist() == ["older", keys[1]]
