# The commands of the README, and those of a developer. Everything lives in .venv; nothing else is installed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Pip compiling all it installs takes half of its time, most of it for modules that nobody imports. Python keeps what it
# compiles instead, also where a container says that it must not: each start would compile torch again (2.4 s become 4.8).
PIP    := --quiet --disable-pip-version-check --no-compile -c constraints.txt
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-lgm long lint sanitize docs bench gpu-check clean

demo: $(STAMP)
	$(BIN)/vtensor demo

# Tests compute with one thread each, so that several run at once; those that are about all cores, or about time, come alone.
test: export CXXFLAGS ?= -Wall -Wextra -Werror
test: $(STAMP) lint sanitize
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -m "not long and not alone" --durations 15
	$(BIN)/python -m pytest -m "alone and not long"

# The planner's own tests where there is nothing but NumPy.
test-lgm:
	$(PYTHON) -m venv $(VENV)-lgm
	$(VENV)-lgm/bin/pip install --quiet --disable-pip-version-check -c constraints.txt numpy pytest
	$(VENV)-lgm/bin/python -m pytest -c /dev/null -p no:cacheprovider --rootdir . --confcutdir tests/lgm tests/lgm

long: $(STAMP)
	$(BIN)/python -m pytest -m long --timeout 3600

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

# The documentation site, in build/docs; warnings are errors, and so are links that lead nowhere.
docs: $(STAMP)
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html docs build/docs

sanitize: $(STAMP)
	$(MAKE) -C tests/native -j$$(nproc) --output-sync sanitize CUDA_INCLUDE=$$($(BIN)/python -c "from vtensor.native.cuda_headers import cuda_include; print(cuda_include())")

# On a machine with a GPU, with whatever torch and CuPy are there: nothing is installed. One part: make gpu-check PART=costs
gpu-check:
	$(PYTHON) -m benchmarks.gpu_check $(if $(PART),--part $(PART))

bench: $(STAMP)
	$(BIN)/python -m benchmarks

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIP) torch numpy setuptools
	$(BIN)/pip install $(PIP) --no-build-isolation -e '.[torch,demo,test]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) $(VENV)-lgm build *.egg-info tests/native/build
