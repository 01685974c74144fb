# SPDX-License-Identifier: Apache-2.0
"""The catalogue of known causes, one module a family. `harness.diagnosis.deepspeed_messages` has those of gates."""

from __future__ import annotations

from functools import cache

from harness.diagnosis.diagnosis_types import FailureCause


@cache
def all_causes() -> tuple[FailureCause, ...]:
    """Every known cause, in the order in which they are tried."""
    from harness.diagnosis.causes import (
        checkpoint_failures,
        communication_failures,
        device_failures,
        file_failures,
        host_failures,
        memory_failures,
        model_failures,
        op_failures,
        script_failures,
    )

    modules = (
        memory_failures,
        device_failures,
        op_failures,
        checkpoint_failures,
        model_failures,
        file_failures,
        host_failures,
        communication_failures,
        script_failures,
    )
    return tuple(cause for module in modules for cause in module.CAUSES)


@cache
def causes_by_id() -> dict[str, FailureCause]:
    """Every known cause by its id."""
    return {cause.id: cause for cause in all_causes()}
