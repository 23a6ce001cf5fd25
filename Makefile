# All that a fresh machine needs is make and Python 3.11 or newer: `make demo` and `make test` do the set-up.

PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
BASE := .venv/.base
READY := .venv/.ready

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup demo test lint test-all portable integrations lowest chaos security docs bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

setup: $(READY)  ## build .venv from constraints.txt, once (3 minutes, 2.6 GB)

# torch comes first and by exactly this pin: left to itself, the installer picks builds of several gigabytes.
# pip is pinned, too: the one that comes with Python has known vulnerabilities.
$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed. Name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip==26.3
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet -c constraints.txt -e .
	@touch $@

$(READY): $(BASE)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(BASE)  ## digits with 40 % wrong labels: train, audit, measure, correct, train again (about a minute)
	$(BIN)/noiseproof demo

test: lint  ## lint, types, tests and doctests (9 minutes on two cores)
	$(BIN)/pytest -n $(JOBS) --dist worksteal

lint: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src

test-all: lint docs  ## the same with the slow tests and the docs
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m 'not integration'

# What computes, and the pages and docstrings that show numbers.
COMPUTING := tests/accelerate tests/analysis tests/audit tests/bench tests/core tests/data tests/estimator tests/heads tests/judge \
	tests/losses tests/models tests/noise tests/papers tests/strategies tests/train \
	tests/house/test_digits.py tests/house/test_packaging.py src

# The same bits are not promised on another processor; the tests have to pass. Its arithmetic is chosen by the
# environment: `make portable ATEN=avx2 MKL=AVX2 OPENBLAS=Haswell THREADS=4`. Inductor's cache is not keyed by that,
# and its folder cannot have a space in its name.
ATEN ?= default
MKL ?= SSE4_2
OPENBLAS ?= Nehalem
THREADS ?= 1
portable: setup  ## what computes, with the instructions of an old processor, no locale and a space in names
	@set -e; folder="$$(mktemp -d)"; trap 'rm -rf "$$folder"' EXIT; mkdir "$$folder/a space"; \
	export ATEN_CPU_CAPABILITY=$(ATEN) MKL_ENABLE_INSTRUCTIONS=$(MKL) OPENBLAS_CORETYPE=$(OPENBLAS) \
		OMP_NUM_THREADS=$(THREADS) LC_ALL=C PYTHONHASHSEED=1 TMPDIR="$$folder/a space" TORCHINDUCTOR_CACHE_DIR="$$folder"; \
	$(BIN)/pytest -n $(JOBS) --dist worksteal $(COMPUTING)

# Label Studio, FiftyOne, Argilla and CVAT's formats, each in an environment of its own: their requirements do not fit.
PACKAGES_fiftyone := fiftyone==1.22.1
PACKAGES_label-studio := label-studio==1.23.2
PACKAGES_argilla := argilla==2.8.0 requests
PACKAGES_coco := pycocotools==2.0.11 datumaro==1.13.12
PACKAGES_frameworks := -c .venv/integrations/frameworks/constraints.txt -e . lightning==2.6.6 transformers==5.23.0 accelerate skorch==1.4.0 mlflow==3.17.2 wandb==0.31.0 \
	sentence-transformers==6.2.0 lightgbm==4.7.0 xgboost-cpu==3.2.0 catboost==1.2.10

# timm imports torchvision, of which PyPI has no build for a CPU's torch: here it lacks the module that declares its
# compiled operators, which timm does not call. Everything else is that of .venv.
.venv/integrations/timm/.ready: $(READY)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --no-deps timm==1.0.31 torchvision==0.28.0
	@packages='import sysconfig; print(sysconfig.get_path("purelib"))'; here="$$($(@D)/bin/python -c "$$packages")"; \
	: > "$$here/torchvision/_meta_registrations.py"; \
	echo "import site; site.addsitedir('$$($(BIN)/python -c "$$packages")')" > "$$here/noiseproof.pth"
	@touch $@

.venv/integrations/%/.ready: $(READY)
	$(PYTHON) -m venv $(@D)
	$(if $(filter frameworks,$*),$(@D)/bin/pip install --quiet torch==2.13.0)
	grep -vE '^(pyarrow|importlib_metadata)==' constraints.txt > $(@D)/constraints.txt  # mlflow takes older ones
	$(@D)/bin/pip install --quiet $(PACKAGES_$*)
	@touch $@

integrations: $(patsubst %,.venv/integrations/%/.ready,fiftyone label-studio argilla coco frameworks timm)  ## other tools and libraries, for real (11 minutes, 5.4 GB)
	$(BIN)/pytest -m integration tests/integrations --ignore=tests/integrations/test_timm.py
	.venv/integrations/timm/bin/python -m pytest -m integration tests/integrations/test_timm.py

LOWEST := tests/losses tests/core tests/heads tests/noise tests/models tests/data tests/estimator tests/train/test_export.py \
	tests/train/test_checkpoint.py tests/train/test_train.py tests/cli/test_cli.py tests/cli/test_cli_help.py \
	tests/audit/test_audit_inputs.py tests/audit/test_audit_report.py tests/audit/test_exchange.py

.venv/lowest/.ready: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet uv==0.13.8
	$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python --resolution lowest-direct -e .
	$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python pytest hypothesis jsonschema pillow pyarrow openpyxl 'polars<2' httpx onnx \
		onnxscript datasets wordllama tokenizers tensorboardX fastapi uvicorn
	@touch $@

# Left out: what depends on the scores of later trees of scikit-learn, and polars, which 1.6 does not take.
lowest: .venv/lowest/.ready  ## the core of the suite with the lowest versions that pyproject.toml allows (5 minutes, 7.6 GB)
	$(<D)/bin/python -m pytest -o addopts= -m 'not slow and not integration' $(LOWEST) \
		--deselect tests/estimator/test_network.py::test_trees_are_chosen_where_they_predict_better \
		--deselect 'tests/estimator/test_robust.py::test_words_are_named_where_an_estimator_needs_numbers[polars]'

chaos: setup  ## kill, fill the disk and flip bits at every place instead of a few (docs/reliability.md)
	NOISEPROOF_CHAOS=1 $(BIN)/pytest -n $(JOBS) --dist worksteal -m '' tests/chaos

.venv/security: $(READY)
	$(PYTHON) -m venv $@
	$@/bin/pip install --quiet pip-audit==2.10.1 cyclonedx-bom==7.5.0

# vulnerabilities.py says what was audited; with "Error 2" make says that something was not, with "Error 1" that a
# vulnerability is known.
security: .venv/security  ## sbom.json (CycloneDX) of all that is installed, and its known vulnerabilities (asks the package index)
	.venv/security/bin/cyclonedx-py environment --pyproject pyproject.toml --output-file sbom.json $(BIN)/python
	$(BIN)/python vulnerabilities.py .venv/security/bin/pip-audit

.venv/.docs: $(READY)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	@touch $@

docs: .venv/.docs  ## build docs/_build/html; a warning is an error (4 minutes)
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build/html

bench: setup  ## run every benchmark and write its rows; ONLY=losses runs one
	@set -e; for script in $(or $(ONLY:%=benchmarks/%.py),$$(grep -l __main__ benchmarks/*.py)); do \
		echo "$(BIN)/python $$script"; $(BIN)/python $$script; \
	done

clean:  ## remove .venv and everything built
	rm -rf .venv build dist docs/_build docs/_generated docs/_methods .pytest_cache .mypy_cache .ruff_cache .hypothesis
