"""The table of `docs/methods.md`, from the registry; `python -m tests.methods.method_table` writes it again."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from kvlab.bench.request import ON_RANDOM_WEIGHTS
from kvlab.core.contract.method import METHODS
from kvlab.core.contract.parts import NONE, optional
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.methods import Method, registered
from kvlab.core.methods.eviction.tova import LastQuery
from kvlab.core.plugins.origin import KVLAB
from kvlab.forms.measurement_job import LEARNS
from tests.methods.test_references import REFERENCES

ROOT = Path(__file__).parents[2]
PATH = ROOT / "docs" / "methods.md"
LONG = 2**16  # tokens of a prompt of which a method may need all queries
HEADER = """# Methods

Written by `python -m tests.methods.method_table`; a test compares it with the registered methods. Settings, presets and
their sources: `kvlab methods NAME`.

- **needs**: which queries' attention is read (*none*: keys, values and positions are enough), *hidden states* of the
  attention module, the *residual stream* between two decoder layers, a *second pass* over the prompt, or a *file* that
  `kvlab fit` makes for a model.
- **acts at**: when tokens leave the cache; *prompt (decode by option)*: after the prompt, and with `decode=budget` also
  while generating; *every N*: generated tokens gather before each decision.
- **tested against**: the test that compares what is kept with the paper's formula, written token by token.

| method | family | year | needs | acts at | paper | file | tested against |
|---|---|---|---|---|---|---|---|
"""
FOOTER = """
`compose` combines parts of the others:
`kvlab compare --sample dialogue --score snapkv --allocate adakv --settle zsmerge`.
Methods that change how slots are held (KIVI, TurboQuant, ThinK, GEAR, low rank) are [stores](stores.md), for use with
every other method.

Not here, with the reason:

| method | why |
|---|---|
| KVgrad (OpenReview cg1wTCJjjk) | its score multiplies attention by a gradient of the last hidden states, known only \
after a backward pass; second passes run without gradients, and score a layer while it is read |
| MiniCache (2405.14366) | a token's states of two neighbouring layers share one direction, interpolated, beside two \
lengths; a table of slots, and its bytes, belong to one layer |
| ThinKV (2510.01290) | no authors' code was found, and what was at hand of the paper (abstract, first page) gives no \
formula: how sparse attention is measured (which queries, heads and layers), how its thresholds are calibrated, how \
many tokens of a thought of each type stay when the next one begins, what k-means compares, how many bits each type \
has. Two rebuilds in EpiKV's repository take an entropy of columns instead, rank by attention without k-means, and \
differ from each other (thirds; minima of a density). Bits by type would also need several stores in one table |
| RestoreKV (2608.01247) | a trained LoRA pass writes its restore tokens; there are no such weights for kvlab's models |
| EpiKV (2606.26472) | it ranks tokens by the residual stream at two depths, which a cache of keys and values does not \
see; kvlab had it for a while, and it was behind H2O and R-KV ([findings](findings.md)) |
| KVQuant (2401.18079) | its non-uniform levels are calibrated per layer with gradients (Fisher information); stores \
need no fitted file. Of its parts, keys per channel are in `kivi`, keys before rotation in `low_rank` |
| InfLLM (2402.04617) | [sparse attention](readings.md) whose blocks are represented by a statistic of the \
prompt's pass |

## Beside other implementations

`make parity` compares the kept positions with kvpress 0.5.5 on mini (480 tokens, a quarter kept), and holds a bound for
each; its tests name the reasons.

| agreement | methods |
|---|---|
| 100 % | streaming-llm, tova, finch, adakv, criticalkv, fast-kvzip (kvlab's gates in both), lukv (whole counts) |
| 99 % or more | snapkv, cap, cur, keydiff, key-norm, chunkkv, qfilter (kvlab's filters in both), the store think |
| 98 % | kvzip, with its request and the first token read again in both; without these 68 and 86 % |
| 90 % or more | lagkv 97.7, entropy-gated-chunkkv 93, pyramidkv 91 (at its layer lengths 97 or more) |
| less | kvcompose 85, compactor 79, simlayerkv 71 |

lukv at curves that need no rounding. With mini's curves and without kvlab's sinks counts of heads differ by a slot at
most, and in heads of more than five slots 99.9 % agree; kvpress lets a head keep the first token alone, kvlab always
keeps four sinks and the newest: 70 %.

adakv and criticalkv with the zeros that kvpress counts beyond the text's ends, and adakv with a floor that counts the
window; kvlab's floor stands on top of the window, as in the authors' code: 94.8 %.

KVCache-Factory's classes (pyramidkv_utils.py, commit c97f9d7) on the states of the same prompt, with the zeros that
they count too: SnapKV, H2O and StreamingLLM keep the same positions (100 %), PyramidKV 99.2 % (its layer lengths differ
by a slot; at equal lengths 100 %), key norm 99.4 %, SnapKV with max pooling 99.2 %.

FFY0/DefensiveKV's classes (commit 9251b95; the norm of projected values in torch in place of their GPU kernel) on six
prompts of mini, 480 and 960 tokens, at 10, 20 and 40 %: DefensiveKV keeps 72,571 of 72,576 positions alike.
Layer-DefensiveKV agrees in 99.5 %: in all, but for two prompts at 48 slots, where a layer of theirs gives up a part of
its own window, which stays here. On SmolLM2 (two prompts of 480 tokens, 20 %) 17,280 of 17,280 and 17,279 of 17,281
agree. Of the slots beside the window their first stage, by mean attention, takes 79, 70 and
53 %. The code differs from what its comments say in three places, followed here: the projected norm is relative to the
token's other heads, not to the head's other tokens; the attention that counts towards the 90 % is that of the tokens
before the window, not the window's; and the most slots of the first stage are a share of the prompt without the window.

`exactmerge` and `exactmerge2` are kvlab's own ([measurements](../kvlab/core/methods/merging/exactmerge2.md)).
"""


def text() -> str:
    """The whole document."""
    own = [method for method in registered().values() if METHODS.origin(method.name) == KVLAB]
    return HEADER + "".join(row(method) for method in own) + FOOTER


def row(method: type[Method]) -> str:
    """One line of the table."""
    pipeline = method().pipeline()
    title = "" if method.title == method.name else f" {method.title}"
    file = Path(inspect.getfile(method)).relative_to(ROOT).as_posix()
    cells = [
        f"`{method.name}`{title}", method.family, _year(method.paper),
        _needs(method, pipeline), _acts(method, pipeline),
        _paper(method.paper), f"[{file.removeprefix('kvlab/core/methods/')}](../{file})", _test(method.name),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def _year(paper: str) -> str:
    found = re.search(r"arxiv\.org/abs/(\d\d)\d\d\.", paper)
    return f"20{found[1]}" if found else ""


def _paper(paper: str) -> str:
    if not paper:
        return ""
    known = {"arxiv.org": paper.rpartition("/")[2], "openreview.net": "OpenReview", "github.com": "code"}
    return f"[{next((name for site, name in known.items() if site in paper), 'paper')}]({paper})"


def _needs(method: type[Method], pipeline: Pipeline) -> str:
    if method.name == "compose":
        return ""
    needs = []
    rows = max(pipeline.prompt_rows(LONG), pipeline.recalled)
    if optional(pipeline.score, "accumulate") is not None or rows == LONG:
        needs.append("all queries")
    elif rows > 1:
        needs.append("last queries")
    elif (
        pipeline.score.every_step
        or type(pipeline.score) is LastQuery
        or pipeline.can.allocate.prompt_rows != NONE.prompt_rows
    ):
        needs.append("newest query")
    if pipeline.score.needs_hidden_states:
        needs.append("hidden states")
    if pipeline.second_pass is not None:
        needs.append("second pass")
    if method.name in LEARNS or method.name in ON_RANDOM_WEIGHTS:
        needs.append("file")
    return ", ".join(needs) or "none"


def _acts(method: type[Method], pipeline: Pipeline) -> str:
    if method.family == "reference" or method.name in ("packed", "compose"):
        return ""
    if not pipeline.decode:
        return "prompt (decode by option)" if "decode" in method.model_fields else "prompt"
    return f"prompt, decode every {pipeline.buffer}" if pipeline.buffer > 1 else "prompt, decode"


def _test(name: str) -> str:
    place = REFERENCES.get(name, "")
    file, _, test = place.partition("::")
    path = (Path("tests/methods") / file).as_posix().replace("methods/../", "")
    return f"[{test.removeprefix('test_')}](../{path})" if place else ""


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
