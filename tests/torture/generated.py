"""What nobody thought of: addresses, settings, requests and run folders that hypothesis makes up."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvlab.core.errors import UserError
from tests.synthetic.runs import write_synthetic_run
from tests.torture.table import Row

NUMBERS = st.one_of(
    st.integers(), st.integers(-(2**80), 2**80), st.floats(), st.sampled_from([10**400, 2**31, 2**63, -1, 0, 1e-300])
)
WORDS = st.one_of(
    st.text(max_size=40), st.text(st.characters(categories=("Cs", "Cc", "Co", "Lu")), max_size=20),
    st.sampled_from(["", " ", "../../etc/passwd", "%s", "{0}", "[[[", "NaN", "1e999", "\ud800", "a\0b", "9" * 99]),
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS, lambda inner: st.lists(inner, max_size=3), max_leaves=5
)
SMALL: dict[str, Any] = {"layers": 2, "heads": 2, "prompt_tokens": 16, "steps": 2}


def generated(count: int, keep: Callable[[str], object] = print, pages: bool = True) -> Row:
    """`count` inputs, shared out over the kinds; `keep` is given each fault as it is found, `pages` opens pages too."""
    row = Row("generated inputs")
    for kind, share in ((requests, 0.3), (method_settings, 0.3), (run_folders, 0.3), (addresses, 0.1 * pages)):
        if share:
            kind(round(count * share), _Tried(row, keep))
    return row


class _Tried:
    """Does a piece of work and notes how long it took and whether it fell."""

    def __init__(self, row: Row, keep: Callable[[str], object]) -> None:
        self.row, self.keep = row, keep

    def __call__(self, work: Callable[[], object], what: object) -> None:
        begun = time.monotonic()
        self.row.attempts += 1
        try:
            work()
        except UserError as error:
            if "\n" in str(error):
                self._fell(f"no sentence: {str(error)[:200]!r}", what)
        except Exception:
            self._fell(traceback.format_exc().strip().splitlines()[-1], what)
        self.row.seconds.append(time.monotonic() - begun)

    def _fell(self, how: str, what: object) -> None:
        self.row.exceptions += 1
        self.row.faults.append(f"{how} <- {what!r}"[:400].encode("ascii", "backslashreplace").decode())
        self.keep(self.row.faults[-1])


def _each(strategy: st.SearchStrategy[Any], count: int, do: Callable[[Any], object]) -> None:
    """Calls `do` with `count` different examples, the same in every round."""

    @settings(
        max_examples=max(1, count), deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def tried(value: Any) -> None:
        do(value)

    tried()


def requests(count: int, tried: _Tried) -> None:
    """Comparisons as Python, the command line and a form's address ask for them."""
    from kvlab.cli.compare import make_request
    from kvlab.requests.compare import CompareRequest

    names = [name for name in CompareRequest.model_fields if name != "choices"]
    asked = st.dictionaries(st.sampled_from([*names, "nonsense"]), VALUES, min_size=1, max_size=3)
    everything = st.tuples(WORDS | st.just("h2o"), WORDS | NUMBERS.map(str) | st.just("0.2"), asked)
    _each(
        everything,
        count,
        lambda one: tried(lambda: make_request(one[0], one[1], **({"prompt": "words"} | one[2])), one),
    )


def method_settings(count: int, tried: _Tried) -> None:
    """Settings of every method, also far out of range, up to its pipeline."""
    from kvlab.core.contract.method import make_method, registered

    known = {name: list(method.model_fields) for name, method in registered().items()}
    strategy = st.sampled_from(sorted(known)).flatmap(
        lambda name: st.tuples(
            st.just(name), st.dictionaries(st.sampled_from([*known[name], "preset", "x"]), VALUES, max_size=3)
        )
    )
    _each(strategy, count, lambda one: tried(lambda: make_method(one[0], **one[1]).pipeline(), one))


def run_folders(count: int, tried: _Tried) -> None:
    """Run folders with one file cut, filled or changed, and records with any value in any field."""
    with tempfile.TemporaryDirectory(prefix="kvlab-torture-") as folder:
        sound = write_synthetic_run(Path(folder) / "sound", method="keepkv", **SMALL)
        files = sorted(file.relative_to(sound).as_posix() for file in sound.rglob("*") if file.is_file())
        fields = sorted(json.loads((sound / "run.json").read_text()))
        bytes_of = st.tuples(st.sampled_from(files), st.sampled_from(HARMS), st.integers(0, 2**32))
        record_of = st.tuples(st.just("run.json"), st.sampled_from(fields), VALUES)
        _each(bytes_of | record_of, count, lambda one: tried(lambda: _opened(sound, *one), one))


HARMS = ("cut", "flip", "noise", "empty", "gone", "doubled", "folder")


def _opened(sound: Path, file: str, harm: str, value: Any) -> None:
    from kvlab.trace import open_run
    from kvlab.trace.catalogue import list_comparisons, rebuild
    from kvlab.trace.schema import TABLES
    from kvlab.trace.verify import verify_run

    with tempfile.TemporaryDirectory(prefix="kvlab-torture-") as folder:
        copy = Path(shutil.copytree(sound, Path(folder) / sound.name))
        _harmed(copy / file, harm, value)
        other = write_synthetic_run(Path(folder), method="full", comparison_id="other", **SMALL)
        rebuild(Path(folder))
        shown = {run.run_id for entry in list_comparisons(Path(folder)) for run in entry.runs}
        assert other.name in shown, "the sound run is no longer listed"
        found = verify_run(copy).problems
        try:
            run = open_run(copy)
            for table in TABLES:
                run.select(table)
            for layer in range(2):
                run.keys(layer, 0), run.values(layer, 0), run.attention(layer, 0), run.decision(layer, 0)
            told = bool(run.problems or run.unchecked)
        except UserError:
            told = True
        # A further file beside the arrays is read by nobody; only `kvlab doctor` names it.
        assert told or not found or (harm, file[:6]) == ("doubled", "arrays"), "a damage was not told"


def _harmed(file: Path, harm: str, value: Any) -> None:
    content = file.read_bytes()
    chance = random.Random(str(value))
    if harm not in HARMS:  # a field of the record, without the checksum that would tell
        record = json.loads(content)
        record.pop("record_checksum", None)
        file.write_bytes(json.dumps(record | {harm: value}, allow_nan=True).encode("utf-8", "surrogatepass"))
    elif harm == "doubled":
        shutil.copy(file, file.with_name(f"part-00007{file.suffix}"))
    elif harm in ("gone", "folder"):
        file.unlink()
        file.mkdir() if harm == "folder" else None
    else:
        at = chance.randrange(len(content))
        flipped = content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]
        written = {"cut": content[:at], "noise": chance.randbytes(len(content)), "empty": b""}
        file.write_bytes(written.get(harm, flipped))


def addresses(count: int, tried: _Tried) -> None:
    """Pages with any value under any name of the address."""
    import os
    import re

    from streamlit.testing.v1 import AppTest

    from app.navigation.menu import page_names
    from tests.pages.conftest import switch_to

    root = Path(__file__).resolve().parents[2]
    pages = page_names()
    source = "".join(file.read_text() for file in (root / "app").rglob("*.py"))
    bound = set(re.findall(r"(?:query_params(?:\.get\(|\[)|asked_numbers?\(|key=)\"(\w+)\"", source))
    text = st.one_of(WORDS, NUMBERS.map(str), st.lists(NUMBERS.map(str), max_size=4).map("-".join))
    query = st.dictionaries(st.sampled_from(sorted(bound)), text, min_size=1, max_size=6)
    with tempfile.TemporaryDirectory(prefix="kvlab-torture-") as folder:
        run = [write_synthetic_run(Path(folder), method=method, **SMALL) for method in ("full", "keepkv")][1].name
        os.environ["KVLAB_RUNS"] = folder

        def opened(page: str, asked: dict[str, str]) -> None:
            test = AppTest.from_file(str(root / "app" / "main.py"), default_timeout=60)
            for name, value in ({"run": run} | asked).items():
                test.query_params[name] = value.encode("utf-8", "replace").decode()
            switch_to(test, page).run()
            assert not test.exception, [box.value for box in test.exception]

        _each(st.tuples(st.sampled_from(pages), query), count, lambda one: tried(lambda: opened(*one), one))
