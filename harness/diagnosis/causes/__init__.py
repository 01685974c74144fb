# SPDX-License-Identifier: Apache-2.0
"""The catalogue of known causes, one module a family. `harness.diagnosis.messages` leads messages to them."""

from __future__ import annotations

from functools import cache

from harness.diagnosis.diagnosis_types import FailureCause


@cache
def all_causes() -> tuple[FailureCause, ...]:
    """Every known cause, in the order in which they are tried."""
    from harness.diagnosis.causes import (
        adapter_failures,
        checkpoint_failures,
        cluster_failures,
        communication_failures,
        conversion_failures,
        device_failures,
        engine_failures,
        file_failures,
        host_failures,
        input_failures,
        launch_refusals,
        memory_failures,
        model_failures,
        offload_failures,
        op_failures,
        op_refusals,
        parallel_refusals,
        parallelism_failures,
        program_refusals,
        script_failures,
        tool_failures,
        torch_failures,
        trainer_failures,
        version_failures,
        weight_failures,
        zero_failures,
    )

    modules = (
        memory_failures,
        device_failures,
        op_refusals,
        op_failures,
        launch_refusals,
        conversion_failures,
        checkpoint_failures,
        model_failures,
        file_failures,
        parallel_refusals,
        tool_failures,
        host_failures,
        communication_failures,
        cluster_failures,
        trainer_failures,
        adapter_failures,
        weight_failures,
        torch_failures,
        version_failures,
        input_failures,
        program_refusals,
        script_failures,
        zero_failures,
        offload_failures,
        engine_failures,
        parallelism_failures,
    )
    return tuple(cause for module in modules for cause in module.CAUSES)


@cache
def causes_by_id() -> dict[str, FailureCause]:
    """Every known cause by its id."""
    return {cause.id: cause for cause in all_causes()}
