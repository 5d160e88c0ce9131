"""Compressed KV caches for transformers models; needs nothing else of kvlab.

`make_cache` (`cache/factory.py`) builds a `CompressedCache`, a transformers `Cache` with one layer per attention layer.
What happens in one layer during a pass:

1. `CompressedLayer.update` (`cache/layers/compressed_layer.py`) appends keys and values to the slot table.
2. The attention function (`attention/transformers_hook.py`) finds that layer again and calls its `attend`: over all
   slots or, with sparse attention, over some of them.
3. `decide` (`cache/layers/decisions.py`) updates the scores and asks whether a decision is due; methods that need all
   layers, or a second pass over the prompt, wait.
4. `compress_if_due` allocates the budget of each head, and `Bucket.plan_and_apply` (`cache/buckets/bucket.py`) has the
   method's `Pipeline` (`contract/pipeline.py`) make a `Plan`: which slots are evicted, which are merged into which.
5. `SlotTable.after` (`cache/table`) applies the plan, `Bucket.install` takes the new table, and `compact_buckets` frees
   the space; heads with unlike budgets go to tables of their own length.

A method (`methods/`) is four parts, described in `contract/parts.py`: score, allocate, select, settle (evict or merge).
`docs/writing-a-method.md` builds one.
"""

# What is asked for and refused, as data that loads no torch.
# ruff: noqa: F403
from kvlab.core.assets import *
from kvlab.core.budget import *
from kvlab.core.choice import *
from kvlab.core.errors import *
from kvlab.core.method_spec import *
from kvlab.core.restore import *
from kvlab.core.validation import *
