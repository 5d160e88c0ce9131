"""`python -m kvlab`, and the command `kvlab`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; without the extra `lab` one sentence says what to install."""
    try:
        from kvlab.cli import main as run_commands
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "kvlab":
            raise
        print(f"kvlab: commands need {error.name}: pip install 'kvlab[lab]'.", file=sys.stderr)
        sys.exit(2)
    run_commands()


if __name__ == "__main__":
    main()
