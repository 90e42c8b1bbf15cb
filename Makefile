# Every target builds its own virtual environment in .venv; only Python 3.11+ and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS_VENV := .venv-peers

.PHONY: demo test lint bench peers cold kernels uai reproduce docs verify package clean help

help:
	@echo "make demo   run a paper grid and save a plot (out/demo.png)"
	@echo "make test   run the test suite"
	@echo "make lint   ruff and mypy"
	@echo "make bench  print the figures we hold ourselves to (about an hour; BENCH=exact for one)"
	@echo "make peers  tightz beside the peers that PyPI has (about 20 minutes; PEERS=exact for one task)"
	@echo "make cold   first runs on a new machine, with an empty folder of kernels"
	@echo "make kernels  write the registry of kernels (after a change of their arguments)"
	@echo "make uai    every UAI-2014 model in TIGHTZ_DATA for 60 s each"
	@echo "make docs   the documentation site, in docs/_build/html"
	@echo "make verify the trust suite, about an hour (SCALE=0.01 for a look)"
	@echo "make package  wheel and sdist, tried in clean environments (PYTHONS=\"python3.11 python3.13\")"
	@echo "make reproduce  the paper's figures and table (about an hour; see docs/reproduction.md)"

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c "import sys; assert sys.version_info >= (3, 11), 'tightz needs Python 3.11+'"
	@echo "installing tightz and its test tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test,lint,data]"
	@touch $@

demo: $(STAMP)
	@$(BIN)/tightz demo --output out/demo.png

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(BENCH)

# Peers are optional: one that does not install is named, and its rows say so.
$(PEERS_VENV)/.installed: peers/requirements.txt
	@test -x $(PEERS_VENV)/bin/python || $(PYTHON) -m venv $(PEERS_VENV)
	@for name in $$(grep -v '^#' peers/requirements.txt); do \
	  echo "installing $$name into $(PEERS_VENV) ..."; \
	  $(PEERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $$name \
	    || echo "$$name does not install here: skipped"; \
	done
	@touch $@

peers: $(STAMP) $(PEERS_VENV)/.installed
	$(BIN)/python -m peers $(PEERS)

cold: $(STAMP)
	$(BIN)/python -m benchmarks cold

kernels: $(STAMP)
	$(BIN)/python -m verification.kernels

uai: $(STAMP)
	$(BIN)/python -m benchmarks uai

reproduce: $(STAMP)
	$(BIN)/tightz reproduce picture
	$(BIN)/tightz reproduce runtime
	$(BIN)/tightz reproduce ising
	$(BIN)/tightz reproduce rbm

docs: $(STAMP)
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html docs docs/_build/html

verify: $(STAMP)
	$(BIN)/python -m verification $(SCALE)

package: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m verification.package $(PYTHONS) $(if $(TAG),--tag $(TAG)) $(if $(OUT),--out $(OUT))

clean:
	rm -rf $(VENV) $(PEERS_VENV) build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis
