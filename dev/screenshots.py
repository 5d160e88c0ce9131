"""Take the README's pictures from a running dashboard: `python dev/screenshots.py http://localhost:8501 runs`.

They show the newest comparison in the folder of runs: that of `make real`, which also starts the dashboard and prints
its address. Needs the development extra (playwright) and Chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from kvlab.trace.catalogue import list_comparisons

FOLDER = Path(__file__).resolve().parents[1] / "assets" / "screenshots"
# Narrow, so that GitHub's column of about 840 pixels shrinks little; twice the pixels, so that it stays sharp.
SIZE, SCALE = {"width": 1080, "height": 940}, 1.6
HIDDEN = "[data-testid=stSidebar], [data-testid=stHeader] { display: none !important }"
METHOD = "keepkv"
PICTURES = {"timeline": "canvas", "compare": ".js-plotly-plot"}  # page -> what is drawn last of its first screen
PATIENCE = 180_000  # milliseconds


def main(address: str, runs: str) -> None:
    """Write one PNG file per picture of the newest comparison in the folder `runs`."""
    newest = list_comparisons(Path(runs).absolute())[0]
    run = next(run.run_id for run in newest.runs if run.method == METHOD)
    with sync_playwright() as play:
        found = shutil.which("chromium") or shutil.which("google-chrome")
        browser = play.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=SIZE, device_scale_factor=SCALE, reduced_motion="reduce")  # type: ignore[arg-type]
        page.set_default_timeout(PATIENCE)
        for name, drawn in PICTURES.items():
            take(page, f"{address}/{name}?comparison={newest.comparison_id}&run={run}", drawn, name)
        browser.close()


def take(page: Page, url: str, drawn: str, name: str) -> None:
    """Open a page, wait until what `drawn` selects stands still, and take the window without the menu."""
    page.goto(url)
    page.wait_for_selector(drawn)
    page.add_style_tag(content=HIDDEN)
    before, place = None, page.locator(drawn).first.bounding_box()
    while before != place:
        page.wait_for_timeout(3000)
        before, place = place, page.locator(drawn).first.bounding_box()
    page.screenshot(path=FOLDER / f"{name}.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
