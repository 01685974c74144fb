# SPDX-License-Identifier: Apache-2.0
"""Jobs that somebody stopped, whose ranks then lost each other. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from tests.support.tracebacks import diagnose_text, traceback_text

STEPS = "".join(f"step {i} loss: 0.{9 - i}31\n" for i in range(3))
LAUNCH = "[2026-03-01 10:00:{:02d},471] [INFO] [launch.py:253:sigkill_handler] {}\n"
KILLING = LAUNCH.format(50, "Killing subprocess 8853")
STOPPED = LAUNCH.format(51, "Killing subprocess 8854") + LAUNCH.format(52, "Main process received SIGTERM, exiting")
FAILED = LAUNCH.format(52, "['python', '-u', 'train.py', '--local_rank=0'] exits with return code = 1")
BACKWARD = ("/data/train.py", "main", "engine.backward(loss)")
LOST = traceback_text([BACKWARD], "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer", 1)
NCCL_LOST = traceback_text(
    [BACKWARD], "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited", 1
)
CTRL_C = traceback_text([BACKWARD], "KeyboardInterrupt", 0)
ROOT = traceback_text([BACKWARD], "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x512 and 1024x10)", 0)


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (KILLING + LOST + STOPPED, "LG069"),
        (KILLING + LOST + NCCL_LOST + STOPPED, "LG069"),
        ("^C" + CTRL_C + NCCL_LOST, "LG069"),
        (CTRL_C + KILLING + NCCL_LOST + STOPPED.replace("SIGTERM", "SIGINT"), "LG069"),
        (LOST + KILLING + STOPPED, "LG073"),  # a rank of another host had gone, and somebody then stopped this one
        (KILLING + LOST + FAILED, "LG073"),
        (KILLING + LOST, "LG073"),
        (ROOT + KILLING + LOST + STOPPED, "LG082"),
    ],
)
def test_lost_connections_after_a_stop(log: str, cause: str) -> None:
    diagnosis = diagnose_text(STEPS + log)
    assert (diagnosis.state, diagnosis.cause) == ("failed", cause)
    assert any("followed from it" in note for note in diagnosis.notes) is (cause in ("LG069", "LG082"))
