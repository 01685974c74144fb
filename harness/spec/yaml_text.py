# SPDX-License-Identifier: Apache-2.0
"""A run spec as YAML text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


def spec_as_yaml(raw: Mapping[str, Any], head: str = "") -> str:
    """The spec as text below `head`, sections in the order in which they are given."""
    return head + yaml.safe_dump(dict(raw), sort_keys=False, default_flow_style=False)
