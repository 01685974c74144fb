# SPDX-License-Identifier: Apache-2.0
"""The lines of the log that the screen leaves out. Needs nothing; milliseconds."""

import pytest

from harness.launching.supervise.log_filter import is_noise


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-21 10:00:00,000] [INFO] [launch.py:256:main] process 12 spawned with command: [...]",
        "[2026-11-21 10:00:00,000] [WARNING] [real_accelerator.py:213:get_accelerator] Setting accelerator to CPU.",
        "Loading extension module cpu_adam...",
        "ninja: no work to do.",
        "Time to load cpu_adam op: 2.5 seconds",
        "Adam Optimizer #0 is created with AVX512 arithmetic capability.",
        "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1",
        "[rank1]: Failed to load CPU gemm_4bit_forward from kernels-community: No module named 'kernels'. Please make sure",
        "",
    ],
)
def test_what_is_noise(line):
    assert is_noise(line)


@pytest.mark.parametrize(
    "line",
    [
        "step 2/20  loss 5.729  20.68 k tokens/s  1.6 s left",
        "Traceback (most recent call last):",
        "RuntimeError: CUDA out of memory",
        "[2026-11-21 10:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ... exits with return code = 3",
        "  File \"train.py\", line 3, in <module>",
    ],
)  # fmt: skip
def test_what_is_not(line):
    assert not is_noise(line)
