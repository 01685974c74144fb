# SPDX-License-Identifier: Apache-2.0
"""Findings about ops that do not compile. Needs nothing; milliseconds."""

from pathlib import Path

import pytest

from harness.launching.ops import local_build


@pytest.mark.parametrize("accelerated", [True, False])
def test_adam_for_a_gpu_needs_the_cuda_compiler(accelerated):
    finding = local_build._build_failure_finding("fused_adam", 1, Path("ops.log"), accelerated=accelerated)
    assert ("nvcc" in finding.fix.title) is accelerated
