# SPDX-License-Identifier: Apache-2.0
# One command each: demo, test, test-hosts, conformance, lint, bench, clean. All of them set up .venv first, which is quick when nothing changed.
#
# Variables that may be given, such as `make demo TORCH='torch>=2.10'`:
#   PYTHON  the interpreter that .venv is made with (default: the first of python3, python3.13, 3.12, 3.11, 3.14 that is new enough)
#   VENV    the folder of the virtual environment (default: .venv)
#   TORCH   what pip installs for torch (default: torch==2.13.0 without an NVIDIA GPU, torch>=2.10 with one). On a machine
#           without a GPU whose package index has only CUDA builds, name a CPU build here to save gigabytes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= $(if $(shell command -v nvidia-smi 2>/dev/null),torch>=2.10,torch==2.13.0)
PYTHON ?=

# The environment's own programs first: two versions of ninja that take turns compile every DeepSpeed op anew each time.
export PATH := $(abspath $(BIN)):$(PATH)

# The demo asks for 2 ranks. One GPU takes one of them, which then does the work of both: the batch stays as it is.
ONE_GPU = $(filter 1,$(shell nvidia-smi -L 2>/dev/null | grep -c '^GPU '))
DEMO_OPTIONS = $(if $(ONE_GPU),--set launch.num_gpus=1 --set train.gradient_accumulation_steps=2)

.PHONY: help setup demo test test-hosts conformance lint bench clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.ready  ## Make .venv and install everything into it

$(VENV)/.ready: pyproject.toml .ci/setup
	@.ci/setup "$(VENV)" "$(TORCH)" "$(PYTHON)"

demo: setup  ## Train a small model for real: ZeRO-3, optimizer on the CPU, 2 ranks, a few minutes on 2 cores
	$(BIN)/harness launch ds_configs/demo.yaml $(DEMO_OPTIONS)

test: setup  ## The whole test suite
	HARNESS_TIER=light $(BIN)/python -m pytest -q -n auto
	@echo "What launches and what trains run beside each other; the second's log is shown from its beginning when the first has ended."
	@HARNESS_TIER=training $(BIN)/python -m pytest tests/with_deepspeed >$(VENV)/training.log 2>&1 & training=$$!; launching=0; \
	trap 'kill $$training 2>/dev/null || true' EXIT; \
	HARNESS_TIER=training $(BIN)/python -m pytest --ignore tests/with_deepspeed || launching=$$?; \
	tail -n +1 -f --pid=$$training $(VENV)/training.log; \
	wait $$training || exit $$?; exit $$launching

test-hosts: setup  ## Training across hosts of a cluster in a box: as root, with sshd and pdsh, ten minutes
	HARNESS_TIER=hosts $(BIN)/python -m pytest

conformance: setup  ## The gates against the real DeepSpeed, a fixed sample of 150 configurations (CONFORMANCE='--cases 500' for more)
	$(BIN)/python -m tests.conformance $(CONFORMANCE)

lint: setup  ## ruff, the type checker and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

gates: setup  ## After a change of a gate: write the table of all gates, and their number in the README
	$(BIN)/harness explain --table > harness/gates/TABLE.md
	README_WRITE=1 $(BIN)/python -m pytest -q tests/test_readme.py

bench: setup  ## The benchmarks that take a minute or two each on any machine
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/loading.py --rounds 1
	$(BIN)/python benchmarks/checkpoint_stall.py
	$(BIN)/python benchmarks/tuned_defaults.py --short
	$(BIN)/python benchmarks/peers.py --short

clean:  ## Remove .venv and what tools left here; runs/ is kept
	rm -rf $(VENV) .ci-venv* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
