# make demo    create the environment, install, caption a sample, and serve the page until Ctrl-C
#              (SERVE=0: without the page; PORT=7861: another port)
# make test    the quick tests, in about five minutes on two cores; tests that need curl, exiftool
#              or java are skipped if these are not installed
# make check   ruff, mypy, and the slow tests: kills, signals, overload, the page
# make docs    build the site: build/docs/index.html
# make mutations   break the code on purpose, one change at a time: a test must fail for each
# make clean   remove the environment, the site and the demo's output

PYTHON ?= python3
SERVE ?= 1
PORT ?= 7860
VENV := .venv
BIN := $(VENV)/bin

install = $(BIN)/python -m pip install --quiet --editable $(1) || { \
  echo "Not installed. It needs a network, and 12 GB of disk while it runs, if PyTorch comes with its"; \
  echo "CUDA libraries (README: the CPU-only build). Free here, and for what is downloaded:"; \
  df -h . "$${TMPDIR:-/tmp}"; exit 1; }

.PHONY: demo test check slow lint docs mutations clean

# In a terminal, the page has its own process group, so that Ctrl-C ends the page and not make.
demo: $(VENV)/.installed
	@mkdir -p demo-output && rm -f demo-output/coffee.png
	@$(BIN)/captioner caption assets/samples/coffee.jpg --sheet demo-output/coffee.png
	@echo "Each word and where the model looked: demo-output/coffee.png"
ifneq ($(SERVE),0)
	@if [ -t 0 ]; then set -m; fi; \
	  $(BIN)/captioner serve --port $(PORT) --log demo-output/access.jsonl
endif

# Two files at a time, in the order of tests/conftest.py. Bytecode is kept even if the environment
# disables it, because `make slow` then starts faster after `make test`.
pytest = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs --durations=15 -n 2 --dist loadfile --no-loadscope-reorder

test: $(VENV)/.installed-dev
	$(pytest) -m "not slow"

slow: $(VENV)/.installed-dev
	$(pytest) -m slow

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint slow

# Warnings are errors: broken links, missing pages, invalid docstrings.
docs: $(VENV)/.installed-dev
	$(BIN)/sphinx-build -qW --keep-going -c docs . build/docs
	@echo "The site: build/docs/index.html"

mutations: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutations.py

# The stamps let a second `make demo` install nothing, unless pyproject.toml is newer.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Captioner needs Python 3.11 or newer: make demo PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml
	@echo "Installing Captioner; PyTorch is large, this takes a few minutes once."
	@$(call install,.)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@$(call install,'.[dev]')
	@touch $@

clean:
	rm -rf $(VENV) demo-output build/docs
