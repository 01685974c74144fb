# SPDX-License-Identifier: Apache-2.0
"""Differences of a configuration between two DeepSpeed releases: refused keys, other defaults, fixed bugs, new keys.

`release_comparison` compares the findings of the gates and typed keys under both releases. `behavior_changes` has the
changes that neither shows, one row a change.
"""

from __future__ import annotations

from harness.upgrades.release_comparison import compare_releases

__all__ = ["compare_releases"]
