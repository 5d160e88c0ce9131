"""Second pass over the context that a method runs before it compresses a prompt."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SecondPassRequest:
    """The model reads `ask` and then the context again, over the still uncompressed cache.

    A context longer than `piece` tokens is split into equal pieces. Each is read separately over the full prompt, after
    `ask` and the `OVERLAP` tokens before it, so that memory grows by one piece only. `on_policy`: layers decide one
    after the other, each with queries from another reading through the layers compressed so far. `study`: the model
    also answers each of `STUDIES` greedily in that many tokens, and requests and answers are read too.
    `continuations`: the model also continues the prompt that many times, sampled, by `CONTINUATION` tokens each, which
    are read too.
    """

    ask: str = "\n"
    piece: int = 2048
    on_policy: bool = False
    study: int = 0
    continuations: int = 0

    @property
    def written(self) -> int:
        """Number of tokens that the model generates for it."""
        return len(STUDIES) * self.study + CONTINUATION * self.continuations


# Self-study: generic requests as in Attention Matching (a summary, key points, a structure).
STUDIES = ("\n\nIn short:", "\n\nWhat it says, point by point:", "\n\nThe same as JSON:")
CONTINUATION = 64  # tokens of each sampled continuation
OVERLAP = 8  # as KVzip: "starting with" the last 8 tokens of the chunk before
