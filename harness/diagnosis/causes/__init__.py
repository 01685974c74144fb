"""The catalogue of known causes, one module a family, one row a cause. Gates are in `harness.diagnosis.upstream`."""

from __future__ import annotations

from functools import cache

from harness.diagnosis.values import Cause


@cache
def causes() -> tuple[Cause, ...]:
    """Every known cause, in the order in which they are tried."""
    from harness.diagnosis.causes import checkpoints, code, communication, devices, files, hosts, memory, models, ops

    modules = (memory, devices, ops, checkpoints, models, files, hosts, communication, code)
    return tuple(cause for module in modules for cause in module.CAUSES)


@cache
def by_id() -> dict[str, Cause]:
    """Every known cause by its id."""
    return {cause.id: cause for cause in causes()}
