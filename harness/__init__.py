# SPDX-License-Identifier: Apache-2.0
"""A training harness on DeepSpeed: validate, plan, render, launch, train and report from one run spec."""

__version__ = "0.1.0"
"""The only place of the version: `pyproject.toml` reads it from here."""
