# SPDX-License-Identifier: Apache-2.0
"""Pipeline bubble: stages wait at the start and the end of each batch, (p - 1) / (m + p - 1) of it under 1F1B."""

from __future__ import annotations

from harness.plan.pipeline_schedule import bubble_fraction
from harness.slowness.run_measurements import (
    RunMeasurements,
    SettingChange,
    Slowdown,
    format_percent,
    scale_micro_batch,
)

LIMIT = 0.10


def detect(run: RunMeasurements) -> Slowdown | None:
    """More than a tenth of the batch is the bubble."""
    settings = run.settings
    if settings is None or settings.pipeline_parallel_size < 2:
        return None
    share = bubble_fraction("1f1b", settings.pipeline_parallel_size, settings.accumulation)
    if share < LIMIT:
        return None
    evidence = [
        f"{settings.pipeline_parallel_size} stages and {settings.accumulation} micro-batches:"
        f" (p - 1) / (m + p - 1) = {format_percent(share)} of the time each stage waits, if all stages are equally fast"
    ]
    changes = []
    for factor in (0.5, 0.25):
        sets = scale_micro_batch(settings, factor)
        if sets is not None:
            bubble = format_percent(
                bubble_fraction("1f1b", settings.pipeline_parallel_size, int(settings.accumulation / factor))
            )
            changes.append(
                SettingChange(
                    f"micro-batches of {sets['train.per_device_train_batch_size']}: a bubble of {bubble}", sets
                )
            )
    if settings.pipeline_parallel_size > 2 and settings.pipeline_parallel_size % 2 == 0:
        changes.append(
            SettingChange(
                f"{settings.pipeline_parallel_size // 2} stages",
                {"parallel.pipeline_parallel_size": settings.pipeline_parallel_size // 2},
            )
        )
    advice = ("a larger `train.global_batch_size` has more micro-batches (changes what is trained)",)
    return Slowdown("bubble", "the pipeline's bubble", share, tuple(evidence), tuple(changes), advice, is_planned=True)
