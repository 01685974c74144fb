# SPDX-License-Identifier: Apache-2.0
"""A launch as a JobSet of Kubernetes, as text."""

from __future__ import annotations

import sys

import yaml

from harness.launching.setup.jobset import Manifest

_HEAD = """\
# Made by `harness launch --kubernetes`, for JobSet 0.10 or newer: kubectl apply --server-side -f FILE
"""
_WIDEST_LINE = sys.maxsize


def render_jobset(manifest: Manifest) -> str:
    """The JobSet as YAML, one line for each value."""
    return _HEAD + yaml.safe_dump(manifest, sort_keys=False, default_flow_style=False, width=_WIDEST_LINE)
