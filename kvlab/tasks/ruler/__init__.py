"""RULER's thirteen tasks in RULER's own wording, from kvlab's texts and words.

Instructions, needles and answer prefixes are those of NVIDIA/RULER (scripts/data/synthetic, Apache-2.0; arXiv
2404.06654), with the settings of its synthetic.yaml. What differs:

- The essays are kvlab's public-domain books, keys and list words are kvlab's, and numbers are drawn by kvlab's seeds.
- `ruler_vt` and `ruler_cwe` have no worked example before the text.
- `ruler_cwe` repeats its ten common words `times` times among words that occur once, so that short prompts hold it;
  RULER has 30 times among words that occur three times.
- The documents of `ruler_qa_1` and `ruler_qa_2` state facts about invented persons; RULER takes SQuAD and HotpotQA.
  Files made by RULER are read by the loader `ruler`.
- Lengths count the prompt alone; RULER's include the answer.
"""

from __future__ import annotations

from kvlab.tasks.draft import drafted
from kvlab.tasks.ruler.needles import cwe, fwe, niah, qa, vt

RULER_TASKS = (
    niah("niah_single_1", "noise"),
    niah("niah_single_2", "essay"),
    niah("niah_single_3", "essay", kind="uuids"),
    niah("niah_multikey_1", "essay", keys=4),
    niah("niah_multikey_2", "needle"),
    niah("niah_multikey_3", "needle", key_kind="uuids", kind="uuids"),
    niah("niah_multivalue", "essay", values=4),
    niah("niah_multiquery", "essay", asked=4),
    drafted("ruler_vt", "RULER's vt, in its own wording", "vt")(vt),
    drafted("ruler_cwe", "RULER's cwe, in its own wording, with fewer repetitions", "cwe")(cwe),
    drafted("ruler_fwe", "RULER's fwe, in its own wording", "fwe")(fwe),
    qa("qa_1", hops=1),
    qa("qa_2", hops=2),
)
