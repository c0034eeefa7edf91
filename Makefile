# `make demo` and `make test` need nothing but Python 3.10 to 3.13; a C++ compiler makes it faster.

PYTHON ?= python3
ARGS ?=
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.fededge-ready
SOURCES := pyproject.toml setup.py $(shell find csrc -type f)
CPP := $(shell find csrc tests/ops tests/accelerator -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

.PHONY: setup demo test lint examples attack faults fuzz gpu kills link sanitize clean distclean

setup: $(READY)

$(READY): $(SOURCES)
	@command -v $(PYTHON) >/dev/null || \
	  { echo "There is no '$(PYTHON)': install Python 3.10 to 3.13, or name one: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || \
	  { echo "$(PYTHON) is $$($(PYTHON) -V): FedEdge needs 3.10 to 3.13; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments (Debian: apt install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install torch torchvision 'setuptools>=77' wheel 'pybind11>=2.13' ninja
	@$(BIN)/python -c 'import setup; setup.announce()'
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --no-build-isolation -e '.[dev]'
	@$(BIN)/python -c 'from fededge import ops; f = ops.facts(); print("Kernels:", f["implementation"], "-", f["reason"])'
	@touch $@

demo: setup
	$(BIN)/fededge demo $(ARGS)

test: setup lint
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

# mypy sees the two services under the names that they are installed as through links.
lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/vulture
	$(BIN)/python docs/check_links.py
	@mkdir -p build/mypy
	@ln -sfn ../../server build/mypy/fededge_server
	@ln -sfn ../../device_agent build/mypy/fededge_agent
	$(BIN)/mypy -p fededge -p fededge_server -p fededge_agent
	$(BIN)/mypy setup.py benchmarks docs tests
	$(BIN)/clang-format --dry-run -Werror $(CPP)

# What the apps in examples/ need beside Python; where it is missing, their tests are skipped.
# onnxruntime-node would else fetch CUDA, and both packages hold all that a CPU needs.
examples:
	npm install --ignore-scripts --no-audit --no-fund --prefix examples/node
	npm install --ignore-scripts --no-audit --no-fund --prefix examples/web
	@test -d /usr/include/onnxruntime || $(MAKE) -C examples/cpp headers || \
	  echo "The C++ app is not built: ONNX Runtime's headers cannot be had" >&2

# Seeded schedules of faults: SEEDS of them, beginning FROM one; or REPLAY one of them with a trace.
# HOSTILE=1: only those with hostile devices. DAY=1: days of a fleet that changes, without a last round.
SEEDS ?= 1000
FROM ?= 0
REPLAY ?=
HOSTILE ?=
DAY ?=

faults: setup
	$(BIN)/python -m tests.faults $(if $(REPLAY),--replay $(REPLAY),--seeds $(SEEDS) --first $(FROM) $(if $(HOSTILE),--hostile)) $(if $(DAY),--day)

# Attacks on real processes and a real closed Mosquitto: forged messages, hostile devices, damaged files
attack: setup
	$(BIN)/python -m pytest -n 2 tests/security tests/integration/test_security.py \
	  tests/integration/test_forged_messages.py tests/server/test_hostile_devices.py \
	  tests/server/test_hostile_merges.py tests/methods/test_hostile_updates.py $(PYTEST_ARGS)

# Everything that needs a real GPU: tests, benchmarks, and one report to send in, in build/gpu-report.
gpu: setup
	$(BIN)/python benchmarks/gpu_report.py $(ARGS)

# Real processes on a real Mosquitto, killed with -9 at random moments: make kills RUNS=20
RUNS ?= 20
kills: setup
	FEDEDGE_KILL_RUNS=$(RUNS) $(BIN)/python -m pytest tests/integration/test_kills.py $(PYTEST_ARGS)

# A round with a 45 MB model over a link of 1 Mbit/s with 200 ms delay and 5 % loss: 15 minutes
link: setup
	FEDEDGE_LINK_MODEL=resnet18-small FEDEDGE_LINK_SECONDS=3600 \
	  $(BIN)/python -m pytest -s tests/integration/test_link.py $(PYTEST_ARGS)

# Coverage-guided fuzzing of all that reads bytes from outside: `make fuzz N=1000000`, for each target.
N ?= 100000
fuzz: setup
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install 'atheris>=2.3'
	$(BIN)/python tests/fuzz/run.py $(N)

# The kernels and their tests once more, with every memory access and undefined operation watched.
# The report of a find is on the terminal: pytest must not hold it back.
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
UNDER_SANITIZERS = LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0 CXXFLAGS="$(SANITIZERS)"

# The device code of every kernel, played on the CPU, and the CPU's own loops without torch.
sanitize: setup
	$(UNDER_SANITIZERS) $(BIN)/python -m pytest -n 2 --capture=sys -m 'not slow' \
	  $(wildcard tests/ops/test_emulated_*.py) tests/ops/test_loops.py tests/ops/test_watched.py $(PYTEST_ARGS)

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis $(READY)
	rm -f fededge/_*.so
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
