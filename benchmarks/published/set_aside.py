# SPDX-License-Identifier: Apache-2.0
"""The sources that no constant of the planner is fitted to, divided by a hash of their names before any fit."""

from __future__ import annotations

import hashlib


def is_set_aside(source: str) -> bool:
    """Is this source, one document or one thread, in the third that judges the fit and does not feed it?"""
    return int(hashlib.sha256(source.encode()).hexdigest(), 16) % 3 == 1
