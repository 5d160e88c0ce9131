#!/bin/sh
# transformers reads a llama GGUF file with scaled rotary positions as if it had none, without a message.
# Valid input: tiny files with rope.scaling.* (linear, YaRN) or the tensor rope_freqs.weight, as llama.cpp's converter
# writes them (Llama 3.1 and later). llama.cpp gives other probabilities than for the unscaled file, transformers the same.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 gguf==0.19.0 accelerate==1.15.0 xllamacpp==2026.10.11549
cat > write.py <<'EOF'
import gguf, numpy as np

def write(name, more):
    w, r = gguf.GGUFWriter(f"{name}.gguf", "llama"), np.random.default_rng(0)
    for add, value in (
        (w.add_context_length, 512), (w.add_block_count, 2), (w.add_feed_forward_length, 96), (w.add_embedding_length, 64),
        (w.add_rope_dimension_count, 16), (w.add_rope_freq_base, 10000.0), (w.add_head_count, 4), (w.add_head_count_kv, 2),
        (w.add_layer_norm_rms_eps, 1e-5), (w.add_vocab_size, 96), (w.add_tokenizer_model, "gpt2"), (w.add_tokenizer_pre, "gpt-2"),
        (w.add_token_list, ["<s>", "</s>", *(chr(0x4E00 + n) for n in range(94))]), (w.add_token_types, [3, 3, *[1] * 94]),
        (w.add_token_merges, ["\u4e00 \u4e01"]), (w.add_bos_token_id, 0), (w.add_eos_token_id, 1),
    ):
        add(value)
    more(w)
    tensor = lambda name, *shape: w.add_tensor(name, (r.normal(size=shape) * 0.3).astype(np.float32))
    one = lambda name: w.add_tensor(name, np.ones(64, np.float32))
    tensor("token_embd.weight", 96, 64), tensor("output.weight", 96, 64), one("output_norm.weight")
    for layer in range(2):
        for part, shape in {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64),
                            "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}.items():
            tensor(f"blk.{layer}.{part}.weight", *shape)
        one(f"blk.{layer}.attn_norm.weight"), one(f"blk.{layer}.ffn_norm.weight")
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()

def scaled(kind):
    def more(w):
        w.add_rope_scaling_type(kind), w.add_rope_scaling_factor(4.0), w.add_rope_scaling_orig_ctx_len(128)
    return more

write("plain", lambda w: None)
write("linear", scaled(gguf.RopeScalingType.LINEAR))
write("yarn", scaled(gguf.RopeScalingType.YARN))
write("rope_freqs", lambda w: w.add_tensor("rope_freqs.weight", np.array([1, 1, 1, 1.5, 3, 8, 8, 8], np.float32)))
EOF
cat > compare.py <<'EOF'
import sys, torch, transformers, xllamacpp
transformers.logging.set_verbosity_error()
ids, found, lost = [n % 90 + 3 for n in range(0, 600, 3)], {}, True
print("transformers", transformers.__version__, "xllamacpp", xllamacpp.__version__)
for name in ("plain", "linear", "yarn", "rope_freqs"):
    model = transformers.AutoModelForCausalLM.from_pretrained(".", gguf_file=f"{name}.gguf", dtype=torch.float32).eval()
    with torch.inference_mode():
        ours = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.n_ctx, settings.n_parallel, settings.warmup = f"{name}.gguf", 512, 1, False
    answer = xllamacpp.Server(settings).handle_completions({"prompt": ids, "n_predict": 1, "temperature": 0, "n_probs": 96})
    top = {one["id"]: one["logprob"] for one in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}
    found[name] = ours, torch.tensor([top[n] for n in range(96)])
    moved = [(mine - plain).abs().max().item() for mine, plain in zip(found[name], found["plain"])]
    print(f"{name:12} rope in transformers' config {model.config.rope_parameters['rope_type']!r}; against the unscaled file "
          f"transformers moves a log-probability by {moved[0]:.3f}, llama.cpp by {moved[1]:.3f}")
    lost &= name == "plain" or (moved[0] == 0.0 and moved[1] > 0.1)
sys.exit(0 if lost else "the behaviour has changed")
EOF
venv/bin/python write.py
venv/bin/python compare.py 2>err.txt || { tail -5 err.txt; exit 1; }
