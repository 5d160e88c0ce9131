"""Tests of the suite that hold bad input already, run again with every case: counted in the table."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.torture.table import Row

ROOT = Path(__file__).resolve().parents[2]
HELD = {
    "checkpoints": ["tests/models/test_checkpoints.py"],
    "Python calls and settings": ["tests/cli/test_bad_input.py", "tests/methods/test_bounds.py"],
    "run folders, index, parcels": [
        "tests/trace/test_checksums.py", "tests/trace/test_catalogue_damage.py", "tests/trace/test_record.py",
        "tests/library/test_archive.py",
    ],
    "uploads and forms": ["tests/forms/test_uploads.py", "tests/forms/test_compare_form.py"],
    "addresses, every value under every name": ["tests/pages/test_hostile_addresses.py"],
    "pages of damaged runs": ["tests/pages/test_damaged_runs.py"],
}  # fmt: skip


def held(name: str) -> Row:
    """The tests of one room, as attempts and exceptions."""
    row = Row(name)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        line = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--no-header", f"--junitxml={report}", *HELD[name]]
        subprocess.run(line, cwd=ROOT, env=os.environ | {"KVLAB_TORTURE": "1"}, capture_output=True, check=False)
        cases = list(ElementTree.parse(report).iter("testcase"))
    fallen = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    row.attempts, row.exceptions = len(cases), len(fallen)
    row.seconds = [float(case.get("time", 0)) for case in cases]
    row.faults = [str(case.get("name")) for case in fallen]
    return row
