# The entry point for people and CI. Every target first creates or updates the environment that it runs in.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
WORKERS ?= auto
# Each process of the GPU tests has a worker with a context of some gigabytes, and one test needs 22 GB beside them. Those
# of CUDA's Multi-Process Service run after the others and one by one: what they break would reach others.
GPU_WORKERS ?= 4
TRITONS ?= 3.6.0 3.9.0
NIGHTLY_TIME ?= 3600
EXAMPLES ?= 5000
LOAD ?= 0
BACKEND ?= simulator
SAMPLE ?= 40
SEED ?= 2
SEEDS ?= 1
LIMIT ?= 120

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
INPUTS := pyproject.toml constraints.txt Makefile

# The stamp contains the path of the checkout, because a copied or moved environment points to the old path.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

.PHONY: help fuzz replay ledger explanations operations evidence history launchers nightly test slow examples time-to-bug drills states faults gpu conformance bench coverage lint format docs walk wheel hooks clean

# Compiled files are kept, which `make clean` removes: the tests start hundreds of processes, and each would compile this
# package again, and pytest every test in every worker.
unexport PYTHONDONTWRITEBYTECODE

# On a machine with a GPU too, the benchmarks measure the CPU; bench_dot_rounding.py, which needs a GPU, unsets it.
bench: export TRITON_INTERPRET ?= 1

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile
	echo
	echo "Variables: PYTHON=python3.12 builds the environment from another interpreter; WORKERS=4 limits pytest;"
	echo "on a machine without a GPU, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu saves gigabytes."

fuzz: $(STAMP) ## fuzz the built-in kernels for a minute; other options: ARGS="--max-cases 5000 --seed 7"
	@$(BIN)/fuzz-attn run $(ARGS)

replay: $(STAMP) ## run the saved counterexamples again; others: FILES="a.json dir/" ARGS="--backend cuda"
	@$(BIN)/fuzz-attn replay $(FILES) $(ARGS)

ledger: $(STAMP) ## replay the known defects of published kernels on every pinned version
	@$(BIN)/fuzz-attn ledger --replay $(ARGS)

explanations: $(STAMP) ## explain every seeded bug, and compare with the table of reasons and words; some: ARGS="alibi_sign"
	@$(BIN)/python tests/forensics/explaining_program.py tests/forensics/seeded_bug_cases.json \
		--check tests/forensics/explained_bugs.toml $(ARGS)

operations: $(STAMP) ## name each seeded bug's first operation that differs from our kernel, and print how many are right
	@$(BIN)/python tests/benchmarks/bench_first_operations.py $(ARGS)

evidence: $(STAMP) ## make docs/evidence.md from its tables; measure some first: ARGS="--run NAME", or all that can be
	@$(BIN)/python tests/evidence/evidence.py $(ARGS)

launchers: $(STAMP) ## make the table of docs/published.md; try to bind some first: ARGS="--try vllm"
	@$(BIN)/python tests/evidence/launcher_matrix.py $(ARGS)

history: $(STAMP) ## which bugs of the trackers are expressed, drawn and planted; measure shares first: ARGS=--shares
	@$(BIN)/python tests/history/history.py $(ARGS)

nightly: $(STAMP) ## fuzz on a GPU for an hour, into reports/nightly; seconds: NIGHTLY_TIME=600
	@$(BIN)/fuzz-attn run --backend cuda --max-time $(NIGHTLY_TIME) --out reports/nightly $(ARGS)

test: $(STAMP) ## run the test suite without the slow tests; a part of it: ARGS="tests/house -k links"
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal --durations=15 $(ARGS)

slow: $(STAMP) ## run the slow tests, a part of which stands for all in `make test`; one: ARGS="tests/forensics -k window"
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal --durations=15 -m slow $(ARGS)

examples: $(STAMP) ## run the properties of the test suite on other and more examples than `make test`; SEED=7
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal --durations=15 -m hypothesis --hypothesis-seed=$(SEED) $(ARGS)

drills: $(STAMP) ## run the fault drills (crashes, kills, full disks) and print how many of all passed
	@$(BIN)/pytest -q -n $(WORKERS) -m 'slow or not slow' tests/engine/drills $$(grep '^tests/' tests/engine/drills/elsewhere.txt) $(ARGS)

states: $(STAMP) ## fuzz the engine itself with a state machine; EXAMPLES=5000, busy processes beside it: LOAD=8, others: ARGS="--hypothesis-seed=2"
	@trap 'kill $$(jobs -p) 2> /dev/null || true' EXIT
	for number in $$(seq $(LOAD)); do (while :; do :; done) & done
	FUZZ_ATTN_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -q -n $(WORKERS) tests/engine/state_machine $(ARGS)

faults: $(STAMP) ## put faults into copies of the harness, each of which must fail its test; some: ARGS="tanh --workers 1"
	@$(BIN)/python tests/faults/check_faults.py $(ARGS)

gpu: $(STAMP) ## run the tests that need a GPU, which compile kernels instead of interpreting them
	@export TRITON_INTERPRET=0
	$(BIN)/pytest -n $(GPU_WORKERS) tests/backends/test_on_gpu.py tests/backends/test_calls_on_gpu.py tests/simulator/test_against_gpu.py $(ARGS)
	$(BIN)/pytest tests/engine/mps/test_mps_on_gpu.py $(ARGS)

# Triton 3.6's interpreter, which is the reference here, breaks with numpy 2.4.
conformance: ## run the tests of front end and simulator under the oldest and the newest Triton; others: TRITONS="3.7.0 3.8.0"
	@for version in $(TRITONS); do
		place=.venv-triton-$$version
		if [ ! -e $$place/.stamp ]; then
			echo "fuzz_attn: preparing $$place"
			$(PYTHON) -m venv $$place
			$$place/bin/pip install -qq --disable-pip-version-check torch==2.13.0 triton==$$version 'numpy<2.4' mpmath -e .
			touch $$place/.stamp
		fi
		$$place/bin/python -c "import triton; print('Triton', triton.__version__)"
		$$place/bin/pytest -q -n $(WORKERS) tests/simulator tests/ttir $(ARGS)
	done

bench: $(STAMP) ## run the benchmarks of tests/benchmarks, one after the other
	@for script in tests/benchmarks/bench_*.py; do echo "$$script"; $(BIN)/python "$$script"; done

time-to-bug: $(STAMP) ## measure the seconds to the first failure of seeded bugs; BACKEND=cuda SAMPLE=40 SEEDS="1 2" LIMIT=120 WORKERS=2 ARGS="--help"
	@$(BIN)/python tests/benchmarks/time_to_bug/time_to_bug.py --backend $(BACKEND) --sample $(SAMPLE) --seeds $(SEEDS) \
		--limit $(LIMIT) $(if $(filter-out auto,$(WORKERS)),--workers $(WORKERS)) $(ARGS)

coverage: $(STAMP) ## run the tests and list the lines and branches that they missed
	@$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -n $(WORKERS) --dist worksteal $(ARGS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

lint: $(STAMP) ## check style, format and types
	@$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP) ## format the code, and fix what ruff can fix safely
	@$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

docs: $(STAMP) ## make the pages of docs/ into build/docs; a warning is an error
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs -d build/doctrees . build/docs $(ARGS)
	echo "open $(CURDIR)/build/docs/index.html"

walk: $(STAMP) ## walk through the tutorial and the examples, and write what is printed into their pages; the report: ARGS=--screenshots
	@$(BIN)/python tests/docs/walkthrough.py $(ARGS)

wheel: $(STAMP) ## build the source distribution and the wheel into dist/
	@$(BIN)/python -m build --no-isolation > $(VENV)/wheel.log 2>&1 || { cat $(VENV)/wheel.log; exit 1; }
	ls dist/*

hooks: $(STAMP) ## make git run `make lint` before each commit
	@$(BIN)/pre-commit install

clean: ## remove the environment, the caches and the builds; reports and counterexamples stay
	@rm -rf $(VENV) .venv-triton-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	find examples/ fuzz_attn/ kernels/ strategies/ tests/ -name __pycache__ -prune -exec rm -rf {} +

# A second make waits for the lock and then finds the work done. -qq hides warnings of pip, not its errors.
$(STAMP): $(INPUTS)
	@exec 9>> Makefile
	! command -v flock > /dev/null || flock 9
	done=$$(cat $@ 2> /dev/null || true)
	if [ "$$done" = "$(CURDIR)" ] && [ -z "$$(find $(INPUTS) -newer $@)" ]; then exit; fi
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	echo "fuzz_attn: preparing $(VENV) (a minute or two, once)" >&2
	grep -qs "$(CURDIR)/$(BIN)/python" $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	echo "$(CURDIR)" > $@
