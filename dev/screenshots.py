"""Take the README's pictures from a running dashboard, of the newest comparison in its folder of runs:

    (head -c 2441 assets/prompts/samples/needle_in_a_story.txt
     printf '\\n\\nQuestion: What is the secret number of the garden?') > prompt.txt
    kvlab compare --model smollm2 --file prompt.txt --title 'A needle in a story' --answer 48213 \\
        --fact 'The secret number of the garden is 48213.' --budgets 0.2 --new-tokens 32 --methods \\
        streaming-llm,h2o,snapkv,tova,pyramidkv,zsmerge,kvmerger,keepkv,kvzip,exactmerge2
    kvlab app --headless &
    python dev/screenshots.py http://localhost:8501 runs

Needs the development extra (playwright) and Chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from kvlab.trace.catalogue import list_comparisons

FOLDER = Path(__file__).resolve().parents[1] / "assets" / "screenshots"
# Narrow, so that GitHub's column of about 840 pixels shrinks little; more pixels, so that it stays sharp.
WIDTH, SCALE = 1080, 1.6
HIDDEN = "[data-testid=stSidebar], [data-testid=stHeader] { display: none !important }"
METHOD = "keepkv"
BOARD = ".st-key-board-chart .js-plotly-plot"
PICTURES = {"wall": (".kv-wall canvas", 860), "compare": (BOARD, 2400)}  # what is drawn last, and the window's height
PATIENCE = 180_000  # milliseconds


def main(address: str, runs: str) -> None:
    """Write one PNG file per page."""
    newest = list_comparisons(Path(runs).absolute())[0]
    run = next(run.run_id for run in newest.runs if run.method == METHOD)
    with sync_playwright() as play:
        found = shutil.which("chromium") or shutil.which("google-chrome")
        browser = play.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(device_scale_factor=SCALE, reduced_motion="reduce")
        page.set_default_timeout(PATIENCE)
        for name, (drawn, height) in PICTURES.items():
            page.set_viewport_size({"width": WIDTH, "height": height})
            take(page, f"{address}/{name}?comparison={newest.comparison_id}&run={run}", drawn, FOLDER / f"{name}.png")
        browser.close()


def take(page: Page, url: str, drawn: str, file: Path) -> None:
    """Open a page, wait until what `drawn` selects stands still, and take the window or the board without the menu."""
    page.goto(url)
    page.wait_for_selector(drawn)
    page.add_style_tag(content=HIDDEN)
    shown = page.locator(drawn).first
    before, place = None, shown.bounding_box()
    while before != place:
        page.wait_for_timeout(3000)
        before, place = place, shown.bounding_box()
    if drawn == BOARD:
        shown.screenshot(path=file)
    else:
        page.screenshot(path=file)


if __name__ == "__main__":
    main(*sys.argv[1:])
