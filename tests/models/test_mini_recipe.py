"""Training of mini: growth keeps the function, a kill costs nothing, and bad input is told in one sentence."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from kvlab.core.errors import UserError
from kvlab.models.info.mini import (
    ADJECTIVES,
    NAMES,
    VALIDATION_BOOKS,
    read_book,
)
from training.mini import checkpoint as saved
from training.mini import recipe as recipes
from training.mini.__main__ import train_mini
from training.mini.curve import curve_figure, read_curve
from training.mini.growth import grow_depth, grow_width
from training.mini.presets import CPU_PHASES, GPU_PHASES, PRESETS, Phase
from training.mini.random_rows import ROW_MAKERS, draw_batch
from training.mini.recipe import Recipe, run_recipe
from training.mini.rows import TEXT
from training.mini.shape import Shape, build_model
from training.mini.text import Text, prepare_text, training_books, validation_books
from training.mini.train import Run, train

SMALL = Shape(hidden_size=64, num_hidden_layers=1, intermediate_size=96, vocab_size=4096)
WIDE = Shape(hidden_size=128, num_hidden_layers=3, intermediate_size=192, vocab_size=4096)
LENGTH = 512


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of made-up books, one of them bearing a validation book's name."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "books").mkdir()
    for name in ("first", "second", VALIDATION_BOOKS[0]):
        random = Random(name)
        words = [" ".join(random.choices(NAMES + ADJECTIVES, k=9)).capitalize() + "." for _ in range(1500)]
        (folder / "books" / f"{name}.txt").write_text(" ".join(words), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def text(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Text:
    return prepare_text(corpus, tmp_path_factory.mktemp("cache"))


def tiny(phases: tuple[Phase, ...], vocab_size: int) -> tuple[Phase, ...]:
    """The phases of a preset with few, small steps; shapes keep their growth in depth and width."""
    narrow = replace(SMALL, vocab_size=vocab_size)
    deep = replace(narrow, num_hidden_layers=3)
    shapes = {0: narrow, 1: deep, 2: deep}
    return tuple(
        replace(
            phase,
            shape=shapes.get(index, replace(WIDE, vocab_size=vocab_size)),
            places=(1,) if phase.places else (),
            length=64 if index == 0 else LENGTH,
            batch=2,
            steps=2,
            advance_on=(),
        )
        for index, phase in enumerate(phases)
    )


def logits(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=tokens).logits


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_growth_in_depth_and_width_keeps_the_function(seed: int) -> None:
    small = build_model(SMALL, seed)
    with torch.no_grad():
        for parameter in small.parameters():  # far from the initial weights, where every part matters
            parameter.copy_(parameter * 5 if parameter.ndim == 2 else parameter + 0.2 * torch.randn_like(parameter))
    deep = grow_depth(small, replace(WIDE, hidden_size=64, intermediate_size=96), (1,), seed)
    wide = grow_width(deep, WIDE, seed)
    tokens = torch.randint(0, SMALL.vocab_size, (2, 40))
    before = logits(small, tokens)
    assert before.std() > 0.1
    torch.testing.assert_close(logits(deep, tokens), before, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits(wide, tokens), before, atol=1e-4, rtol=1e-4)


def test_widened_copies_learn_different_things() -> None:
    wide = grow_width(build_model(replace(WIDE, hidden_size=64, intermediate_size=96), 0), WIDE, 0)
    tokens = torch.randint(0, SMALL.vocab_size, (2, 40))
    wide(input_ids=tokens, labels=tokens).loss.backward()
    gradient = wide.model.layers[0].mlp.up_proj.weight.grad
    assert not torch.allclose(gradient[:96], gradient[96:], rtol=0.05)


def test_growth_refuses_shapes_that_do_not_double() -> None:
    with pytest.raises(ValueError, match="doubles"):
        grow_width(build_model(SMALL, 0), WIDE, 0)


@pytest.mark.parametrize("kind", sorted(set(ROW_MAKERS) - {"text"}))
def test_every_answer_stands_in_the_row_before_it_is_asked(kind: str, text: Text) -> None:
    phase = replace(CPU_PHASES[-1], length=1024)
    rng = np.random.default_rng(3)
    for _ in range(20):
        row = ROW_MAKERS[kind](rng, text, phase)
        assert len(row.tokens) == phase.length + 1
        assert len(row.marks) == phase.length
        assert row.tokens[0] == text.bos_token_id
        first = int(np.flatnonzero(row.marks == 1)[0])
        answer = row.tokens[1:][row.marks == 1].tolist()
        earlier = text.tokenizer.decode(row.tokens[: first + 1])
        retrieved, _, total = text.decode(answer).strip(" .\n").partition(" Together they have ")
        assert all(part in earlier for part in retrieved.replace(",", " ").replace(".", " ").split())
        if total:
            assert sum(map(int, re.findall(r"\d+", retrieved))) == int(total)


def test_stated_values_and_questions_teach_nothing(text: Text) -> None:
    row = ROW_MAKERS["needle"](np.random.default_rng(0), text, replace(CPU_PHASES[-1], length=512))
    digits = [piece.isdigit() for piece in text.tokenizer.convert_ids_to_tokens(row.tokens[1:].tolist())]
    assert not ((row.marks == TEXT) & np.array(digits)).any()
    assert ((row.marks > 0) & np.array(digits)).any()


def test_batches_depend_on_seed_phase_and_step_alone(text: Text) -> None:
    phase = replace(CPU_PHASES[3], batch=3)
    again = [draw_batch(text, phase, 5, 3, step).tokens for step in (7, 7, 8)]
    assert (again[0] == again[1]).all()
    assert (again[0] != again[2]).any()


def test_a_resumed_run_equals_an_unbroken_one(text: Text, tmp_path: Path) -> None:
    phases = tiny(PRESETS["cpu"], text.vocab_size)[:4]
    whole = train(Run(phases, text, tmp_path / "whole", 0, 1e6, compiled=False), resume=False)
    shortened = (*phases[:3], replace(phases[3], steps=1, final_rate=1.0))
    train(Run(shortened, text, tmp_path / "broken", 0, 1e6, compiled=False), resume=False)
    (tmp_path / "broken" / "partial-000099").mkdir()  # what a kill in the middle of writing leaves behind
    resumed = train(Run(phases, text, tmp_path / "broken", 0, 1e6, compiled=False), resume=True)
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], weight, atol=1e-6, rtol=1e-5)


def test_only_the_newest_two_checkpoints_stay(tmp_path: Path) -> None:
    model = build_model(SMALL, 0)
    for _ in range(4):
        saved.save_checkpoint(tmp_path, model, [], saved.Progress(phase_name="x"))
    assert [path.name for path in saved.checkpoints(tmp_path)] == ["checkpoint-000002", "checkpoint-000003"]


def test_both_presets_run_from_the_command_to_a_model_folder(
    corpus: Path, text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setattr(recipes, "device_of", lambda preset: "cpu")
    monkeypatch.setattr(recipes, "draw_curve", lambda out: out / "curve.png")
    monkeypatch.setattr(recipes, "PRESETS", {"gpu": tiny(GPU_PHASES, text.vocab_size)})
    folder = run_recipe(Recipe("gpu", tmp_path / "run", corpus, 1, 1e6, True, compiled=False))
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert tokenizer("The king.")["input_ids"][0] == tokenizer.bos_token_id == model.config.bos_token_id
    assert model.config.max_position_embeddings == LENGTH
    with pytest.raises(UserError, match="resume auto"):
        run_recipe(Recipe("gpu", tmp_path / "run", corpus, 1, 1e6, False, compiled=False))
    with pytest.raises(UserError, match="--seed 1"):
        run_recipe(Recipe("gpu", tmp_path / "run", corpus, 2, 1e6, True, compiled=False))
    with pytest.raises(UserError, match="--every 1: resume"):
        run_recipe(Recipe("gpu", tmp_path / "run", corpus, 1, 1e6, True, compiled=False, every=2))


def test_a_finished_model_is_trained_on(
    corpus: Path, text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its refining phases begin from its weights and with its tokenizer, and nothing before them runs."""
    monkeypatch.setattr(recipes, "draw_curve", lambda out: out / "curve.png")
    phases = tiny(PRESETS["cpu"], text.vocab_size)
    monkeypatch.setattr(recipes, "PRESETS", {"cpu": phases})
    first = run_recipe(Recipe("cpu", tmp_path / "first", corpus, 1, 1e6, True, compiled=False))
    still = tuple(replace(phase, learning_rate=0.0 if phase.refines else phase.learning_rate) for phase in phases)
    monkeypatch.setattr(recipes, "PRESETS", {"cpu": still})
    second = run_recipe(Recipe("cpu", tmp_path / "second", corpus, 2, 1e6, True, compiled=False, start=first))
    before, after = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (first / "tokenizer.json").read_bytes() == (second / "tokenizer.json").read_bytes()
    assert saved.read_progress(saved.checkpoints(tmp_path / "second")[-1]).phase_name == phases[-1].name
    wide = replace(phases[-1], shape=replace(phases[-1].shape, hidden_size=512))
    with pytest.raises(UserError, match="final shape"):
        recipes.refining_phases((wide,), first)
    with pytest.raises(UserError, match="not a model folder"):
        run_recipe(Recipe("cpu", tmp_path / "third", corpus, 1, 1e6, True, compiled=False, start=tmp_path))
    last = phases[-1].name
    assert [(phase.name, phase.share) for phase in recipes.refining_phases(phases, first, [last])] == [(last, 1.0)]
    with pytest.raises(UserError, match="no refining phase circuit: use"):
        recipes.refining_phases(phases, first, ["circuit"])
    with pytest.raises(UserError, match="use it with --start"):
        run_recipe(Recipe("cpu", tmp_path / "fourth", corpus, 1, 1e6, True, compiled=False, phases=(last,)))


def test_the_presets_stay_within_the_shipped_size() -> None:
    for phases in PRESETS.values():
        size = build_model(phases[-1].shape, 0).num_parameters() * 2
        assert size < 39e6
        lengths = [phase.length for phase in phases if not phase.refines]
        assert lengths == sorted(lengths) and phases[-1].length == max(lengths)
        assert sum(phase.share for phase in phases) == pytest.approx(1)
        assert all(abs(sum(phase.mixture.values()) - 1) < 1e-9 for phase in phases)


def test_the_curve_is_drawn_from_what_training_wrote(text: Text, tmp_path: Path) -> None:
    phases = tuple(replace(phase, steps=20) for phase in tiny(PRESETS["cpu"], text.vocab_size)[:2])
    train(Run(phases, text, tmp_path, 0, 1e6, compiled=False), resume=False)
    frame = read_curve(tmp_path / "curve.csv")
    assert set(frame.phase) == {phases[0].name, phases[1].name}
    assert len(curve_figure(frame).data) >= 3


def test_wrapped_prose_is_joined_and_verse_is_not(tmp_path: Path) -> None:
    prose = "It was the best of times, it was the worst of times, it was the age\nof wisdom.\n\nNext."
    verse = "Tyger Tyger, burning bright,\nIn the forests of the night;"
    book = tmp_path / "book.txt"
    book.write_text(prose, encoding="utf-8")
    assert read_book(book).splitlines() == [prose.split("\n\n")[0].replace("\n", " "), "", "Next."]
    book.write_text(verse, encoding="utf-8")
    assert read_book(book) == verse + "\n"


def test_validation_books_are_never_training_books(corpus: Path) -> None:
    assert set(training_books(corpus)).isdisjoint(VALIDATION_BOOKS)
    assert set(validation_books(corpus)) == {VALIDATION_BOOKS[0]}


def test_every_second_book_is_half_of_them(tmp_path: Path) -> None:
    sentence = "The king went up to the tower, and nobody saw him again. "
    for name in ("d", "a", "c", "b", "e", VALIDATION_BOOKS[0]):
        (tmp_path / f"{name}.txt").write_text(sentence * 30)
    prepare_text(tmp_path, tmp_path / "cache", every=2)
    assert [book["name"] for book in json.loads((tmp_path / "cache" / "books.json").read_text())] == ["a", "c", "e"]
    assert len(training_books(tmp_path)) == 5


def test_bad_input_is_told_in_one_sentence(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"No \.txt books"):
        training_books(tmp_path)
    with pytest.raises(UserError, match="Unknown preset"):
        recipes.device_of("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="--preset cpu"):
        recipes.device_of("gpu")
    with pytest.raises(UserError, match="--hours"):
        run_recipe(Recipe("cpu", tmp_path, corpus, 0, 0.0, True))
    with pytest.raises(UserError, match="--every"):
        run_recipe(Recipe("cpu", tmp_path, corpus, 0, 1.0, True, every=0))
    (tmp_path / "only").mkdir()
    shutil.copy(corpus / "books" / f"{VALIDATION_BOOKS[0]}.txt", tmp_path / "only")
    with pytest.raises(UserError, match="validation books only"):
        training_books(tmp_path / "only")
    with pytest.raises(UserError, match="--resume"):
        train_mini(corpus=corpus, resume="perhaps")
    with pytest.raises(UserError, match="model folder"):
        train_mini(report_only=tmp_path)
    with pytest.raises(UserError, match="--corpus"):
        train_mini(out=tmp_path)
