# SPDX-License-Identifier: Apache-2.0
"""A rank that trains what a small copy of the model would have refused: `train_unasked.py --run RUN`."""

from __future__ import annotations

import runpy
from pathlib import Path

from harness.runtime import train_context

train_context.check_objective = lambda *_: None  # type: ignore[assignment]
train_context.check_stack = lambda *_, **__: None  # type: ignore[assignment]
runpy.run_path(str(Path(__file__).parents[3] / "launch" / "train.py"), run_name="__main__")
