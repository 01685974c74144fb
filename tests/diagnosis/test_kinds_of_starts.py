# SPDX-License-Identifier: Apache-2.0
"""Failures of a job's start: a GPU, a command, a launcher, a port, an interface, and copies of other programs' code. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text, traceback_text

SET_DEVICE = ("torch/cuda/__init__.py", "set_device", "torch._C._cuda_setDevice(device)")
ORDINAL = "RuntimeError: CUDA error: invalid device ordinal"
EMPTY = "RuntimeError: 'weight' must be 2-D"


@pytest.mark.parametrize(
    ("code", "is_global"),
    [
        ("torch.cuda.set_device(odd_dist.get_rank())", True),
        ("torch.cuda.set_device(args.rank)", True),
        ("torch.cuda.set_device(int(os.environ['RANK']))", True),
        ('model.to(f"cuda:{rank}")', True),
        ("torch.cuda.set_device(args.local_rank)", False),
        ('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))', False),
        ("torch.cuda.set_device(odd_dist.get_local_rank())", False),
        ("torch.cuda.set_device(rank % gpus)", False),
        ("torch.cuda.set_device(7)", False),
    ],
)
def test_a_gpu_that_is_chosen_by_the_global_rank(code, is_global):
    diagnosis = diagnose_text(traceback_text([("/job/odd.py", "start", code), SET_DEVICE], ORDINAL))
    assert diagnosis.cause == "LG013"
    assert ("by the global rank (`" in diagnosis.title) is is_global
    assert (diagnosis.confidence == "certain") is ("local" in code.lower())
    assert ("LOCAL_RANK" in diagnosis.change) is ("local" not in code.lower())


def test_an_ordinal_without_code_is_not_certain_and_one_of_accelerate_is():
    assert diagnose_text(f"[rank9]: {ORDINAL}\n").confidence == "likely"
    frames = [("accelerate/state.py", "__init__", "torch.cuda.set_device(self.device)"), SET_DEVICE]
    assert diagnose_text(traceback_text(frames, ORDINAL)).confidence == "certain"
    cut = diagnose_text(traceback_text([("/job/odd.py", "start", "torch.cuda.set_device(rank)")], "").rstrip() + "\n")
    assert (cut.cause, "global rank" in cut.title) == ("LG013", True)


@pytest.mark.parametrize(
    ("frame", "cause", "words"),
    [
        (("/src/DeepSpeed/op_builder/odd_builder.py", "load", "from ...odd import x"), "LG089", "editable install"),
        (("/job/odd.py", "<module>", "from .data import x"), "LG065", "by itself"),
        (None, "LG065", "by itself"),
    ],
)
def test_a_relative_import_without_its_package(frame, cause, words):
    error = "ImportError: attempted relative import beyond top-level package"
    diagnosis = diagnose_text(traceback_text([frame], error) if frame else f"{error}\n")
    assert (diagnosis.cause, diagnosis.confidence, words in diagnosis.title) == (cause, "likely", True)
    assert decide_action(diagnosis).action == "change and retry"


@pytest.mark.parametrize(
    ("frames", "error", "words"),
    [
        (
            [("/job/tuner/odd_trainer.py", "_inner_training_loop", "if self.odd_sharding:")],
            "AttributeError: 'OddTrainer' object has no attribute 'odd_sharding'",
            "own copy of transformers' Trainer (`/job/tuner/odd_trainer.py`)",
        ),
        (
            [("/job/tuner/odd_trainer.py", "_inner_training_loop", "a, b = deepspeed_init(")],
            "TypeError: deepspeed_init() got an unexpected keyword argument 'resume_from_checkpoint'",
            "transformers 4.29 and older",
        ),
        (
            [
                ("/job/odd/modeling_odd.py", "forward", "self.inner(x, odd=1)"),
                ("transformers/odd.py", "forward", "f()"),
            ],
            "TypeError: OddLayer.forward() got an unexpected keyword argument 'odd'",
            "own code of a model (`/job/odd/modeling_odd.py`)",
        ),
        ([], "AttributeError: 'OddSeqTrainer' object has no attribute 'is_odd_enabled'", "own copy of transformers' Trainer"),
    ],
)  # fmt: skip
def test_a_program_with_a_copy_of_transformers_code(frames, error, words):
    diagnosis = diagnose_text(traceback_text(frames, error) if frames else f"{error}\n")
    assert words in diagnosis.title
    assert "the program names in its requirements" in diagnosis.change
    assert (diagnosis.confidence, decide_action(diagnosis).action) == ("likely", "change and retry")


def test_a_frame_of_the_installed_transformers_is_no_copy():
    frames = [("transformers/trainer.py", "_inner_training_loop", "if self.odd:")]
    error = "AttributeError: 'OddTrainer' object has no attribute 'odd'"
    assert "own copy of transformers' Trainer (`" not in diagnose_text(traceback_text(frames, error)).title


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("go/fit.sh: line 9: deepspeed: command not found", "deepspeed"),
        ("bash: accelerate: command not found", "accelerate"),
        ("/bin/sh: 1: torchrun: not found", "torchrun"),
        ("zsh: command not found: deepspeed", "deepspeed"),
        ("fit.sh: line 3: llamafactory-cli: command not found", "llamafactory-cli"),
        ("/bin/sh: 1: odd-tool: not found", "odd-tool"),
        ("fit.sh: 12: odd-tool: not found", "odd-tool"),
        ("zsh: command not found: odd-tool", "odd-tool"),
    ],
)
def test_a_command_that_the_shell_does_not_find(line, name):
    diagnosis = diagnose_text(f"+ start\n{line}\n")
    assert (diagnosis.cause, f"the command `{name}`" in diagnosis.title) == ("LG064", True)
    assert "PATH" in diagnosis.title
    assert decide_action(diagnosis).action == "change and retry"
    assert diagnose_text(f"{line}\n" + "{'loss': 2.0, 'epoch': 0.1}\n" * 9).state != "failed" or "odd" not in name


SIZES = """  Instantaneous batch size per device = {size}
  Total train batch size (w. parallel, distributed & accumulation) = 4
  Gradient Accumulation steps = 1
"""


@pytest.mark.parametrize(
    ("lines", "is_alone"),
    [
        (SIZES.format(size=4), True),
        (SIZES.format(size=2), False),
        ("local_rank: -1, device: cuda:0, n_gpu: 1, distributed training: False\n", True),
        (SIZES.format(size=4) + "launched by torchrun\n", False),
        ("", False),
    ],
)
def test_one_process_without_a_launcher(lines, is_alone):
    frames = [("/job/odd.py", "main", "run()"), ("torch/nn/functional.py", "embedding", "return embed(w)")]
    diagnosis = diagnose_text(lines + traceback_text(frames, EMPTY))
    assert diagnosis.cause == "LG083"
    assert diagnosis.title.startswith("no launcher started") is is_alone
    assert "torchrun" in diagnosis.change
    ranks = "".join(f"[rank1]: {line}\n" for line in traceback_text(frames, EMPTY).splitlines())
    assert not diagnose_text(lines + ranks).title.startswith("no launcher started")


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: Address already in use",
        "RuntimeError: The server socket has failed to bind to [::]:29511 (errno: 98 - Address already in use).",
        "[E socket.cpp:9] [c10d] The server socket has failed to listen on any local network address.",
    ],
)
def test_a_port_in_use_is_a_change_and_may_be_this_jobs_own(line):
    diagnosis = diagnose_text(f"{line}\n")
    assert (diagnosis.cause, decide_action(diagnosis).action) == ("LG066", "change and retry")
    assert diagnosis.change.startswith("end the process that holds it")
    assert "of this job start" in diagnosis.change


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("The client socket has failed to connect to n9:29511 (errno: 113 - No route to host).", "change and retry"),
        ("The client socket has timed out after 600s while trying to connect to (n9, 29511).", "retry"),
    ],
)
def test_a_host_that_cannot_be_reached_is_no_matter_of_time(line, action):
    diagnosis = diagnose_text(f"torch.distributed.DistNetworkError: {line}\n")
    assert (diagnosis.cause, decide_action(diagnosis).action) == ("LG067", action)


LOST = "NCCL error in: ../odd.cpp:9, remote process exited or there was a network error, NCCL version 2.18.6\n"


def test_the_interface_comes_first_where_no_step_has_passed():
    alone = diagnose_text(f"torch.distributed.DistBackendError: {LOST}")
    assert (alone.cause, alone.title.startswith("hosts do not reach each other")) == ("LG073", True)
    assert "NCCL_SOCKET_IFNAME" in alone.change
    named = diagnose_text(f"export NCCL_SOCKET_IFNAME=odd7; fit\ntorch.distributed.DistBackendError: {LOST}")
    assert named.title.startswith("hosts do not reach each other by `odd7`")
    assert "odd7" not in decide_action(named).changes.values()  # what failed is no remedy
    steps = "{'loss': 2.0, 'epoch': 0.1}\n" * 9
    assert "hosts" not in diagnose_text(f"{steps}torch.distributed.DistBackendError: {LOST}").title


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("Fatal Python error: Segmentation fault", "LG018"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "LG017"),
        ("RuntimeError: DataLoader worker (pid 7) exited unexpectedly", "LG215"),
    ],
)
def test_a_crash_before_a_step_is_a_change_and_one_after_steps_is_retried(line, cause):
    early = diagnose_text(f"{line}\n")
    late = diagnose_text("{'loss': 2.0, 'epoch': 0.1, 'step': 7}\n" * 9 + f"{line}\n")
    assert (early.cause, late.cause) == (cause, cause)
    assert [decide_action(each).action for each in (early, late)] == ["change and retry", "retry"]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("/usr/bin/env: 'odd-fit': No such file or directory", "odd-fit"),
        ("slurmstepd: error: execve(): torchrun: No such file or directory", "torchrun"),
        ("'deepspeed' is not recognized as an internal or external command,", "deepspeed"),
    ],
)
def test_a_command_that_another_starter_does_not_find(line, name):
    diagnosis = diagnose_text(f"{line}\n")
    assert (diagnosis.cause, diagnosis.confidence, f"`{name}`" in diagnosis.title) == ("LG064", "likely", True)
    assert decide_action(diagnosis).action == "change and retry"


@pytest.mark.parametrize(
    ("line", "cause", "words"),
    [
        ("AttributeError: 'Namespace' object has no attribute 'odd_rank'", "LG065", "reads `odd_rank` of its command line"),
        ("AttributeError: 'DeepSpeedPlugin' object has no attribute 'odd'", "LG227", "accelerate's `DeepSpeedPlugin`"),
        ("subprocess.CalledProcessError: Command '['which', 'odd-cc']' returned non-zero exit status 1.", "LG064",
         "`odd-cc` is not on the PATH"),
        ("*** Error in `python': free(): invalid pointer: 0x00007f10 ***", "LG018", "native code"),
    ],
)  # fmt: skip
def test_what_an_environment_or_a_parser_lacks(line, cause, words):
    diagnosis = diagnose_text(f"{line}\n")
    assert (diagnosis.cause, diagnosis.confidence, words in diagnosis.title) == (cause, "likely", True), diagnosis.title
    assert decide_action(diagnosis).action == "change and retry"


@pytest.mark.parametrize(("count", "cause"), [(1, "LG066"), (2, "LG150")])
def test_several_processes_that_are_each_rank_0(count, cause):
    line = "[comm.py:9:mpi_discovery] Discovered MPI settings of world_rank=0, local_rank=0, world_size=1, odd=1\n"
    diagnosis = diagnose_text(line * count + "RuntimeError: Address already in use\n")
    assert (diagnosis.cause, decide_action(diagnosis).action) == (cause, "change and retry")
