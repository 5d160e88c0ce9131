"""Recognise out-of-memory errors of devices and of the host."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that a device or the host ran out of memory; torch's are recognised by name."""
    if any(kind.__name__ in ("MemoryError", "OutOfMemoryError") for kind in type(error).__mro__):
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError) and ("can't allocate memory" in message or "out of memory" in message)
