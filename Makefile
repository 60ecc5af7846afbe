# The commands of the README, and those of a developer. Everything lives in .venv; nothing else is installed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-lgm long lint sanitize docs bench gpu-check clean

demo: $(STAMP)
	$(BIN)/vtensor demo

# The planner's tests compute with one thread each, so that several run at once; torch's take all cores themselves.
test: $(STAMP) lint sanitize
	$(BIN)/python -m pytest tests/lgm -n auto --dist worksteal
	$(BIN)/python -m pytest --ignore tests/lgm --durations 15

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
	$(MAKE) -C tests/native -j$$(nproc) --output-sync sanitize CUDA_INCLUDE=$$($(BIN)/python -c "from vtensor.cuda_headers import cuda_include; print(cuda_include())")

# On a machine with a GPU, with whatever torch and CuPy are there: nothing is installed. One part: make gpu-check PART=costs
gpu-check:
	$(PYTHON) -m benchmarks.gpu_check $(if $(PART),--part $(PART))

bench: $(STAMP)
	$(BIN)/python -m benchmarks

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy setuptools
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[torch,demo,test]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) $(VENV)-lgm build *.egg-info tests/native/build
