# SPDX-License-Identifier: Apache-2.0
"""Kinds of logs that a rule tells by the place of a failure or by who writes its lines, each with siblings. Needs nothing."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import SITE, diagnose_text, traceback_text

MAIN = ("/job/fit.py", "<module>", "main()")
COLLATE = ("/job/data.py", "collate", "row = rows[7]")
ODD = traceback_text([MAIN, COLLATE], "LookupError: odd thing 7 is even")
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
TRAINED = "{'loss': 1.2, 'grad_norm': 0.7, 'epoch': 0.4}\n"


def answer(frames, error, before="", rank=None):
    """(diagnosis, action) of a log with one traceback below MAIN."""
    diagnosis = diagnose_text(before + traceback_text([MAIN, *frames], error, rank))
    decision = decide_action(diagnosis)
    return diagnosis, decision.action if decision else None


def prefixed(text, prefix):
    """Each line with a prefix; `{}` in it is the number of the line."""
    return "".join(f"{prefix.format(number)}{line}\n" for number, line in enumerate(text.splitlines(), 900))


@pytest.mark.parametrize(
    "prefix",
    [
        "[err, 11:48, {}s, node7] ",
        "2026-03-01T11:02:07.123456{}Z stderr F ",
        "node-0: ",
        "(RayTrainWorker pid=4411) ",
        "(TrainWorker(rank=2) pid=77, ip=10.0.0.3) ",
        "(Worker_DP1_EP7 pid=6088) ERROR 11-05 17:47:06 [multiproc_executor.py:699] ",
        "worker-1 | ",
        "trainer_1  | ",
        "1: ",
        "[stderr][{}] ",
        "2024/03/01 11:02:{} STDERR ",
        "*fit/3* >> ",
        "> ",
    ],
)
def test_a_prefix_of_any_launcher_hides_no_traceback(prefix):
    diagnosis = diagnose_text(prefixed("Reading part 1\n" * 12 + ODD, prefix))
    assert (diagnosis.state, diagnosis.message) == ("failed", "LookupError: odd thing 7 is even")
    assert diagnosis.where == "/job/data.py:2 in collate"


def test_lines_of_two_writers_are_told_apart_by_their_prefixes():
    other = traceback_text([MAIN, ("/job/b.py", "load", "f()")], "OddError: second")
    for names in (("[job 17/0] ", "[job 17/1] "), ("<a.0> ", "<b.0> ")):
        pairs = zip(ODD.splitlines(), other.splitlines(), strict=True)
        text = "".join(f"{names[0]}{first}\n{names[1]}{second}\n" for first, second in pairs)
        diagnosis = diagnose_text(text)
        assert diagnosis.where == "/job/data.py:2 in collate"
        assert diagnosis.message == "LookupError: odd thing 7 is even"


def test_a_learnt_prefix_tells_the_rank():
    assert diagnose_text(prefixed(ODD, "(head, rank=3, pid=2230) ")).rank == 3
    assert diagnose_text(prefixed(ODD, "trainer | [rank5]: ")).rank == 5


def test_one_line_with_text_before_a_traceback_teaches_no_prefix():
    text = "".join(f"call(){line}\n" if line.startswith("Trace") else f"{line}\n" for line in ODD.splitlines())
    assert diagnose_text(text).where == "/job/data.py:2 in collate"


RENDEZVOUS = (f"{SITE}/torch/distributed/rendezvous.py", "_create_c10d_store", "return TCPStore(")


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("172.17.0.3", "torch.distributed.DistBackendError: NCCL error in: x.hpp:268, unhandled system error, NCCL version "
         "2.20.5\nLast error:\nsocketStartConnect: Connect to {}<45871> failed : Connection refused"),
        ("172.18.0.2", "RuntimeError: [/gloo/transport/tcp/pair.cc:144] no error: connect timeout to remote=[{}]:33471"),
        ("172.17.0.2", "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to "
         "connect to ({}, 29500)."),
        ("127.0.1.1", "RuntimeError: [/gloo/transport/tcp/pair.cc:724] connect [{}]:3210: Connection refused"),
        ("0aeb5a3f77c1", "torch.distributed.DistNetworkError: The client socket has timed out after 300000ms while trying to "
         "connect to ({}, 41331)."),
        ("192.168.122.1", "torch.distributed.DistNetworkError: The client socket has failed to connect to any network "
         "address of ({}, 29500)."),
    ],
)  # fmt: skip
def test_an_address_of_a_bridge_is_no_firewall(address, error):
    diagnosis, action = answer([RENDEZVOUS], error.format(address))
    assert f"`{address}`" in diagnosis.title, diagnosis.title
    assert "NCCL_SOCKET_IFNAME" in diagnosis.change, diagnosis.title
    assert action == "change and retry"
    reachable, _ = answer([RENDEZVOUS], error.format("10.4.0.7"))
    assert "only its own host" not in reachable.title


COMM = f"{SITE}/deepspeed/comm/comm.py"


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (("/usr/lib/python3.10/subprocess.py", "run", "raise CalledProcessError(retcode, process.args,"),
         "subprocess.CalledProcessError: Command '['hostname', '-I']' returned non-zero exit status 64."),
        (("/usr/lib/python3.10/subprocess.py", "_execute_child", "raise child_exception_type(errno_num, err_msg)"),
         "FileNotFoundError: [Errno 2] No such file or directory: 'hostname'"),
        (None, "IndexError: list index out of range"),
    ],
)  # fmt: skip
def test_a_search_for_mpi_asks_for_a_launcher(frame, error):
    mpi = (COMM, "mpi_discovery", "master_addr = result.decode('utf-8').split()[0]")
    diagnosis, action = answer([(COMM, "init_distributed", "mpi_discovery()"), mpi, *([frame] if frame else [])], error)
    assert (diagnosis.cause, action) == ("LG291", "change and retry")
    assert "no launcher" in diagnosis.title
    assert "MASTER_ADDR" in diagnosis.change


@pytest.mark.parametrize(
    "text",
    [
        "hostname: invalid option -- 'I'\nTraceback (most recent call last):\n  File \"/job/fit.py\", line 4, in <module>\n    go()\n",
        "subprocess.CalledProcessError: Command '['hostname -I']' returned non-zero exit status 1\n",
        "subprocess.CalledProcessError: Command '['hostname', '-I']' died with <Signals.SIGSEGV: 11>.\n",
    ],
)
def test_a_search_for_mpi_is_told_in_a_cut_quote(text):
    assert "no launcher" in diagnose_text(text).title


def test_a_frame_that_rich_broke_after_its_path_is_read():
    path = f"\u2502 {SITE}/deepspeed/runtime/hybrid_engine.py"
    for lines in (f"{path} \u2502\n\u2502 :296 in build ", f"{path}:29 \u2502\n\u2502 6 in build "):
        box = f"{lines}\u2502\n\u2502 \u2771 296 \u2502 self.odd(child) \u2502\n\u2570\u2500\u2500\u256f\n"
        diagnosis = diagnose_text(f"{box}AttributeError: 'DeepSpeedHybridEngine' object has no attribute 'odd'\n")
        assert "`hybrid_engine`" in diagnosis.title, diagnosis.title
        assert diagnosis.where.endswith("hybrid_engine.py:296 in build")


def test_an_indented_exception_ends_a_quote_without_indentation():
    diagnosis = diagnose_text('File "/job/a.py", line 82, in check\n      x = odd()\n  LookupError: odd thing\n')
    assert diagnosis.message == "LookupError: odd thing"


def test_a_copy_that_fsdp_could_not_make_belongs_to_the_save():
    warning = "/opt/fsdp.py:2224: UserWarning: Failed to clone() tensor with name odd on rank 1. Error: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    assert "rank0_only=True" in diagnose_text(f"{TRAINED}{warning}").change


@pytest.mark.parametrize(("package", "command"), [("oddrender", "ffmpeg"), ("oddgit", "git")])
def test_a_command_of_a_package_is_named(package, command):
    run = ("/usr/lib/python3.11/subprocess.py", "check_output", "raise CalledProcessError(code, args)")
    error = f"subprocess.CalledProcessError: Command '['{command}', '-x']' returned non-zero exit status 1."
    diagnosis, action = answer([(f"{SITE}/{package}/tool.py", "probe", "run(x)"), run], error)
    assert f"`probe` of `{package}`" in diagnosis.title, diagnosis.title
    assert command in diagnosis.title, diagnosis.title
    assert action == "change and retry"
    launcher, _ = answer([(f"{SITE}/accelerate/commands/launch.py", "go", "run(x)"), run], error)
    assert launcher.cause == "LG074"


@pytest.mark.parametrize(
    "line",
    [
        "+ torchrun --nnodes=2 --node_rank=0 --master_addr= --master_port=29500 fit.py",
        "torchrun --nnodes 2 --master_addr --master_port 29500 fit.py",
        "export MASTER_ADDR=",
        "MASTER_ADDR='' MASTER_PORT=29500 python fit.py",
        "accelerate launch --main_process_ip= --num_machines=2 fit.py",
    ],
)
def test_an_empty_address_of_the_first_host_is_named(line):
    error = "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (, 29500)."
    diagnosis, action = answer([RENDEZVOUS], error, f"{line}\n")
    assert "is empty" in diagnosis.title, diagnosis.title
    assert action == "change and retry", diagnosis.title
    full, _ = answer(
        [RENDEZVOUS], error, "torchrun --master_addr=host-1 --master_port=29500 fit.py\nMASTER_ADDR=host-1\n"
    )
    assert "is empty" not in full.title


ENGINE = f"{SITE}/deepspeed/runtime/engine.py"


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        ((ENGINE, "_load_zero_checkpoint", "self.optimizer.load_state_dict(state_dict_list=sd)"),
         "TypeError: load_state_dict() got an unexpected keyword argument 'state_dict_list'"),
        ((ENGINE, "load_checkpoint", "self.optimizer.checkpoint_event_prologue()"),
         "AttributeError: 'FP16_Optimizer' object has no attribute 'checkpoint_event_prologue'"),
        ((ENGINE, "_save_moe_checkpoint", "group = groups[name]"), "KeyError: 'ep_size_8'"),
        ((f"{SITE}/deepspeed/runtime/zero/stage3.py", "reduce", "self.total + part"),
         "TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'"),
        ((f"{SITE}/deepspeed/runtime/hybrid_engine.py", "step", "if self._containers[0].x:"), "IndexError: list index out of range"),
    ],
)  # fmt: skip
def test_a_fault_of_deepspeed_is_not_the_programs(frame, error):
    diagnosis, action = answer([frame], error)
    assert (diagnosis.cause, action) == ("LG149", "change and retry"), diagnosis.title
    assert "install" in diagnosis.change
    assert "DeepSpeed" in diagnosis.change


@pytest.mark.parametrize(
    "error",
    [
        "TypeError: BF16_Optimizer.load_odd() got an unexpected keyword argument 'serial'",
        "AttributeError: 'FP16_OddOptimizer' object has no attribute 'odd_groups'. Did you mean: 'groups'?",
        "AttributeError: 'DeepSpeedZeroOptimizer_Stage9' object has no attribute 'odd'",
    ],
)
def test_a_quote_without_frames_names_deepspeeds_own_optimizer(error):
    diagnosis = diagnose_text(f"{error}\n")
    assert (diagnosis.cause, decide_action(diagnosis).action) == ("LG149", "change and retry")
    assert "not of the program" in diagnosis.title


@pytest.mark.parametrize("code", ["assert self.heads % self.tp_size == 0", "assert len(x) % groups[0] == 0, odd"])
def test_a_check_that_one_number_divides_another_says_which(code):
    diagnosis, action = answer([("/job/net.py", "__init__", code)], "AssertionError")
    assert (diagnosis.cause, action) == ("LG290", "change and retry")
    assert code in diagnosis.title
    assert answer([("/job/net.py", "__init__", "assert odd == 0")], "AssertionError")[0].cause != "LG290"


def test_what_deepspeed_calls_of_the_programs_is_not_its_own_fault():
    frame = (ENGINE, "forward", "loss = self.module(*inputs, **kwargs)")
    diagnosis, _ = answer([frame], "TypeError: forward() got an unexpected keyword argument 'odd'")
    assert "calls its own code" not in diagnosis.title


@pytest.mark.parametrize("name", ["required", "field_info", "odd_name"])
def test_an_old_reader_of_pydantics_fields_needs_another_release(name):
    frame = (f"{SITE}/deepspeed/runtime/config_utils.py", "_check", f"field.{name}")
    diagnosis, action = answer([frame], f"AttributeError: 'FieldInfo' object has no attribute '{name}'")
    assert (diagnosis.cause, action) == ("LG222", "change and retry")
    assert "pydantic" in diagnosis.title


@pytest.mark.parametrize(
    ("caller", "function", "error"),
    [
        ("transformers/trainer.py", "no_sync", "no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 2"),
        ("trl/trainer/odd.py", "no_sync", "no_sync context manager reentry is unsupported"),
        ("accelerate/utils/deepspeed.py", "step", "It is illegal to call Engine.step() inside no_sync context manager"),
    ],
)  # fmt: skip
def test_a_loop_of_a_package_that_enters_no_sync_needs_another_pair(caller, function, error):
    diagnosis, action = answer(
        [(f"{SITE}/{caller}", "loop", "x()"), (ENGINE, function, "assert not x")], f"AssertionError: {error}"
    )
    assert (diagnosis.cause, action) == ("LG115", "change and retry")
    assert f"`{caller.partition('/')[0]}`" in diagnosis.title
    assert "0.15.4" in diagnosis.change
    own, _ = answer([("/job/loop.py", "loop", "x()"), (ENGINE, function, "assert not x")], f"AssertionError: {error}")
    assert "their releases" not in own.title


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        ([("huggingface_hub/file_download.py", "get"), ("urllib3/connectionpool.py", "urlopen")],
         "urllib3.exceptions.ProtocolError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))"),
        ([("requests/adapters.py", "send")], "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='x.example'): Read timed out."),
        ([("oddtracker/api.py", "push"), ("httpx/_transports/default.py", "handle")], "httpx.ConnectError: [Errno 104] Connection reset by peer"),
    ],
)  # fmt: skip
def test_a_request_over_http_is_no_collective(frames, error):
    diagnosis, action = answer([(f"{SITE}/{file}", name, "raise x") for file, name in frames], error, rank=3)
    assert (diagnosis.cause, action) == ("LG040", "retry"), diagnosis.title
    collective, _ = answer([(f"{SITE}/torch/distributed/distributed_c10d.py", "barrier", "x")], error, rank=3)
    assert collective.cause != "LG040"


@pytest.mark.parametrize(
    "frames",
    [
        [("accelerate/utils/fsdp_utils.py", "save_fsdp_model"), ("torch/distributed/fsdp/_state_dict_utils.py", "_full_pre_state_dict_hook")],
        [("torch/distributed/fsdp/_optim_utils.py", "_optim_state_dict"), ("torch/distributed/fsdp/odd.py", "full_optim_state_dict")],
        [("torch/distributed/optim/zero_redundancy_optimizer.py", "consolidate_state_dict")],
    ],
)  # fmt: skip
def test_memory_of_a_whole_state_is_not_that_of_a_step(frames):
    diagnosis, action = answer([(f"{SITE}/{file}", name, "x()") for file, name in frames], OOM, TRAINED)
    assert "SHARDED_STATE_DICT" in diagnosis.change
    assert action == "change and retry"
    assert diagnosis.phase.name == "saving"


def test_a_rank_that_is_killed_at_a_save_needs_memory():
    end = "[2026-01-01 10:00:00,000] [ERROR] [launch.py:321:sigkill_handler] ['python', 'fit.py'] exits with return code = -9\n"
    for line, action in (("Saving model checkpoint to out/checkpoint-100\n", "change and retry"), ("", "retry")):
        assert decide_action(diagnose_text(TRAINED + line + end)).action == action


@pytest.mark.parametrize(
    ("function", "code", "error"),
    [
        ("_save_checkpoint", "os.rename(staging, final)", "FileNotFoundError: [Errno 2] No such file or directory: "
         "'out/tmp-checkpoint-100' -> 'out/checkpoint-100'"),
        ("save_to_json", 'with open(path, "w") as f:', "FileNotFoundError: [Errno 2] No such file or directory: "
         "'out/tmp-checkpoint-100/trainer_state.json'"),
        ("_save_checkpoint", "os.rename(a, b)", "OSError: [Errno 39] Directory not empty: 'out/tmp-checkpoint-7' -> 'out/checkpoint-7'"),
    ],
)  # fmt: skip
def test_a_race_for_a_checkpoints_folder_is_not_won_by_a_retry(function, code, error):
    diagnosis, action = answer([(f"{SITE}/transformers/trainer.py", function, code)], error, TRAINED, rank=5)
    assert (diagnosis.cause, action) == ("LG236", "change and retry")
    assert "transformers 4.39" in diagnosis.change


@pytest.mark.parametrize(
    ("file", "function", "error"),
    [
        ("sharded_moe.py", "forward", "RuntimeError: shape '[4, 2, -1, 512]' is invalid for input of size 12288"),
        ("sharded_moe.py", "top2gating", "RuntimeError: The size of tensor a (64) must match the size of tensor b (8)"),
        ("mappings.py", "_all_to_all", "RuntimeError: Split sizes doesn't match total dim 0 size"),
    ],
)
def test_shapes_in_a_layer_of_experts_are_their_numbers(file, function, error):
    diagnosis, action = answer([(f"{SITE}/deepspeed/moe/{file}", function, "x")], error)
    assert (diagnosis.cause, action) == ("LG092", "change and retry")
    assert "num_experts" in diagnosis.change


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ("npu", "chosen the device `npu`"),
        ("xpu", "chosen the device `xpu`"),
        ("cuda", "chose the device `cuda`"),
        ("", "did not find the NPU"),
    ],
)
def test_a_backend_is_told_by_the_device_that_deepspeed_chose(chosen, words):
    line = (
        f"[INFO] [real_accelerator.py:203:get_accelerator] Setting ds_accelerator to {chosen} (auto detect)\n"
        if chosen
        else ""
    )
    diagnosis, action = answer(
        [], "RuntimeError: Distributed package doesn't have NCCL built in", f"{line}/opt/Ascend/torch_npu\n"
    )
    assert words in diagnosis.title, diagnosis.title
    assert action == "change and retry", diagnosis.title


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("_tie_or_clone_weights", "IndexError: index 0 is out of bounds for dimension 0 with size 0"),
        ("_init_weights", "AssertionError: Padding_idx must be within num_embeddings"),
        ("_fit_positions", "RuntimeError: 'weight' must be 2-D"),
    ],
)
def test_an_empty_parameter_inside_from_pretrained_is_not_the_programs(function, error):
    frames = [(f"{SITE}/transformers/modeling_utils.py", name, "x()") for name in ("from_pretrained", function)]
    diagnosis, action = answer(frames, error)
    assert (diagnosis.cause, action) == ("LG083", "change and retry")
    assert "`from_pretrained`" in diagnosis.title
    assert "transformers" in diagnosis.change


def test_a_stack_of_gdb_names_the_function_and_its_library():
    crash = "Program received signal SIGSEGV, Segmentation fault.\n(gdb) bt\n#0  0x00007f in {} (int) () from {}\n"
    op = diagnose_text(crash.format("odd_step", "/root/.cache/torch_extensions/py310/cpu_odd/cpu_odd.so"))
    assert (op.cause, decide_action(op).action) == ("LG025", "change and retry")
    assert "`odd_step` of `cpu_odd.so`" in op.title
    other = diagnose_text(crash.format("odd::run", "/opt/lib/libodd.so.2"))
    assert other.cause == "LG018"
    assert "`odd::run` of `libodd.so.2`" in other.title
    for function in ("c10d::ProcessGroupNCCL::allreduce", "ncclAllGather"):
        hang = diagnose_text(
            f"(gdb) bt\n#0  0x00007f in poll () from /lib/libc.so.6\n#1  0x00007f in {function} () from /x/a.so\n"
        )
        assert (hang.cause, function in hang.title) == ("LG070", True)


@pytest.mark.parametrize(
    "line",
    ["  7/400 [00:07<10:00, 1.2s/it]", "Epoch 1/3 | Batch 120/900 | Loss 2.13", "step 8: 3111 tokens/s on each GPU"],
)
def test_a_step_that_the_log_shows_is_not_followed_by_the_first(line):
    start = "***** Running training *****\n"
    frame = (ENGINE, "backward", "x()")
    diagnosis, _ = answer([frame], "RuntimeError: odd one", f"{start}{line}\n")
    assert diagnosis.phase.name == "backward", diagnosis.phase
    assert ", after " in diagnosis.phase.text, diagnosis.phase
    assert answer([frame], "RuntimeError: odd one", start)[0].phase.name == "first step"
