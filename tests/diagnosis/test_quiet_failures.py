# SPDX-License-Identifier: Apache-2.0
"""Failures that no Python exception ends, each with siblings: pip, Ray, launchers, checkpoints that were not found, and
variables that the log itself shows. Needs nothing; seconds.
"""

from __future__ import annotations

import re

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text

BOX = (
    "  error: subprocess-exited-with-error\n\n  x python setup.py egg_info did not run successfully.\n"
    "  | exit code: 1\n  +-> [9 lines of output]\n      Traceback (most recent call last):\n"
    '        File "<string>", line 2, in <module>\n        File "/tmp/pip-install-q1/oddops_0a/setup.py", line 8\n'
    "          build()\n      {error}\n      [end of output]\n\nerror: metadata-generation-failed\n"
)


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        ("odd.builder.MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)", "LG021", "nvcc"),
        ("ModuleNotFoundError: No module named 'torch'", "LG302", "--no-build-isolation"),
        ("RuntimeError: this machine is odd", "LG302", "--no-build-isolation"),
        ("odd.Thing: what", "LG302", "--no-build-isolation"),
    ],
)
def test_the_exception_in_the_box_of_pip_is_the_cause(error, cause, words):
    found = diagnose_text(BOX.format(error=error))
    assert (found.cause, found.message) == (cause, error)
    assert words in found.change
    assert decide_action(found).action == "change and retry"


@pytest.mark.parametrize(
    "line",
    [
        "error: metadata-generation-failed",
        "  error: odd-new-reason",
        "  ERROR: Failed building wheel for oddops",
        "ERROR: Could not build wheels for oddops, which is required to install pyproject.toml-based projects",
        "ERROR: No matching distribution found for oddops==9",
    ],
)
def test_pip_that_says_no_more_is_a_failure(line):
    assert diagnose_text(f"Collecting oddops\n{line}\n").cause == "LG302"
    assert diagnose_text("Collecting oddops\nSuccessfully installed oddops-9\n").state != "failed"


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-02 10:00:00,100 WARNING worker.py:9 -- 2 Workers (tasks / actors) killed due to memory pressure (OOM)",
        "(raylet) [2026-01-02 10:00:00,100 E 1 1] node_manager.cc:7: 1 Workers (tasks / actors) killed due to memory pressure",
        "(raylet, ip=10.0.0.3) Ray killed this worker (ID: 0f) because it was the most recently scheduled task",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    ],
)
def test_a_worker_that_ray_killed_for_memory(line):
    found = diagnose_text(f"loading\n{line}\n")
    decision = decide_action(found)
    assert (found.cause, decision.action, decision.changes) == ("LG002", "change and retry", {})


@pytest.mark.parametrize(
    "line",
    [
        "[WARNING] [engine.py:9:load_checkpoint] Unable to find latest file at /out/latest, if trying to load latest "
        "checkpoint please ensure this file exists",
        "WARNING: could not find the metadata file /out/latest_checkpointed_iteration.txt",
        "    will not load any checkpoints and will start from random",
    ],
)
def test_a_job_that_loaded_no_checkpoint(line):
    found = diagnose_text(f"{line}\n{{'loss': 11.0}}\n")
    assert (found.cause, found.confidence, decide_action(found).action) == ("LG303", "likely", "change and retry")
    assert diagnose_text(f"{line}\n" + "{'loss': 2.0}\n" * 40).state != "failed"
    later = diagnose_text(f"{line}\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    assert later.cause == "LG016"


@pytest.mark.parametrize(
    "line",
    [
        "Process finished with exit code 3",
        "worker-1: the trainer exited with return code: 1",
        "Command exited with non-zero status 2",
        "make: *** [Makefile:7: train] Error 1",
        "odd-launcher terminated, exit status 1",
    ],
)
def test_a_launcher_that_says_only_that_it_failed(line):
    found = diagnose_text(f"loading\n{line}\n")
    assert (found.cause, found.state, decide_action(found)) == ("LG074", "failed", None)
    healthy = re.sub(r"\b[1-3]$", "0", line.replace("***", ""))
    assert diagnose_text(f"loading\n{healthy}\n").state != "failed"


NOT_REACHED = "NCCL WARN socketStartConnect: Connect to 10.0.0.9<3> failed : Connection refused\n"
INTERNAL = "torch.distributed.DistBackendError: NCCL error in: odd.cpp:9, internal error, NCCL version 2.1\n"


@pytest.mark.parametrize(
    "shown",
    ["NCCL INFO NCCL_SOCKET_IFNAME set by environment to bond0", "export NCCL_SOCKET_IFNAME=bond0",
     "$ NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=bond0 deepspeed train.py"],
)  # fmt: skip
def test_an_interface_that_the_log_shows_is_to_be_checked_not_set(shown):
    found = diagnose_text(f"{shown}\n{NOT_REACHED}")
    assert "check that `NCCL_SOCKET_IFNAME=bond0` of this log names the interface" in found.change
    assert "set `NCCL_SOCKET_IFNAME` to" in diagnose_text(NOT_REACHED).change
    assert "set `NCCL_SOCKET_IFNAME` to" in diagnose_text(f"try NCCL_SOCKET_IFNAME=bond0\n{NOT_REACHED}").change


@pytest.mark.parametrize("name", ["NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE"])
def test_a_value_that_the_log_shows_is_no_remedy(name):
    assert f"`{name}=1` (set already)" in diagnose_text(f"export {name}=1\n{INTERNAL}").change
    for line in ("", f"export {name}=0\n"):
        change = diagnose_text(f"{line}{INTERNAL}").change
        assert f"{name}=1" in change
        assert "set already" not in change


@pytest.mark.parametrize("tool", ["zero_to_fp32", "ds_to_universal", "merge_lora"])
def test_a_program_of_one_process_below_a_launcher_of_ranks(tool):
    found = diagnose_text(f"{tool}.py: error: unrecognized arguments: --local_rank=1\n")
    assert (found.cause, found.confidence) == ("LG065", "likely")
    assert f"`python {tool}.py ...`" in found.change
    assert "parse it" in diagnose_text("train.py: error: unrecognized arguments: --local_rank=1\n").change


@pytest.mark.parametrize(
    "line",
    [
        "filelock.py - DEBUG: Attempting to acquire lock {n} on /nfs/odd/kernel.lock",
        "DEBUG:filelock:Lock {n} not acquired on /nfs/odd/kernel.lock, waiting 0.05 seconds ...",
        "[rank{n}] waiting for lock /nfs/odd/kernel.lock",
        "worker {n}: still waiting on the file lock: /nfs/odd/kernel.lock",
    ],
)
def test_a_log_that_ends_with_waits_for_a_lock_waits_for_it(line):
    waits = "".join(line.format(n=n) + "\n" for n in (3, 4))
    diagnosis = diagnose_text(f"all done\n{waits}")
    assert (diagnosis.state, diagnosis.cause, diagnosis.confidence) == ("failed", "LG026", "likely")
    assert "/nfs/odd/kernel.lock" in diagnosis.title
    assert decide_action(diagnosis).action == "change and retry"
    for healthy in (f"{waits}epoch 1\n", f"{waits}Lock 4 acquired on /nfs/odd/kernel.lock\n", line.format(n=3)):
        assert diagnose_text(healthy).state == "no failure seen"


@pytest.mark.parametrize(
    ("own", "wanted", "is_same"),
    [("11.7", "11.8", True), ("12.4", "12.1", True), ("9.1", "11.8", False), ("13.0", "12.8", False)],
)
def test_the_check_of_cuda_is_skipped_within_one_major_version_alone(own, wanted, is_same):
    said = (
        f"Installed CUDA version {own} does not match the version torch was compiled with {wanted}, unable to compile"
    )
    decision = decide_action(diagnose_text(f"Exception: >- DeepSpeed Op Builder: {said}\n"))
    assert (decision.changes == {"DS_SKIP_CUDA_CHECK": 1}) is is_same
    assert decision.action == "change and retry"


@pytest.mark.parametrize(("batch", "micro", "steps"), [(8, 2, 1), (64, 1, 4), (512, 8, 2)])
def test_one_rank_of_several_is_said_to_be_counted(batch, micro, steps):
    said = f"micro_batch_per_gpu * gradient_acc_step * world_size {batch} != {micro} * {steps} * 1"
    diagnosis = diagnose_text(
        f"AssertionError: Check batch related parameters. train_batch_size is not equal to {said}\n"
    )
    assert "counts one rank" in diagnosis.title
    assert "launcher" in diagnosis.change
    assert "counts one rank" not in diagnose_text(f"AssertionError: Check batch related parameters. train_batch_size is "
                                                  f"not equal to {said}6\n").title  # fmt: skip


@pytest.mark.parametrize(("cached", "is_much"), [("2.10", False), ("3.00", False), ("9.50", True)])
def test_a_few_percent_that_torch_keeps_are_no_fragmentation(cached, is_much):
    said = (
        "Tried to allocate 512.00 MiB (GPU 1; 79.15 GiB total capacity; 70.00 GiB already allocated; 10.00 MiB free; "
    )
    reserved = f"{70 + float(cached):.2f} GiB reserved in total by PyTorch)"
    notes = diagnose_text(f"torch.cuda.OutOfMemoryError: CUDA out of memory. {said}{reserved}\n").notes
    assert any("fragmentation" in note for note in notes) is is_much
    assert any("too little" in note for note in notes) is not is_much


@pytest.mark.parametrize(
    "shown", ["NPROC_PER_NODE=2 swift sft", "accelerate launch fit.py", "num_processes: 3", "--num_gpus=4"]
)
def test_a_command_with_ranks_is_no_single_process(shown):
    error = "RuntimeError: Error(s) in loading state_dict for Odd:\n  size mismatch for a.weight: copying a param with shape "
    error += "torch.Size([4]) from checkpoint, the shape in current model is torch.Size([0]).\n"
    assert any("python SCRIPT" in note for note in diagnose_text(error).notes)
    assert not any("python SCRIPT" in note for note in diagnose_text(f"{shown}\n{error}").notes)
