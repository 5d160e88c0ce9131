"""A report as PDF: its HTML, printed by the Chromium that also draws pictures."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from kvlab.common.errors import UserError
from kvlab.figures.base.export import NO_BROWSER, find_browser

SECONDS = 90


def printed(page: bytes) -> bytes:
    """The PDF of a page that draws its own figures.

    Raises:
        UserError: there is no Chromium, or it does not print.
    """
    browser = find_browser()
    if browser is None:
        raise UserError(NO_BROWSER)
    with tempfile.TemporaryDirectory(prefix="kvlab-report-") as folder:
        source, target = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_bytes(page)
        options = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-pdf-header-footer",
            f"--user-data-dir={folder}/own",
        )
        # The figures draw themselves in the page: printing waits for their scripts by a clock that runs ahead.
        ahead = ("--virtual-time-budget=20000", "--run-all-compositor-stages-before-draw", f"--print-to-pdf={target}")
        try:
            subprocess.run(
                [browser, *options, *ahead, source.as_uri()], capture_output=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise UserError("Chromium did not print the report in time: take the HTML instead.") from error
        if not target.exists():
            raise UserError("Chromium did not print the report: take the HTML instead.")
        return target.read_bytes()
