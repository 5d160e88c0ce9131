"""What is typed: prompts, budgets, settings, files and folders that no command can use, as `commands.txt` has them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.torture.judge import Case

WORDS = "The quick brown fox jumps over the lazy dog while the band plays on. "
LINES = Path(__file__).with_name("commands.txt")
FILLED = {
    "long": "9" * 5000, "huge": str(2**70), "half": "abc \ud800 def", "zero": "a\0b", "empty": "", "blank": " \n\t ",
    "controls": "\x01\x02\x03" * 50, "large": "word " * 600_000, "far": "../" * 300, "endless": "x" * 5000,
    "many": "h2o," * 2000, "brackets": "[" * 5000, "bytes_of_none": "abc\udcff",
}  # fmt: skip
FILES = {
    "bytes": bytes(range(256)) * 50, "utf16": WORDS.encode("utf-16"), "nothing": b"", "long_file": b"a" * 2**21 + b"a",
    "deep": b"[" * 100_000, "big": b'{"prompt": ' + b"9" * 20_000 + b"}", "latin": "\u00e9".encode("latin-1") * 100,
}  # fmt: skip
NO_PROMPT_OF_ITS_OWN = ("--prompt", "--file", "--sample", "--resume")


def typed(*arguments: str) -> int:
    """The command as it would run in a shell."""
    from kvlab.cli import main

    sys.argv = ["kvlab", *arguments]
    main()
    return 0


def command_cases(work: Path, model: Path) -> Iterator[Case]:
    """Every line of `commands.txt`; each must be refused."""
    words = {**FILLED, **_files(work), "work": str(work), "model": str(model)}
    for line in LINES.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        command, *options = [word.format(**words) for word in shlex.split(line)]
        given = [*_beginning(command, options, words), *options]
        yield Case("commands", line, lambda given=given: typed(*given), must_refuse=True)


def _beginning(command: str, options: list[str], words: dict[str, str]) -> list[str]:
    """The command with what it needs beside what is tried; of an option that is given twice the last counts."""
    if command == "compare":
        prompt = [] if set(options) & set(NO_PROMPT_OF_ITS_OWN) else ["--prompt", WORDS * 3]
        small = ["--model", words["model"], "--methods", "h2o", "--new-tokens", "2", "--out", f"{words['work']}/runs"]
        return [command, *prompt, *small]
    if command == "eval":
        asked = ["--tasks", "needle", "--methods", "h2o", "--lengths", "128", "--samples", "1"]
        return [command, "--model", words["model"], "--out", f"{words['work']}/eval", *asked]
    return [command]


def _files(work: Path) -> dict[str, str]:
    """Files that hold what no file should, by name."""
    work.mkdir(parents=True, exist_ok=True)
    for name, data in FILES.items():
        (work / name).write_bytes(data)
    if not (work / "pipe").exists():
        os.mkfifo(work / "pipe")
    return {name: str(work / name) for name in (*FILES, "pipe", "none")}
