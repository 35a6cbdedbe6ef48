# Three commands: make demo, make test, make lab. Each makes .venv first, and each can be run again.
# Without make: see the README. Paths are relative, so the folder may have any name.
PYTHON ?= python3
PY = .venv/bin/python
EXTRAS ?= dev

.PHONY: demo test lab check fuzz clean

.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Specbook needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --editable ".[$(EXTRAS)]"
	touch .venv/ready

demo: .venv/ready
	@$(PY) -m kit demo

test: .venv/ready
	@$(PY) -m ruff check kit tests
	@$(PY) -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

lab: .venv/ready
	@$(PY) -m jupyter lab notebooks

clean:
	@if [ -x $(PY) ]; then $(PY) -m kit.rehearsal stop; fi
	rm -rf .venv .rehearsal .cache data/runs data/reports data/launches.jsonl
