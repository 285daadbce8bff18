# People and CI call the same targets. Each makes .venv as it needs it and is quick when nothing changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= qwen2.5-coder-1.5b
FUZZ_SECONDS ?= 60
MINUTES ?= 5
TEST_MODELS := smollm2-135m qwen2.5-coder-0.5b qwen2.5-coder-1.5b
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

.PHONY: all demo serve test test-long test-kernels gpu-check scale-demo e2e fuzz soak chaos lint format bench peers models-for-tests vscode clean
.DEFAULT_GOAL := all

all: $(VENV)/.installed

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing hunk and what it needs into $(VENV) (torch is about 200 MB)"
	$(PIP_INSTALL) --editable '.[model]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "installing what the tests and checks need (transformers, mypy, ruff, ...)"
	$(PIP_INSTALL) --editable '.[model,test,bench]'
	@touch $@

$(VENV)/.installed-fuzz: $(VENV)/.installed
	@echo "installing atheris, the fuzzer (35 MB)"
	$(PIP_INSTALL) --editable '.[model,fuzz]'
	@touch $@

# One edit by rule and one by the model, over HTTP. MODEL=qwen2.5-coder-0.5b is quicker and less able.
demo: $(VENV)/.installed
	$(BIN)/hunk models pull $(MODEL)
	$(BIN)/python examples/demo.py --model $(MODEL)

serve: $(VENV)/.installed
	$(BIN)/hunk models pull $(MODEL)
	$(BIN)/hunk serve --model $(MODEL) --root .

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/structure.py --check

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

models-for-tests: $(VENV)/.installed
	@echo "the tests use $(TEST_MODELS): 1.7 GB, downloaded once into the cache (HUNK_CACHE, or ~/.cache/hunk)"
	@for model in $(TEST_MODELS); do $(BIN)/hunk models pull $$model || exit; done

test: lint models-for-tests test-kernels
	$(BIN)/pytest -m 'not long and not e2e and not interpreted'

test-long: lint models-for-tests test-kernels
	$(BIN)/pytest -m 'not e2e and not interpreted'
	TRITON_INTERPRET=1 $(BIN)/pytest -m 'interpreted and long' tests/kernels tests/engine

# Triton's kernels without a GPU: its interpreter has to be asked for before Triton is imported.
test-kernels: $(VENV)/.installed-test
	TRITON_INTERPRET=1 $(BIN)/pytest -m 'interpreted and not long' tests/kernels tests/engine

# On a machine with a card: tests, engine, users and kernels in stages, by the Python that is given (PYTHON=python3);
# nothing is installed. What it has found lies in build/gpu-check, and a second call goes on there.
gpu-check:
	$(PYTHON) -m benchmarks.gpu.check --out build/gpu-check

# Two replicas, Valkey and an agent's session, one replica killed amid an answer.
scale-demo: $(VENV)/.installed-test
	$(BIN)/hunk models pull qwen2.5-coder-0.5b
	$(BIN)/python examples/scale_demo.py

# Real clients against the real service: each has an environment of its own under the cache folder, made once.
e2e: models-for-tests $(VENV)/.installed-test
	$(BIN)/python -m tests.e2e.environments
	$(BIN)/pytest -m e2e

# The extension for VS Code: tested (with HUNK_URL also against a service) and packed as examples/vscode/hunk-vscode-*.vsix.
vscode:
	cd examples/vscode && npm ci --ignore-scripts --no-audit --no-fund && npm test && npm run package

# The editor, by coverage, for FUZZ_SECONDS; what it finds lies in build/fuzz.
fuzz: $(VENV)/.installed-fuzz
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

# Random traffic on the engine for MINUTES: nothing leaks, nothing sticks, nothing changes an answer.
soak: models-for-tests $(VENV)/.installed-test
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

# A second process makes a mess of a watched folder for MINUTES: the snapshot is the one from scratch all the same.
chaos: models-for-tests $(VENV)/.installed-test
	$(BIN)/python -m tests.chaos --minutes $(MINUTES)

# The engines that `benchmarks.engine` and `benchmarks.copy` measure against (`--peers`), under the cache folder.
peers: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.peers

# Prefill, plain and copy tokens a second, load time and memory of every model.
bench: models-for-tests $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.models

clean:
	rm -rf $(VENV)
