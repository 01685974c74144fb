# SPDX-License-Identifier: Apache-2.0
"""Kinds that a frame, a command or a caught exception tells, each with siblings that no row names. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text, traceback_text

SITE = "/opt/py/lib/python3.11/site-packages"
MAIN = ("/job/fit.py", "<module>", "main()")
EMPTY = "RuntimeError: 'weight' must be 2-D"
BAR = "\u2500" * 72
TIMEOUT = "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout"  # fmt: skip


@pytest.mark.parametrize(
    ("error", "frames", "cause", "words"),
    [
        (EMPTY, [("/job/fit.py", "main", "x()"), (f"{SITE}/diffusers/pipelines/odd.py", "encode_prompt", "x()")], "LG083",
         "second model (an encoder"),
        (EMPTY, [("/job/fit.py", "get_text_embeds", "x()"), (f"{SITE}/odd/nn.py", "forward", "x()")], "LG083", "second model"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 0x16)",
         [("/job/teacher_loss.py", "loss", "t(x)"), (f"{SITE}/odd/nn.py", "forward", "x()")], "LG083", "second model"),
        ("RuntimeError: The size of tensor a (0) must match the size of tensor b (64) at non-singleton dimension 1",
         [(f"{SITE}/peft/tuners/odd.py", "merge", "w += d")], "LG201", "merged into weights of size 0"),
        ("RuntimeError: The size of tensor a (0) must match the size of tensor b (64) at non-singleton dimension 1",
         [(f"{SITE}/peft/tuners/odd.py", "unmerge", "w -= d")], "LG201", "merged into weights of size 0"),
        ("TypeError: unsupported operand type(s) for //: 'NoneType' and 'int'", [("/job/b.py", "f", "n = args.odd // 2")],
         "LG065", "not set"),
        ("TypeError: '<' not supported between instances of 'NoneType' and 'int'", [("/job/b.py", "f", "if cfg.odd < 2:")],
         "LG065", "not set"),
        ("ValueError: unexpected odd model: <class 'torch.nn.parallel.distributed.DistributedDataParallel'>", [], "LG120",
         "got its wrapper (`DistributedDataParallel`)"),
        ("TypeError: model must be an OddModel, not DeepSpeedEngine", [("/job/hook.py", "save", "raise TypeError(")], "LG120",
         "got its wrapper (`DeepSpeedEngine`)"),
        ("AttributeError: 'OddOptim' object has no attribute 'odd_bits'", [(f"{SITE}/accelerate/utils/odd.py", "remap", "o.odd_bits")],
         "LG227", "`accelerate` (`remap`) reads `odd_bits`"),
        ("RuntimeError: 0 active drivers ([]). There should only be one.", [(f"{SITE}/triton/d.py", "make", "raise")], "LG089",
         "finds no GPU"),
        ("TypeError: output tensor must have the same type as input tensor", [(f"{SITE}/torch/odd.py", "gather", "x")], "LG081",
         "tensors of two dtypes"),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:2, unhandled cuda error (run with NCCL_DEBUG=INFO), NCCL version 2.2",
         [(f"{SITE}/torch/distributed/distributed_c10d.py", "_new_process_group_helper", "b.eager_connect_single_device(i)")],
         "LG210", "`device_id`"),
        (TIMEOUT, [(f"{SITE}/odd/args.py", "main_process_first", "barrier()")], "LG070", "`main_process_first`"),
        (TIMEOUT, [("/job/u.py", "torch_distributed_zero_first", "dist.barrier()")], "LG070", "`torch_distributed_zero_first`"),
        ("AssertionError: Not sure how to proceed, we were given deepspeed configs in the deepspeed arguments and "
         "deepspeed.initialize() function call", [("/job/megatron/training.py", "setup", "deepspeed.initialize(")], "SP022",
         "since 0.9"),
        ("RuntimeError: context has already been set", [], "LG216", "set twice"),
        ("RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at \"x.cpp\":49, device=5, num_gpus=2", [],
         "LG013", "GPU 5"),
        ("RuntimeError: Error(s) in loading state_dict for Odd:\n\tsize mismatch for a.modules_to_save.default.weight: copying a "
         "param with shape torch.Size([0]) from checkpoint, the shape in current model is torch.Size([8, 4]).", [], "LG203",
         "saved under ZeRO-3 without gathering"),
    ],
)  # fmt: skip
def test_a_frame_or_the_words_tell_the_kind(error, frames, cause, words):
    diagnosis = diagnose_text(traceback_text([MAIN, *frames], error))
    assert (diagnosis.cause, words in diagnosis.title) == (cause, True), (diagnosis.cause, diagnosis.title)
    assert decide_action(diagnosis).action == "change and retry"


def test_the_models_own_frames_are_no_second_model():
    frames = [MAIN, (f"{SITE}/odd/modeling_odd.py", "forward", "self.embed(x)")]
    assert "second model" not in diagnose_text(traceback_text(frames, EMPTY, 0)).title
    reader = [MAIN, ("/job/own/model.py", "f", "o.odd_bits")]
    odd = diagnose_text(traceback_text(reader, "AttributeError: 'OddOptim' object has no attribute 'odd_bits'", 0))
    assert "reads `odd_bits`" not in odd.title


@pytest.mark.parametrize(
    ("lines", "text", "cause", "words"),
    [
        ("$ llamafactory-cli train odd.yaml", traceback_text([MAIN], EMPTY, 0), "LG083", "no launcher started"),
        ("$ CUDA_VISIBLE_DEVICES=0,1 python odd_train.py --z3", traceback_text([MAIN], EMPTY, 0), "LG083", "no launcher started"),
        ("--use_odd true --use_unsloth true", "ValueError: DeepSpeed Zero-3 is not compatible with passing a `device_map`.\n",
         "LG183", "unsloth"),
        ("spawned with command: ['python', '-u', 'fit.py', '--local_rank=0', 'runs/odd.json']",
         "fit.py: error: the following arguments are required: --out\n", "LG065", "before `runs/odd.json`"),
        ("[1/2] :/usr/local/cuda/bin/nvcc -c odd.cu", "RuntimeError: Error building extension 'odd_op'\n", "LG024",
         "calls `:/usr/local/cuda/bin/nvcc`"),
        ("Emitting /r/torch_extensions/py310_cu117/odd/build.ninja", "RuntimeError: Error building extension 'odd_op'\n",
         "LG024", "CUDA 11.7"),
        ("Emitting /r/torch_extensions/py312_cu124/odd/build.ninja", "RuntimeError: Error building extension 'odd_op'\n",
         "LG024", "CUDA 12.4"),
        ("Token indices sequence length is longer than the specified maximum sequence length for this model (99 > 64)",
         "x/Indexing.cu:12: indexSelectSmallIndex: block: [9,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n", "LG014",
         "(99)"),
        ("deepspeed==0.13.1", "| 3 | NaN |\n| 4 | NaN |\n", "LG229", "DeepSpeed 0.13.1"),
    ],
)  # fmt: skip
def test_what_the_log_shows_besides_tells_the_kind(lines, text, cause, words):
    diagnosis = diagnose_text(f"{lines}\n{text}")
    assert (diagnosis.cause, words in diagnosis.title) == (cause, True), (diagnosis.cause, diagnosis.title)
    assert decide_action(diagnosis).action == "change and retry"
    other = diagnose_text(f"nothing\n{text}") if text else diagnosis
    assert words not in other.title


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        ("".join(f"WARNING: tokenization mismatch: {n} vs. {n + 3}. (ignored)\n" for n in range(12)), "LG230", "masked whole"),
        ("UserWarning: None of the inputs have requires_grad=True. Gradients will be None\n"
         + "{'loss': 0.0, 'grad_norm': 0.0}\n" * 4, "LG195", "nothing is trained"),
        ("Error computing odd_logps: pop from an empty deque. Setting output to zero.\n", "LG101", "catches the exception"),
        ("Using /r/torch_extensions/py310 as PyTorch extensions root...\n", "LG026", "lock file"),
    ],
)  # fmt: skip
def test_lines_in_place_of_an_error(text, cause, words):
    diagnosis = diagnose_text(f"start\n{text}")
    assert (diagnosis.state, diagnosis.cause, diagnosis.confidence) == ("failed", cause, "likely")
    assert words in diagnosis.title
    assert diagnose_text("start\nWARNING: tokenization mismatch: 3 vs. 4. (ignored)\n").state == "no failure seen"


def test_the_box_of_rich_has_frames():
    box = "".join(
        f"\u2502 {row.ljust(70)} \u2502\n"
        for row in (
            "/job/fit.py:12 in main",
            "\u2771 12 \u2502   engine.step()",
            "/opt/py/odd/odd_accelerator.py:217 in",
            "pin_memory",
            "  216 \u2502   a = 1",
            "\u2771 217 \u2502   \u2502   return tensor.pin_memory()",
        )
    )
    diagnosis = diagnose_text(f"{box}\u2570{BAR}\u256f\nRuntimeError: CUDA error: out of memory\n")
    assert (diagnosis.cause, decide_action(diagnosis).changes) == ("LG004", {"pin_memory": False})
    assert diagnosis.where == "/opt/py/odd/odd_accelerator.py:217 in pin_memory"
    alone = diagnose_text(
        "\u2502 \u2771 217 \u2502   return tensor.pin_memory()   \u2502\nRuntimeError: CUDA error: out of memory\n"
    )
    assert alone.cause == "LG004"
    assert diagnose_text("RuntimeError: CUDA error: out of memory\n").cause == "LG001"


@pytest.mark.parametrize(
    ("text", "cause", "action"),
    [
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:7, unhandled cuda error, NCCL version 2.2\nncclUnhandledCudaError: "
         "Call to CUDA function failed.\nLast error:\nCuda failure 802 'system not yet initialized'\n", "LG012", "retry elsewhere"),
        (" * Restarting with watchdog (inotify)\n[E socket.cpp:4] [c10d] The server socket has failed to listen on any local "
         "network address.\n", "LG150", "change and retry"),
        ("a:1:2 [0] x.cc:9 NCCL WARN NET/IB : Got async event : port error\n", "LG254", "retry elsewhere"),
        ("a:1:2 [0] x.cc:9 NCCL WARN NET/IB : odd_3:1 Got async error event: port error\na:1:2 [0] x.cc:9 NCCL WARN NET/IB : "
         "odd_3:1 Got async error event: port active\n", "LG072", "retry"),
        ("Running tokenizer on dataset:   9%|# | 28/296 [29:55<4:48:08, 155.57 examples/s][E x.cpp:475] [Rank 2] Watchdog caught "
         "collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for "
         "1800001 milliseconds before timing out.\n", "LG070", "change and retry"),
    ],
)  # fmt: skip
def test_hosts_and_waits_decide(text, cause, action):
    diagnosis = diagnose_text(f"start\n{text}")
    assert (diagnosis.cause, decide_action(diagnosis).action) == (cause, action), diagnosis.title


@pytest.mark.parametrize(
    "text",
    [
        "{'train_runtime': 9}\nRead callback failed. code:-4095 name:EOF desc:end of file\n",
        "[INFO:odd] End time of running main: 2026-02-05\n[F205 x.cpp:1614] [Rank 2] Heartbeat monitor timed out! Process will be terminated\n",
    ],
)
def test_what_follows_a_complete_run_is_no_failure(text):
    assert diagnose_text(f"{{'loss': 2.0}}\n{text}").state != "failed"
