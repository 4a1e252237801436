# Everything that a person runs from a checkout. `make help` lists it.
#
# VENV=…         the virtual environment that is made and used (default .venv)
# PYTHON=…       the interpreter that makes it (default python3)
# EVALUATIONS=…  how many evaluations the demo's search may spend
# PYTEST_ARGS=…  more arguments for pytest, e.g. PYTEST_ARGS="-m 'not slow' -n 2", by two workers

VENV ?= .venv
PYTHON ?= python3
EVALUATIONS ?= 8
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SETUP := pyproject.toml constraints.txt
DEMO_STAMP := $(VENV)/.demo-installed
TEST_STAMP := $(VENV)/.test-installed
# For protoc's plug-ins and torch's ninja, which are looked for on PATH.
export PATH := $(abspath $(BIN)):$(PATH)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check figures sandbox-image proto proto-fresh install install-test requirements clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: requirements $(DEMO_STAMP) ## a real search on a real problem, through the real evaluator
	@$(BIN)/kernelevo evolve examples/elementwise_chain/problem.py --start examples/elementwise_chain/start.py --evaluations $(EVALUATIONS) --seed 1

test: requirements $(TEST_STAMP) ## set up everything and run the tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(TEST_STAMP) ## style, types, import contracts, the API's rules, freshness of generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	@$(MAKE) --no-print-directory proto-fresh

sandbox-image: $(TEST_STAMP) ## the Docker backend's image, from the distribution's packages (as root, with mmdebstrap)
	@$(BIN)/python sandbox/tools/docker_engine.py image

figures: $(TEST_STAMP) ## the published figures, misses first
	@$(BIN)/python benchmarks/figures.py

install: requirements $(DEMO_STAMP) ## only set up what the demo needs
install-test: requirements $(TEST_STAMP) ## only set up what the tests need

# ---------------------------------------------------------------- set-up

requirements:
	@case "$$(uname -s)" in Linux) ;; *) echo "The evaluator runs on Linux only, and the demo and the tests need it." >&2; exit 1;; esac
	@command -v g++ >/dev/null || { echo "g++ is missing, which builds C++ kernels. On Debian or Ubuntu: apt-get install g++" >&2; exit 1; }

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; $(PYTHON) is: $$($(PYTHON) --version 2>&1). Name another one: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv. On Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(DEMO_STAMP): $(SETUP) | $(BIN)/python
	@echo "Installing into $(VENV); torch is meant to be its CPU build (CONTRIBUTING.md says how to get it)."
	$(PIP) install --quiet --constraint constraints.txt --editable '.[searcher,evaluator]'
	@touch $@

# Read by a few lines of Python: `pip install --group` is newer than the pip of many systems.
$(TEST_STAMP): $(SETUP) | $(BIN)/python
	@echo "Installing into $(VENV); torch is meant to be its CPU build (CONTRIBUTING.md says how to get it)."
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' > $(VENV)/dev-requirements.txt
	$(PIP) install --quiet --constraint constraints.txt --requirement $(VENV)/dev-requirements.txt --editable '.[searcher,evaluator,otel,postgresql,prices,triton,docker,ray]'
	@touch $(DEMO_STAMP) $@

# ---------------------------------------------------------------- generated code

PROTO := kernelevo_api/evaluator/v1/evaluator.proto
GENERATED := $(addprefix kernelevo_api/evaluator/v1/evaluator_pb2,.py .pyi _grpc.py _grpc.pyi)
# The virtual path gives the generated modules the import name that they have here.
PROTOC = $(BIN)/python -m grpc_tools.protoc -I kernelevo_api=proto/kernelevo \
  -I "$$($(BIN)/python -c 'import grpc_tools, pathlib; print(pathlib.Path(grpc_tools.__file__).parent / "_proto")')" \
  --python_out=$(1) --grpc_python_out=$(1) --mypy_out=quiet:$(1) --mypy_grpc_out=quiet:$(1) $(PROTO)

proto: $(TEST_STAMP) ## generate the Python code of the API anew
	$(call PROTOC,proto)

proto-fresh: $(TEST_STAMP)
	@folder="$$(mktemp -d)" && trap 'rm -rf "$$folder"' EXIT && $(call PROTOC,"$$folder") && \
	  for file in $(GENERATED); do \
	    diff -u "proto/$$file" "$$folder/$$file" || { echo "proto/$$file is stale: run make proto" >&2; exit 1; }; done
	@echo "generated code is fresh"

clean: ## remove the environment and what tools left behind; runs/ stays
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
