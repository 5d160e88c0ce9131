#!/usr/bin/env bash
# transformers 5.24 renames the argument `past_key_values` to `cache`. A call by the old name still works, with a
# warning, but what a forward hook receives depends on how the model was called: the old name from a direct call at the
# model itself, the new name inside `generate` and at every inner module. So a hook that looks for `past_key_values`
# works in a test that calls the model, and silently sees no cache in `generate` and in the layers.
# Prints what hooks at the model and at its first decoder layer receive; exits with 1 if this behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip torch==2.13.0 numpy==2.4.6

cat >"$folder/hooks.py" <<'PY'
import sys
import warnings

import torch
import transformers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)
model, ids = LlamaForCausalLM(config).eval(), torch.randint(3, 64, (1, 8))
names = {}


def hook_of(place):
    def hook(module, args, kwargs):
        names[place] = sorted(name for name, value in kwargs.items() if isinstance(value, DynamicCache))

    return hook


model.register_forward_pre_hook(hook_of("model"), with_kwargs=True)
model.model.layers[0].register_forward_pre_hook(hook_of("layer"), with_kwargs=True)
found = {}
with torch.inference_mode():
    expected = model(ids, use_cache=False).logits
    given = DynamicCache(config=config)
    logits = model(ids, past_key_values=given).logits
    found["model(past_key_values=...)"] = dict(names)
    assert given.get_seq_length() == 8 and torch.allclose(logits, expected, atol=1e-5), "the old name still works"
    model.generate(ids, past_key_values=DynamicCache(config=config), max_new_tokens=1, do_sample=False)
    found["generate(past_key_values=...)"] = dict(names)
print("transformers", transformers.__version__)
for call, seen in found.items():
    print(f"  {call:30} hook at the model: {seen['model']}, at a layer: {seen['layer']}")
new, old = ["cache"], ["past_key_values"]
right = {
    "5.23.0": [dict(model=old, layer=old), dict(model=old, layer=old)],
    "5.24.0": [dict(model=old, layer=new), dict(model=new, layer=new)],
}
sys.exit(list(found.values()) != right[transformers.__version__])
PY

for version in 5.23.0 5.24.0; do
    pip "transformers==$version"
    "$folder/venv/bin/python" "$folder/hooks.py"
done
