"""A run that asks its own engine whether it has what the spec asks for, in the first minute instead of after a week.

One file a claim in `claims/`. A claim looks at this rank alone and hands over a few plain values; one small message
brings those of all ranks together, and every rank judges the same values, so that all of them stop or none.
"""

from harness.runtime.engine_checks.check_runner import EngineChecks

__all__ = ["EngineChecks"]
