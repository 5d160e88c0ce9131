"""Compare opens a repeat with its whole batch: shares with n, the ranking with its omissions, each prompt in reach."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvlab.core.restore import Restore
from kvlab.requests.repeats import Planting, Repeat
from kvlab.trace import open_run
from kvlab.trace.restore_results import RestoreResult, SearchResult, save_result
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]
METHODS = (("full", 1.0), ("h2o", 0.2), ("keepkv", 0.2))


def write_repeat(root: Path, number: int, answer: str | None = None, methods: tuple = METHODS) -> str:
    """A repeat whose full cache writes the answer, unless another is given."""
    options = {"prompt_tokens": 30, "steps": 6, "layers": 1, "heads": 1, "seed": number, "level": "light"}
    like = open_run(write_synthetic_run(root.parent / f"like-{number}", method="full", **options))
    fields = {
        "repeat": Repeat(batch="night", number=number, of=4, planting=Planting(draw=number)),
        "answer": answer or "".join(like.tokens.query("phase == 'forced'")["text"].tolist()[1:3]).strip(),
    }
    for method, budget in methods:
        write_synthetic_run(
            root, method=method, budget=budget, comparison_id=f"night-{number:02d}", **options, **fields
        )
    return f"night-{number:02d}"


def told(page: AppTest) -> str:
    assert not page.exception
    every = [*page.markdown, *page.caption, *page.info, *page.warning, *page.error, *page.header]
    return "\n".join(str(element.value).replace("\\", "") for element in every).replace("\u00a0", " ")


def test_the_board_over_all_prompts_comes_first_with_n_and_what_is_left_out(runs_root: Path, open_page: Open):
    for number in (1, 2, 3):
        write_repeat(runs_root, number)
    page = open_page("compare", comparison="night-02")
    text = told(page)
    assert "**3 prompts** of 4 requested" in text
    assert "The full cache itself answers 3 of 3 prompts" in text
    assert "How often is the answer still right?" in text
    assert "over 3 prompts (of 4 requested)" in text
    ranking = text[text.index("Ranking over all prompts") :]
    for label in ("h2o", "keepkv"):
        assert f"**{label}** " in ranking
    assert "of 3 (" in ranking
    assert "Not ranked: **full cache**" in ranking
    assert "Prompt 2 of 4" in text
    assert "own answer is another one" not in text
    assert len(page.dataframe[0].value) == 3, "the single prompts of the cell"


def test_a_prompt_is_picked_and_the_page_goes_on_with_it(runs_root: Path, open_page: Open):
    first, second = (write_repeat(runs_root, number) for number in (1, 2))
    page = open_page("compare", comparison=first)
    page = page.selectbox(key=f"repeats-prompt-{first}").set_value(second).run()
    assert not page.exception
    assert page.query_params["comparison"] in (second, [second])


@pytest.mark.parametrize("failing", [(2,), (1, 2)])
def test_prompts_that_the_full_cache_fails_are_named_over_the_ranking(
    runs_root: Path, open_page: Open, failing: tuple[int, ...]
):
    for number in (1, 2):
        write_repeat(runs_root, number, "no such words" if number in failing else None)
    page = open_page("compare", comparison="night-01")
    warned = [str(element.value).replace("\\", "") for element in page.warning]
    where = "every prompt" if len(failing) == 2 else "prompt 2"
    assert any(f"On {where} the full cache's own answer is another one" in line for line in warned)


def test_a_batch_still_under_way_says_how_many_prompts_it_rests_on(runs_root: Path, open_page: Open):
    write_repeat(runs_root, 1)
    write_repeat(runs_root, 2, methods=METHODS[:2])
    text = told(open_page("compare", comparison="night-01"))
    assert "over 1 to 2 prompts (of 4 requested)" in text


def test_the_repeats_of_a_batch_are_one_entry_of_the_picker_and_one_row_on_start(runs_root: Path, open_page: Open):
    made = [write_repeat(runs_root, number) for number in (1, 2, 3)]
    for method in ("full", "h2o"):
        write_synthetic_run(runs_root, method=method, comparison_id="alone", title="alone")
    page = open_page("timeline", comparison=made[1])
    assert page.selectbox(key="pick_comparison").value == made[1]
    shown = page.selectbox(key="pick_comparison").options
    assert len(shown) == 2 and sum("3 prompts" in option for option in shown) == 1
    assert page.selectbox(key="pick_repeat").options == ["1 of 3", "2 of 3", "3 of 3"]
    page = page.selectbox(key="pick_repeat").set_value(made[2]).run()
    assert not page.exception
    assert page.query_params["comparison"] in (made[2], [made[2]])
    assert "Prompt 3 of 4" in told(page)
    page = page.selectbox(key="pick_comparison").set_value("alone").run()
    assert not any(picker.key == "pick_repeat" for picker in page.selectbox)
    start = told(open_page("start"))
    assert start.count("3 prompts") == 1


def search_of(root: Path, comparison_id: str, run_id: str, heads: tuple[tuple[int, int], ...]) -> None:
    """A restore result as a search writes it."""
    found = SearchResult(search="heads", returned=Restore(kind="heads", heads=heads), restores=True, complete=True,
                         tried=1, slots=5)  # fmt: skip
    save_result(root, RestoreResult(
        run_id=run_id, comparison_id=comparison_id, label="h2o", answer="x", expected=True, reruns=2, most_reruns=4,
        seconds=1.0, fact=(), reference=(), slots=9, text_before="", kl_before=(), found=(found,),
    ))  # fmt: skip


def test_lost_heads_are_counted_over_prompts_from_two_results_on(runs_root: Path, open_page: Open):
    names = [write_repeat(runs_root, number) for number in (1, 2)]
    page = open_page("compare", comparison=names[0])
    failed = [path.name for path in sorted(runs_root.iterdir()) if "h2o" in path.name or "keepkv" in path.name]
    (button,) = [button for button in page.button if button.key == "search-batch"]
    assert re.search(r"Restore the answer of (all \d+ failed runs|the failed run)", button.label)
    assert "Heads that lost the answer" not in told(page)
    search_of(runs_root, names[0], next(name for name in failed if "h2o" in name), ((0, 0),))
    assert "Heads that lost the answer" not in told(open_page("compare", comparison=names[0])), "one result is no map"
    for name in failed:
        search_of(runs_root, open_run(runs_root / name).record.comparison_id, name, ((0, 0),))
    text = told(open_page("compare", comparison=names[0]))
    assert re.search(r"restores (all|both|each of the) [^.]*lost answers?, of 2 prompts", text, re.IGNORECASE), text


def test_quality_against_bytes_of_a_batch_has_its_own_slider(runs_root: Path, open_page: Open):
    methods = (("full", 1.0), ("h2o", 0.2), ("keepkv", 0.2), ("keepkv", 0.5))
    for number in (1, 2):
        write_repeat(runs_root, number, methods=methods)
    page = open_page("compare", comparison="night-01")
    text = told(page)
    assert "Quality against bytes: means over 2 prompts" in text
    assert text.count("**Quality against bytes") == 1
    page = page.select_slider(key="budget").set_value("50 %").run()
    text = told(page)
    ranking = text[text.index("Ranking over all prompts") :]
    assert "**keepkv 50 %**" in ranking and "**h2o" not in ranking and "**keepkv 20 %" not in ranking
    assert page.dataframe[-1].value["method"].tolist() == ["full", "keepkv"]
