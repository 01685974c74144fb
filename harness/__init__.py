# SPDX-License-Identifier: Apache-2.0
"""A training harness on DeepSpeed: validate, plan, render, launch, train and report from one run spec.

`harness.watch` and `harness.HarnessCallback` check the engine in anybody's training program; `harness.train` is the
loop for a script that `harness launch --script` starts. They import torch and DeepSpeed, so they are imported when they
are first named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.engine_watch.trainer_callback import HarnessCallback as HarnessCallback
    from harness.engine_watch.watch import watch as watch

__version__ = "0.1.0"
"""The only place of the version: `pyproject.toml` reads it from here."""
_LAZY_NAMES = {
    "watch": "harness.engine_watch.watch",
    "HarnessCallback": "harness.engine_watch.trainer_callback",
    "train": "harness.runtime.user_script",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_NAMES:
        return getattr(importlib.import_module(_LAZY_NAMES[name]), name)
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
