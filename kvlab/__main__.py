"""`python -m kvlab`, and the command `kvlab`."""

import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command line; without the extra `lab` one sentence says what to install."""
    try:
        from kvlab.cli import main as run_commands

        run_commands()
    except ModuleNotFoundError as error:  # a command is imported when it is asked for
        if (error.name or "").split(".")[0] == "kvlab" or find_spec("psutil") is not None:
            raise
        print(f"kvlab: commands need {error.name}: pip install 'kvlab[lab]'.", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
