# Everything runs in .venv, which `make setup` builds from nothing but Python >= 3.11.
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu   keeps the CUDA build of torch away
#   PYTHON=/path/to/python                             another interpreter for .venv
PYTHON ?= $(shell for p in python3.11 python3; do $$p -c "" 2>/dev/null && { echo $$p; break; }; done)
TORCH_INDEX ?=
JOBS ?= 2
PYTEST_ARGS ?=
MINUTES ?= 30

BIN := .venv/bin
STAMP := .venv/.setup-done
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check -c constraints.txt
# --no-deps: the index of torch lacks other packages; what torch needs comes with the next install.
TORCH := --no-deps torch $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
TASK := UniLab/Go2JoystickFlat-v0

.DEFAULT_GOAL := help
.PHONY: help setup demo test bench-smoke libs test-libs soak check lint types format wheel wheel-test clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## build .venv (again when pyproject.toml or constraints.txt change)

# No build isolation: pip would not apply constraints.txt inside it.
$(STAMP): pyproject.toml constraints.txt
	@$(or $(PYTHON),false) -c "import sys; sys.exit(sys.version_info < (3, 11))" \
	|| { echo "unilab_gym needs Python >= 3.11; name one: make setup PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP_INSTALL) $(TORCH)
	$(BIN)/python $(PIP_INSTALL) hatchling
	$(BIN)/python $(PIP_INSTALL) --no-build-isolation -e ".[examples,dev]"
	@touch $@

demo: setup ## train a Go2 policy on the CPU and replay it on both engines
	$(BIN)/python examples/train_rsl_rl.py --task $(TASK) --backend mujoco
	$(BIN)/python examples/replay.py --run latest --backend mujoco --require-outcome
	$(BIN)/python examples/replay.py --run latest --backend mjwarp --episodes 16 --require-outcome
	@echo "Checkpoint, logs, ONNX policy, reports and videos of this run: the newest folder under runs/"

# A file stays with one worker, so that its environments are built and its kernels compiled once.
test: setup ## run the tests (PYTEST_ARGS="-k name", JOBS=4)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --durations=25 $(PYTEST_ARGS)

bench-smoke: setup ## run every benchmark at its tiny size: operations and waits, never seconds
	$(BIN)/python benchmarks/run.py smoke >/dev/null

libs: setup ## train with skrl, Stable-Baselines3 and TorchRL, each in a venv of its own
	bash .ci/libs.sh

test-libs: setup ## train with RL-Games, Tianshou and unilab-rl; writes benchmarks/results/libraries.json
	rm -f benchmarks/results/libraries.json
	LIBRARIES_JSON=$(CURDIR)/benchmarks/results/libraries.json \
	bash .ci/libs.sh rl_games tianshou unilab_rl

soak: setup ## run 256 Go2 for MINUTES with faults: memory flat, faults alone (benchmarks/results/)
	$(BIN)/python benchmarks/run.py soak --minutes $(MINUTES) --save

check: lint types ## lint and type-check

lint: setup ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup ## pyright on the package
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

format: setup ## sort imports, apply safe fixes, format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

wheel: setup ## build sdist and wheel into dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation

wheel-test: wheel ## install the wheel alone in a new environment and use it from another folder
	@set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(BIN)/python -m venv "$$tmp/venv"; \
	"$$tmp/venv/bin/python" $(PIP_INSTALL) $(TORCH); \
	"$$tmp/venv/bin/python" $(PIP_INSTALL) dist/*.whl; \
	cp .ci/wheel_smoke.py "$$tmp"; cd "$$tmp"; venv/bin/python -I wheel_smoke.py

clean: ## remove .venv, builds and caches; runs/ stays
	rm -rf .venv build dist .pytest_cache .ruff_cache *.egg-info MUJOCO_LOG.TXT
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
