"""Generate with a compressed cache on a model of one's own: needs `pip install kvlab` alone."""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

import kvlab

FOLDER = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen3-0.6B"
PROMPT = "The access code of the lab is 48213. " * 8 + "What is the access code of the lab? It is"

model = AutoModelForCausalLM.from_pretrained(FOLDER)
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
inputs = tokenizer(PROMPT, return_tensors="pt")

for method in ("full", "snapkv", "keepkv"):
    cache = kvlab.make_cache(model, method, budget=0.5)
    ids = model.generate(**inputs, past_key_values=cache, max_new_tokens=8, do_sample=False)
    written = tokenizer.decode(ids[0, inputs.input_ids.shape[1] :])
    print(f"{method}: {cache.memory().live_bytes:,} bytes held, writes {written!r}")

kvlab.detach(model)  # the model is as it was
