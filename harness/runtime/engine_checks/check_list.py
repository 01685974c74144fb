# SPDX-License-Identifier: Apache-2.0
"""All engine checks, in the order of their ids."""

from harness.runtime.engine_checks import (
    optimizer_checks,
    parallel_checks,
    parameter_checks,
    setting_checks,
    step_checks,
)
from harness.runtime.engine_checks.engine_check import EngineCheck

_MODULES = (setting_checks, optimizer_checks, parameter_checks, parallel_checks, step_checks)

CHECKS: tuple[EngineCheck, ...] = tuple(
    sorted(
        (value for module in _MODULES for value in vars(module).values() if isinstance(value, EngineCheck)),
        key=lambda check: check.id,
    )
)
