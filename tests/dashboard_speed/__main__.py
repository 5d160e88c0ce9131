"""Print dashboard timings as they come: `python -m tests.dashboard_speed --tokens 32768 --layers 32 --repeats 5`.

Takes up to half an hour.
"""

from __future__ import annotations

import argparse
import time

from tests.dashboard_speed.kept import KEPT_RUNS
from tests.dashboard_speed.pages import measure


def main() -> None:
    """Measure and print; takes no model."""
    parser = argparse.ArgumentParser(prog="python -m tests.dashboard_speed")
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--layers", type=int, default=32, help="8 KV heads each")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--stored-runs", type=int, default=KEPT_RUNS, help="runs in the folder for the page Runs")
    asked = parser.parse_args()
    begun = time.monotonic()
    for row in measure(asked.tokens, asked.layers, asked.repeats, asked.stored_runs):
        print(f"{time.monotonic() - begun:,.0f} s: {row.figure}, {row.median:,.0f} {row.unit}; {row.note}", flush=True)


if __name__ == "__main__":
    main()
