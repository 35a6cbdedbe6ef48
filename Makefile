# make demo, make test, make lab: each makes .venv first, and each can be run again. The rest is slow, and by hand.
# Without make: see the README. Paths are relative, so the folder may have any name.
PYTHON ?= python3
PY = .venv/bin/python
EXTRAS ?= dev

.PHONY: demo test test-lab lab test-oracle fuzz clean

.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Specbook needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --editable ".[$(EXTRAS)]"
	touch .venv/ready

demo: .venv/ready
	@$(PY) -m kit demo

test: .venv/ready
	@$(PY) -m ruff check kit tests
	@$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# As root, on Linux with apt: two Debian hosts with systemd in throw-away namespaces; see tests/lab/README.md.
test-lab: .venv/ready
	@tests/lab/enter.sh $(PYTEST_ARGS)

# JupyterLab does not start for root unless told to.
lab: .venv/ready
	@$(PY) -m jupyter lab notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

# Slow, by hand, needs the package index: SGLang's own argument parser against lint. About 5 GB in .cache/oracle.
test-oracle: .venv/ready
	sh tests/oracle/prepare.sh .cache/oracle
	$(PY) tests/oracle/run.py ask --python .cache/oracle/venv/bin/python --sources .cache/oracle/sources

# Longer than in make test; the seed is kept in the command, e.g. FUZZ_SEED=7.
FUZZ_SEED ?= 1
fuzz: .venv/ready
	KIT_FUZZ_EXAMPLES=3000 $(PY) -m pytest tests/test_modelfacts_fuzz.py tests/test_lint.py tests/test_diagnose.py \
		-k "fuzz or argparse or text or mixture or bytes" --hypothesis-seed=$(FUZZ_SEED)

clean:
	@if [ -x $(PY) ]; then $(PY) -m kit.rehearsal stop; fi
	rm -rf .venv .rehearsal .cache data/runs data/reports data/launches.jsonl
