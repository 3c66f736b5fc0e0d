# make train [ARGS="env=gymnax/acrobot num_seeds=8"]   trains; ARGS are Hydra overrides
# make test  [ARGS="-k staleness"]                     lints, type-checks and tests; ARGS go to pytest (-m slow: by hand)
# make thorough [ARGS="--share 0/4"]                  runs the longer tests of tests/thorough.txt; CI runs a sixth each day
# make docs                                           builds the documentation into docs/_build/html
# make gpu-check [JOBS='"cartpole" "breakout"']      compiles jobs for an H100 and a V100 without a GPU (1.4 GB in .gpu-check)
# make lint | constraints | clean
# The first call makes .venv with the pinned packages; PYTHON=/path/to/python chooses its Python.

ARGS ?=
PYTHON ?=
SHELL := bash
# Tests start hundreds of commands, each of which would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin

.PHONY: train test thorough docs lint constraints clean gpu-check

train: .venv/.installed
	@$(BIN)/python scripts/train.py $(ARGS)

PYTEST = $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --max-worker-restart 0 --dist loadfile --durations=10

test: lint
	@$(PYTEST) -m "not slow and not thorough" $(ARGS)

thorough: .venv/.installed
	@$(PYTEST) -m "thorough and not slow" $(ARGS)

docs: .venv/.installed
	@$(BIN)/python -m sphinx -W --keep-going --quiet docs docs/_build/html
	@echo "docs/_build/html/index.html"

lint: .venv/.installed
	@$(BIN)/python -m ruff check
	@$(BIN)/python -m mypy
	@$(BIN)/python scripts/check_text.py

.venv/.installed: pyproject.toml $(wildcard constraints/*.txt)
	@PYTHON="$(PYTHON)" bash scripts/install.sh

# Newest versions within the ranges of pyproject.toml, for every supported Python.
constraints: .venv/.installed
	@$(BIN)/python -m pip install --quiet uv
	@for version in 3.11 3.12 3.13 3.14; do \
	  file=constraints/py$${version/./}.txt; \
	  echo "# Pinned versions for Python $$version: the package with extras all and dev, on Linux and CPU. Made by \`make constraints\`." > $$file; \
	  $(BIN)/python -m uv pip compile --quiet --no-header --no-annotate --python-version $$version --extra all --extra dev pyproject.toml >> $$file; \
	done

# Plug-ins that compile for CUDA, and CUDA's compilers: for Volta GPUs the last that know them. They stay outside of .venv,
# where JAX would look for a GPU at every start.
JOBS ?= "cartpole"
JAX = $$($(BIN)/python -c "import jax; print(jax.__version__)")
INSTALL = $(BIN)/python -m pip install --quiet --no-deps --target
gpu-check: .venv/.installed
	@[ -e .gpu-check/cuda13 ] || $(INSTALL) .gpu-check/cuda13 jax-cuda13-plugin==$(JAX) jax-cuda13-pjrt==$(JAX) nvidia-cuda-nvcc nvidia-nvvm
	@[ -e .gpu-check/cuda12 ] || $(INSTALL) .gpu-check/cuda12 jax-cuda12-plugin==$(JAX) jax-cuda12-pjrt==$(JAX) nvidia-cuda-nvcc-cu12
	@$(BIN)/python scripts/benchmark.py gpu $(JOBS) --gpu h100 v100

clean:
	rm -rf .venv .gpu-check build dist docs/_build .pytest_cache .mypy_cache .ruff_cache
