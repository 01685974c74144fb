# SPDX-License-Identifier: Apache-2.0
# One command each: demo, check, test, test-hosts, test-gpu, conformance, lint, docs, pages, size, freeze, dist, bench, clean. All of them set up .venv first, which is quick
# when nothing changed; `pages` only where no environment with harness is active.
#
# Variables that may be given, such as `make demo TORCH='torch>=2.10'`:
#   PYTHON  the interpreter that .venv is made with (default: the first of python3, python3.13, 3.12, 3.11, 3.14 that is new enough)
#   VENV    the folder of the virtual environment (default: .venv)
#   TORCH   what pip installs for torch (default: torch==2.13.0 without an NVIDIA GPU, torch>=2.10 with one). On a machine
#           without a GPU whose package index has only CUDA builds, name a CPU build here to save gigabytes.
#   DEEPSPEED  another DeepSpeed than pyproject.toml admits, as pip takes it, such as `deepspeed==0.20.0` (default: none)
#   BASE    the branch that `make check` compares with (default: main)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= $(if $(shell command -v nvidia-smi 2>/dev/null),torch>=2.10,torch==2.13.0)
PYTHON ?=
DEEPSPEED ?=
BASE ?= main

# The environment's own programs first: two versions of ninja that take turns recompile every DeepSpeed op each time.
export PATH := $(abspath $(BIN)):$(PATH)

# `make pages` needs no torch. Without .venv, such as in a worktree, it takes the active environment if that has harness and
# pytest, and runs the code of this folder.
HAS_HARNESS := import importlib.util as u, sys; sys.exit(not (u.find_spec("harness") and u.find_spec("pytest")))
ACTIVE := $(if $(wildcard $(BIN)/python),,$(shell python -I -c '$(HAS_HARNESS)' 2>/dev/null && command -v python))
PAGES_PYTHON := PYTHONPATH="$(CURDIR)" $(or $(ACTIVE),$(BIN)/python)

# The demo asks for 2 ranks. One GPU takes one of them, which then does the work of both: the batch stays as it is.
ONE_GPU = $(filter 1,$(shell nvidia-smi -L 2>/dev/null | grep -c '^GPU '))
DEMO_OPTIONS = $(if $(ONE_GPU),--set launch.num_gpus=1 --set train.gradient_accumulation_steps=2)

.PHONY: help setup demo test test-hosts test-gpu conformance lint docs pages check size freeze dist bench clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.ready  ## Make .venv and install everything into it

$(VENV)/.ready: pyproject.toml .ci/setup
	@.ci/setup "$(VENV)" "$(TORCH)" "$(PYTHON)" "$(DEEPSPEED)"

demo: setup  ## Train a small model for real: ZeRO-3, optimizer on the CPU, 2 ranks, a few minutes on 2 cores
	$(BIN)/harness launch ds_configs/demo.yaml $(DEMO_OPTIONS)

test: setup  ## The whole test suite
	.ci/test $(VENV)

test-hosts: setup  ## Training across hosts of a cluster in a box: as root, with sshd and pdsh, ten minutes
	$(BIN)/python -m pytest -m hosts

test-gpu: setup  ## Training on a GPU of this machine
	$(BIN)/python -m pytest -m gpu

conformance: setup  ## The gates against the real DeepSpeed, a fixed sample of 150 configurations (CONFORMANCE='--cases 500' for more)
	$(BIN)/python -m tests.conformance $(CONFORMANCE)

lint: setup  ## ruff, the type checker and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup  ## The documentation as a site in build/docs; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html -c docs . build/docs
	@echo "build/docs/docs/index.html"

pages: $(if $(ACTIVE),,setup)  ## After a change of a gate, a field or an output: write the generated pages and the outputs that pages show
	$(PAGES_PYTHON) -m harness explain --table > harness/gates/TABLE.md
	$(PAGES_PYTHON) -m harness schema --markdown > docs/spec-keys.md
	$(PAGES_PYTHON) -m harness.views.metrics_page > docs/metrics-fields.md
	$(PAGES_PYTHON) -m harness.patches > docs/patches.md
	$(PAGES_PYTHON) -m tests.docs.release_page > docs/releases.md
	$(PAGES_PYTHON) -m harness.views.models_page > docs/models.md
	$(PAGES_PYTHON) -m tests.docs.resume_page > docs/resume-changes.md
	$(PAGES_PYTHON) -m tests.docs.pictures
	DOCS_WRITE=1 $(PAGES_PYTHON) -m pytest -q tests/docs/test_console_blocks.py

check: lint  ## Before a push, three minutes at most: lint, and the tests that a change touches
	$(BIN)/python -m tests.support.changed_tests light --base $(BASE) --seconds 75
	$(BIN)/python -m tests.support.changed_tests training --base $(BASE) --seconds 40

size:  ## Lines and files of the package and its tests by room, and their change since a release (SINCE=revision)
	@.ci/size $(SINCE)

freeze: setup  ## At a release: keep a spec, a run and a checkpoint of this version in tests/frozen, for all later ones
	$(BIN)/python -m tests.frozen.freeze

dist: setup  ## The sdist and the wheel of this commit in dist/, from the files that git has
	rm -rf build/dist dist && mkdir -p build/dist/source dist
	git archive HEAD | tar -x -C build/dist/source
	cd build/dist/source && $(abspath $(BIN)/python) -c 'from setuptools import build_meta; build_meta.build_sdist("$(CURDIR)/dist")' >/dev/null
	$(BIN)/python -m pip wheel -qq --no-deps --no-build-isolation -w dist dist/*.tar.gz
	@ls dist/*

bench: setup  ## The benchmarks that take a minute or two each on any machine
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/loading.py --rounds 1
	$(BIN)/python benchmarks/checkpoint_stall.py
	$(BIN)/python benchmarks/tuned_defaults.py --short
	$(BIN)/python benchmarks/peers.py --short

clean:  ## Remove .venv and what tools left here; runs/ is kept
	rm -rf $(VENV) .ci-venv* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
