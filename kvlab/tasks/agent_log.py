"""An agent's log of tool calls and what they returned, one of which matters several steps later."""

from itertools import pairwise
from typing import Literal

from kvlab.models.info import mini
from kvlab.models.info.mini import NAMES
from kvlab.tasks.draft import Draft, drafted
from kvlab.tasks.haystack import Window
from kvlab.tasks.sample import Sample

_TOOLS = ("search", "open", "read", "list", "fetch", "query")
_MOST_OBSERVATIONS = 100


@drafted("agent_log", "a log of tool observations, one of which matters ten steps later")
def agent_log(
    draft: Draft, *, observations: int = 20, later: int = 10, enters: Literal["prompt", "decoding"] = "prompt"
) -> Sample:
    """`observations` steps, each with a call, a number that it returned and prose; asked for is that of `later` ago.

    An answer is right if it is the number and nothing else. `enters` "prompt": the log is the prompt, as an agent sends
    its history. "decoding": the prompt ends with the observation that matters, and the `later` ones enter token by
    token after it has been compressed.
    """
    draft.check_range("observations", observations, 2, _MOST_OBSERVATIONS)
    draft.check_range("later", later, 1, observations - 1)
    random = draft.random
    kind = random.choice(mini.NEEDLE_PHRASINGS)
    names = random.sample(NAMES, observations)
    values = mini.draw_values(random, observations)
    tools = random.choices(_TOOLS, k=observations)
    facts = [mini.needle_statement(kind, *fact) for fact in zip(names, values, strict=True)]
    matters = observations - later - 1
    query = mini.needle_query(kind, names[matters], values[matters])

    def steps(window: Window) -> list[str]:
        cuts = [round(step * len(window.words) / observations) for step in range(observations + 1)]
        prose = ["".join(window.words[start:end]).split() for start, end in pairwise(cuts)]
        return [
            f"{step}. {tool}({name}): {' '.join([fact, *text])}\n"
            for step, (tool, name, fact, text) in enumerate(zip(tools, names, facts, prose, strict=True), start=1)
        ]

    log = draft.filled(lambda window: "Log:\n" + "".join(steps(window)), query.prompt)
    sample = draft.asking(query, log, "exact_match", statements=[facts[matters]])
    if enters == "prompt":
        return sample
    cut = log.index(f"\n{matters + 2}. ") + 1
    return sample.model_copy(update={"context": log[:cut], "decoded": log[cut:]})
