# SPDX-License-Identifier: Apache-2.0
"""Counts what a call executes, so that growth can be compared whatever else the machine does. No tests here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_operations(action: Callable[[], object]) -> int:
    """The bytecode instructions that `action` executes in Python code."""
    count = 0

    def on_event(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return on_event

    before = sys.gettrace()
    sys.settrace(on_event)
    try:
        action()
    finally:
        sys.settrace(before)
    return count
