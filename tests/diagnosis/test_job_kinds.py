# SPDX-License-Identifier: Apache-2.0
"""Failures by kind, each with siblings of the message: a size of 0, "auto", pinned memory, packed rows, images."""

from __future__ import annotations

import io
import re
import signal

import pytest

from harness.diagnosis import diagnose
from harness.diagnosis.catalogue import CATALOGUE
from harness.diagnosis.decision import decide_action
from harness.entry_file import read_entries
from tests.support.tracebacks import traceback_text

SCRIPT = ("/w/train.py", "main", "y = run(x)")
CONFIG = ("/venv/deepspeed/runtime/config.py", "_set_batch_related_parameters", "x = train_batch // self.world_size")
PINNED = ("/venv/deepspeed/runtime/zero/stage_1_and_2.py", "__init__", "self.buffer = torch.zeros(n).pin_memory()")
MODEL = ("/venv/transformers/models/some/modeling_some.py", "forward", "raise ValueError(")
TIMEOUT = (
    "[rank1]:[E512 11:02:01.482 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=31, OpType=_ALLGATHER_BASE, NumelIn=16, NumelOut=64, Timeout(ms)=600000) ran for 600028 "
    "milliseconds before timing out.\n"
)


def answer(frame, error):
    return diagnose([io.BytesIO(traceback_text([frame], error).encode())])


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: size mismatch, got input (18944), mat (18944x8), vec (0)",
        "RuntimeError: size mismatch, got input (0), mat (0x8), vec (8)",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (512x4096 and 0x16)",
        "RuntimeError: The size of tensor a (4096) must match the size of tensor b (0) at non-singleton dimension 0",
        "RuntimeError: The expanded size of the tensor (4096) must match the existing size (0) at dimension 0",
    ],
)
def test_a_size_of_zero_is_a_partitioned_parameter(error):
    assert answer(SCRIPT, error).cause == "LG083"


@pytest.mark.parametrize(
    "error",
    [
        "TypeError: unsupported operand type(s) for //: 'str' and 'int'",
        "TypeError: '>' not supported between instances of 'str' and 'int'",
        "TypeError: '<=' not supported between instances of 'int' and 'str'",
        "TypeError: unsupported operand type(s) for -: 'str' and 'str'",
    ],
)
def test_a_text_in_a_computation_is_an_auto(error):
    assert "auto" in answer(CONFIG, error).title


@pytest.mark.parametrize("frame", [PINNED, ("torch/utils/data/_utils/pin_memory.py", "pin_memory", "x.pin_memory()")])
def test_pinned_memory_is_the_hosts(frame):
    assert answer(frame, "RuntimeError: CUDA error: out of memory").cause == "LG004"
    assert answer(SCRIPT, "RuntimeError: CUDA error: out of memory").cause == "LG001"


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("ValueError: `token_type_ids` is required as a model input when training", "token_type_ids"),
        ("ValueError: 'mm_token_type_ids' are required as model inputs", "mm_token_type_ids"),
        ("ValueError: `position_ids` is required for training", "position_ids"),
    ],
)
def test_a_column_that_the_model_needs(error, name):
    diagnosis = answer(MODEL, error)
    assert diagnosis.cause == "LG189"
    assert f"lacks `{name}`" in diagnosis.title


@pytest.mark.parametrize(
    "error",
    [
        "NotImplementedError: causal_conv1d_fn can't keep packed sequences apart without seq_idx",
        "ValueError: packed sequences are not supported by this attention",
        "NotImplementedError: this mixer does not support packing",
    ],
)
def test_packed_rows_and_a_layer_without_bounds(error):
    assert "packing: false" in answer(MODEL, error).change


def test_one_process_without_a_launcher_is_said():
    error = "RuntimeError: 'weight' must be 2-D"
    assert any("no line shows a launcher" in note for note in answer(SCRIPT, error).notes)
    launched = "[2025-01-01 10:00:00,000] [INFO] [launch.py:256:main] process 7 spawned\n"
    log = launched + traceback_text([SCRIPT], error)
    assert not any("no line shows" in note for note in diagnose([io.BytesIO(log.encode())]).notes)


@pytest.mark.parametrize("word", ["'pixel_values': torch.Size([1, 3])", "image_processor = x", "model.vision_tower"])
def test_a_wait_in_a_job_with_images(word):
    notes = diagnose([io.BytesIO(f"{word}\n{TIMEOUT}".encode())]).notes
    assert any("give every batch an image" in note for note in notes)
    assert not any("image" in note for note in diagnose([io.BytesIO(TIMEOUT.encode())]).notes)


PORT_TAKEN = (
    "[E socket.cpp:435] [c10d] The server socket has failed to listen on any local network address.\n"
    "RuntimeError: The server socket has failed to bind to [::]:29507 (errno: 98 - Address already in use).\n"
)


@pytest.mark.parametrize(
    ("command", "is_several"),
    [
        ("+ srun -p odd -n 4 --gres=gpu:4 python fit.py", True),
        ("$ mpirun -np 8 deepspeed fit.py", True),
        ("srun --ntasks-per-node=2 bash go.sh", True),
        ("srun -N 4 -n 4 torchrun fit.py", False),
        ("srun -n 1 --gres=gpu:8 deepspeed fit.py", False),
        ("deepspeed --num_gpus 8 fit.py", False),
    ],
)
def test_several_copies_of_a_launcher_want_one_port(command, is_several):
    diagnosis = diagnose([io.BytesIO(f"{command}\n{PORT_TAKEN}".encode())])
    assert diagnosis.cause == ("LG150" if is_several else "LG066")
    assert decide_action(diagnosis).action == "change and retry"
    assert ("starts several copies" in diagnosis.title) is is_several
    assert diagnosis.confidence == "likely"
    assert diagnosis.is_named is not is_several


@pytest.mark.parametrize("line", ['"overlap_comm": true', "stage=2 overlap_comm=True x=1", "  overlap_comm ..... True"])
def test_nan_beside_overlapped_reductions_names_them_first(line):
    losses = "".join(f"{{'loss': {loss}, 'grad_norm': nan, 'epoch': 0.1}}\n" for loss in (2.5, 0.0, 0.0))
    build = "[INFO] [engine.py:1:_configure] Creating torch.bfloat16 ZeRO stage 2 optimizer\n"
    diagnosis = diagnose([io.BytesIO(f"{build}{line}\n{losses}".encode())])
    assert diagnosis.change.startswith("set `overlap_comm: false`")
    assert (diagnosis.confidence, diagnosis.phase) == ("likely", None)
    other = diagnose([io.BytesIO(f"{build}{line.replace('rue', 'est')}\n{losses}".encode())])
    assert not other.change.startswith("set `overlap_comm: false`")


@pytest.mark.parametrize("step", [0, 343, 3606])
def test_another_order_of_modules_is_an_observation(step):
    log = f"loss: 1.5\nInvalidate trace cache @ step {step}: expected module 3, but got module 9\nloss: 1.4\n"
    diagnosis = diagnose([io.BytesIO(log.encode())])
    assert diagnosis.state == "no failure seen"
    assert any(note.startswith("observation: ZeRO-3 ran modules in another order") for note in diagnosis.notes)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("ERR cli.py:71 -- Job 'odd' failed\nINFO cli.py:83 -- Status message: Job entrypoint command failed with exit "
         "code 137, last available logs", "LG003"),
        ("Status message: Job entrypoint command failed with exit code 2", "LG074"),
        ("(odd pid=9) Refer to the documentation on how to address the out of memory issue: https://odd", "LG002"),
    ],
)  # fmt: skip
def test_what_ray_says_of_its_job(line, cause):
    assert diagnose([io.BytesIO(f"{line}\n".encode())]).cause == cause


@pytest.mark.parametrize("model", ["Mixtral-8x7B", "Qwen3-30B-A3B", "num_experts=8"])
def test_a_bar_that_stands_in_a_job_with_experts(model):
    log = (
        f"train.py --deepspeed ds_zero3.json --model {model}\nNum examples = 9\n  0%|          | 0/98 [00:00<?, ?it/s]"
    )
    assert any("set_z3_leaf_modules" in note for note in diagnose([io.BytesIO(log.encode())]).notes)
    went_on = log + "\n  1%|          | 1/98 [00:09<14:33, 9.0s/it]"
    assert not any("set_z3_leaf" in note for note in diagnose([io.BytesIO(went_on.encode())]).notes)
    other = log.replace("zero3", "zero2")
    assert not any("set_z3_leaf" in note for note in diagnose([io.BytesIO(other.encode())]).notes)


@pytest.mark.parametrize("word", ["import torch_npu", "ASCEND_RT_VISIBLE_DEVICES=0", "npu-smi info"])
def test_an_npu_with_a_backend_for_nvidia(word):
    error = "RuntimeError: Distributed package doesn't have NCCL built in\n"
    diagnosis = diagnose([io.BytesIO(f"{word}\n{error}".encode())])
    assert (diagnosis.cause, diagnosis.confidence, "NPU" in diagnosis.title) == ("LG211", "likely", True)
    assert "NPU" not in diagnose([io.BytesIO(error.encode())]).title


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("HIP error: an illegal memory access was encountered", "LG017"),
        ("HIP error: out of memory", "LG001"),
        ("HIP error: invalid device function", "LG011"),
    ],
)
def test_errors_of_hip_are_those_of_cuda(error, cause):
    assert diagnose([io.BytesIO(f"RuntimeError: {error}\n".encode())]).cause == cause


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("ValueError: Free memory on device (9.0/23.5 GiB) on startup is less than desired GPU memory utilization (0.9)",
         "LG001"),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "LG001"),
        ("RuntimeError: Engine core initialization failed. See root cause above.", "LG074"),
    ],
)  # fmt: skip
def test_what_vllm_says_beside_a_training(error, cause):
    diagnosis = answer(SCRIPT, error)
    assert (diagnosis.cause, diagnosis.confidence, "vLLM" in diagnosis.title) == (cause, "likely", True)


@pytest.mark.parametrize("row", ["'loss': 0.0, 'grad_norm': nan", "'loss': '0.0', 'grad_norm': 'nan'"])
def test_a_loss_of_0_beside_a_norm_of_nan_is_filtered(row):
    log = f"{{'loss': 2.5, 'grad_norm': nan, 'epoch': 0.1}}\n{{{row}, 'epoch': 0.2}}\n"
    assert any("logging_nan_inf_filter" in note for note in diagnose([io.BytesIO(log.encode())]).notes)
    other = log.replace("0.0", "0.3")
    assert not any("logging_nan_inf_filter" in note for note in diagnose([io.BytesIO(other.encode())]).notes)


@pytest.mark.parametrize("names", ["user_script", "--odd-path, --odd-name", "odd_file"])
def test_a_command_names_what_it_lacks(names):
    text = f"usage: odd [-h]\nodd: error: the following arguments are required: {names}\n"
    assert diagnose([io.BytesIO(text.encode())]).title == f"the command lacks {names}"


@pytest.mark.parametrize(
    ("log", "cause", "words"),
    [
        (
            'Traceback (most recent call last):\n  File "/w/odd.py"\n    require_version("oddpack>=4.2", "To fix: ...")\n',
            "LG227",
            "`oddpack>=4.2` is required",
        ),
        (
            "Traceback (most recent call last)\n| /v/transformers/modeling_utils.py:23 in from_pretrained |\n"
            '|   24 |   |   "DeepSpeed Zero-3 is not compatible with `low_cpu_mem_usage=True` or |\n'
            '  File "/v/transformers/modeling_utils.py", line 23, in from_pretrained\n',
            "LG183",
            "device_map",
        ),
        (
            'While copying the parameter named "odd.weight", whose dimensions are [8], an exception occurred : (\'Ca\n'
            "nnot copy out of meta tensor; no data!',).\n",
            "LG207",
            "the meta device",
        ),
        (
            'Thread 7 (idle): "MainThread"\n    wait (torch/utils/file_baton.py:42)\n    main (odd.py:3)\n'
            'Traceback (most recent call last):\n  File "/w/odd.py", line 3, in <module>\n',
            "LG026",
            "the file `lock`",
        ),
        (
            "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--evaluation_strategy', 'no']\n",
            "LG065",
            "`eval_strategy` since",
        ),
        (
            "[WARNING] Unable to find hostfile, will proceed with training with local resources only.\n"
            "Detected CUDA_VISIBLE_DEVICES=3: setting --include=localhost:3\nTraceback (most recent call last):\n"
            '  File "/v/deepspeed/launcher/runner.py", line 349, in parse_inclusion_exclusion\n'
            "    return parse_resource_filter(active_resources, include_str=inclusion, exclude_str=exclusion)\n",
            "LG061",
            "--include=localhost:3",
        ),
        (
            "[1:0]:Caught signal 11 (Segmentation fault: address not mapped to object at address 0x14)\n"
            "[1:0]: 1 0x0000000000000e00 ucp_odd_wireup()  /src/hpcx/ucx/src/ucp/odd.c:13\n",
            "LG018",
            "native code of UCX",
        ),
        (
            "[rank0]: OddForCausalLM LOAD REPORT from: org/odd-9B\nKey | Status |\n------+-----\n"
            "model.language_model.layers.{0...7}.mlp.up_proj.weight | MISSING |\n",
            "LG204",
            "when ZeRO-3 is set up before the load",
        ),
    ],
)
def test_what_a_cut_quote_still_shows_is_the_cause(log, cause, words):
    diagnosis = diagnose([io.BytesIO(log.encode())])
    assert (diagnosis.cause, words in diagnosis.title, diagnosis.confidence) == (cause, True, "likely")


@pytest.mark.parametrize("field", ["words", "no words"])
def test_no_pattern_reads_a_long_line_again_and_again(field):
    """A pattern that starts anew at each character of a line of 20,000 takes seconds; each takes milliseconds."""

    def give_up(*_):
        raise TimeoutError(f"more than a second of CPU time: {pattern.pattern!r}")

    lines = [unit * (20_000 // len(unit)) + b"\n" for unit in (b"x", b"- ", b"word_", b"1, ", b"/ab", b"--x ")]
    before = signal.signal(signal.SIGVTALRM, give_up)
    try:
        for kind in read_entries(CATALOGUE / "phases" / "job_kinds.txt").values():
            pattern = re.compile(kind.get(field, "").encode())
            signal.setitimer(signal.ITIMER_VIRTUAL, 1)
            for line in lines:
                pattern.search(line)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
