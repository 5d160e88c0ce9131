"""The exception whose message is for the user, and errors that mean that memory ran out."""

from collections.abc import Callable

_rewriters: list[Callable[[str], str]] = []


class UserError(ValueError):
    """Bad input; the message is one clear sentence that says what is wrong and what to do.

    The command line prints it and exits with status 2; the dashboard shows it in place of a result.
    """

    def __str__(self) -> str:
        text = super().__str__()
        for change in _rewriters:
            text = change(text)
        return text

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows in place of a traceback: the message alone."""
        return [f"{type(self).__name__}: {self}"]


def rewrite_messages(change: Callable[[str], str]) -> None:
    """Pass every UserError message of this process through `change`, such as to hide the server's paths."""
    if change not in _rewriters:
        _rewriters.append(change)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that a device or the host ran out of memory; torch's are recognised by name."""
    if any(kind.__name__ in ("MemoryError", "OutOfMemoryError") for kind in type(error).__mro__):
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError) and ("can't allocate memory" in message or "out of memory" in message)
