# SPDX-License-Identifier: Apache-2.0
"""The causes. The function `detect` of each module returns None where its cause does not apply."""

from collections.abc import Callable

from harness.slowness.causes import (
    cpu_optimizer,
    data_wait,
    exposed_communication,
    nvme_swap,
    padding,
    pcie_copies,
    pipeline_bubble,
    recomputation,
    small_micro_batch,
    unhealthy_gpu,
)
from harness.slowness.run_measurements import RunMeasurements, Slowdown

DETECTORS: tuple[Callable[[RunMeasurements], Slowdown | None], ...] = (
    data_wait.detect,
    exposed_communication.detect,
    cpu_optimizer.detect,
    pcie_copies.detect,
    nvme_swap.detect,
    pipeline_bubble.detect,
    recomputation.detect,
    small_micro_batch.detect,
    padding.detect,
    unhealthy_gpu.detect,
)
