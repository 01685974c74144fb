# SPDX-License-Identifier: Apache-2.0
"""Kinds that the state of the job, its host or the package of a frame tells, each with siblings that no row names. Messages
are those that the installed releases raise. Needs nothing; seconds.
"""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text, traceback_text

SITE = "/opt/py/lib/python3.11/site-packages"
MAIN = ("/job/fit.py", "<module>", "main()")
STEPS = "".join(f"{{'loss': 2.{n}, 'epoch': 0.{n}}}\n" for n in range(1, 4))
LAST_STEP = "100%|#####| 40/40 [10:00<00:00, 15s/it]\n"
SUMMARY = "{'train_runtime': 600.1, 'train_samples_per_second': 2.0, 'train_loss': 2.1, 'epoch': 1.0}\n"
EXITS = "[2025-01-01 10:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['python', '--local_rank=0'] exits with return code = 1\n"


def tracker_error(package: str, error: str = "OddApiError: 500 Internal Server Error") -> str:
    frames = [
        MAIN,
        (f"{SITE}/{package}/sdk/odd.py", "finish", "self.send(x)"),
        (f"{SITE}/requests/api.py", "post", "raise"),
    ]
    return traceback_text(frames, error)


@pytest.mark.parametrize("package", ["wandb", "swanlab", "mlflow", "comet_ml", "neptune"])
@pytest.mark.parametrize(
    "end", [SUMMARY, LAST_STEP, LAST_STEP + "Saving model checkpoint to out\n"], ids=["summary", "bar", "saved"]
)
def test_a_tracker_that_fails_after_the_end_fails_no_job(package, end):
    start = "***** Running training *****\n  0%|     | 0/40 [00:00<?, ?it/s]\n"
    diagnosis = diagnose_text(start + STEPS + end + tracker_error(package) + EXITS)
    assert (diagnosis.state, diagnosis.confidence) == ("completed", "likely")
    assert f"`{package}`" in diagnosis.title
    assert decide_action(diagnosis) is None


@pytest.mark.parametrize(
    "text",
    [
        STEPS + tracker_error("wandb"),
        "  0%|     | 0/400 [00:00<?, ?it/s]\n" + STEPS + LAST_STEP + tracker_error("wandb"),  # of an evaluation
        SUMMARY + tracker_error("odd_model"),
        SUMMARY + tracker_error("wandb") + traceback_text([MAIN], "OSError: [Errno 28] No space left on device"),
        SUMMARY + tracker_error("wandb") + EXITS.replace("= 1", "= -9"),
        SUMMARY + traceback_text([(f"{SITE}/wandb/agent.py", "run", "f()"), MAIN], "ValueError: odd"),
    ],
    ids=["in training", "after an evaluation", "another package", "another error", "a kill", "called by the tracker"],
)
def test_another_failure_is_one(text):
    assert diagnose_text(text + EXITS).state == "failed"


PINNED = traceback_text(
    [MAIN, (f"{SITE}/deepspeed/odd.py", "init", "x.pin_memory()")], "RuntimeError: CUDA error: out of memory"
)


@pytest.mark.parametrize(
    "sign",
    [
        "Linux box 5.15.1-microsoft-standard-WSL2",
        "joe@DESKTOP-7A:~$ deepspeed fit.py",
        "config: /mnt/c/Users/joe/ds.json",
    ],
)
@pytest.mark.parametrize("end", ["Killed", PINNED])
def test_memory_of_a_linux_within_windows(sign, end):
    diagnosis = diagnose_text(f"{sign}\nTime to load cpu_adam op: 2 seconds\n{end}\n")
    assert ".wslconfig" in diagnosis.change
    assert decide_action(diagnosis).action == "change and retry"
    assert ".wslconfig" not in diagnose_text(f"Time to load cpu_adam op: 2 seconds\n{end}\n").change


def refused(wanted: str, free: str) -> str:
    return (
        f"[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted}. GPU 0 has a total capacity of "
        f"23.99 GiB of which {free} is free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use.\n"
    )


def test_a_gpu_with_room_is_not_what_ran_out():
    diagnosis = diagnose_text(refused("128.00 MiB", "18.10 GiB"))
    assert (diagnosis.cause, diagnosis.confidence) == ("LG004", "likely")
    assert ".wslconfig" in diagnosis.change
    assert diagnose_text(refused("2.00 GiB", "1.10 GiB")).cause == "LG001"
    elsewhere = diagnose_text(refused("128.00 MiB", "18.10 GiB").replace("17179869184.00", "5.00"))
    assert (elsewhere.cause, elsewhere.confidence) == ("LG004", "likely")


ILLEGAL = "{host}[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
XID = "{host}NVRM: Xid (PCI:0000:9a:00): {code}, pid=7, name=python, DBE (double bit error) detected\n"


@pytest.mark.parametrize(
    ("lines", "cause", "action"),
    [
        (ILLEGAL.format(host="") + XID.format(host="[ 51.2] ", code=48), "LG016", "retry elsewhere"),
        (ILLEGAL.format(host="n1: ") + XID.format(host="n1: ", code=79), "LG016", "retry elsewhere"),
        (ILLEGAL.format(host="n1: ") + XID.format(host="n2: ", code=79), "LG017", "change and retry"),
        ("[rank6]: RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `odd`\n" + XID.format(host="", code=95),
         "LG016", "retry elsewhere"),
        (ILLEGAL.format(host="") + "EDAC MC0: 1 UE memory read error on CPU_SrcID#0\n", "LG254", "retry elsewhere"),
        (ILLEGAL.format(host="") + XID.format(host="", code=31), "LG017", "change and retry"),
        ("Memory access fault by GPU node-4 (Agent handle: 0x55d) on address 0x7f. Reason: Unknown.\n", "LG017",
         "change and retry"),
    ],
)  # fmt: skip
def test_broken_hardware_explains_what_a_call_to_the_gpu_says(lines, cause, action):
    diagnosis = diagnose_text(lines)
    assert (diagnosis.cause, diagnosis.confidence) == (cause, "likely")
    assert decide_action(diagnosis).action == action


def test_one_rank_of_one_host_in_each_attempt():
    line, again = ILLEGAL.format(host="n1: "), "restarting in 10 s, 2 left\n"
    diagnosis = diagnose_text(line + again + line)
    decision = decide_action(diagnosis)
    assert (diagnosis.cause, decision.action, decision.hosts) == ("LG016", "retry elsewhere", ("n1",))
    assert diagnosis.confidence == "likely"
    assert diagnose_text(line + again + line.replace("rank3", "rank4")).cause == "LG017"
    assert diagnose_text(line).cause == "LG017"


@pytest.mark.parametrize(
    ("error", "frames", "cause", "words", "action"),
    [
        ("ImportError: cannot import name 'odd_log'", [], "LG089", "another one imports", "change and retry"),
        ("ImportError: cannot import name odd_log", [("deepspeed/odd.py", "<module>", "from x import odd_log")], "LG089",
         "no `odd_log` in `x`", "change and retry"),
        ("AssertionError", [("accelerate/accelerator.py", "__init__", "assert isinstance(odd, Odd)")], "LG227",
         "DeepSpeed is not at fault", "change and retry"),
        ("AssertionError: odd", [("deepspeed/x.py", "step", "odd()"), ("transformers/odd.py", "hook", "assert a == b, 'odd'")],
         "LG227", "a check of `transformers`", "change and retry"),
        ("AttributeError: 'DeepSpeedZeroOptimizer' object has no attribute 'odd_flag'",
         [("accelerate/utils/odd.py", "step", "self.optimizer.odd_flag")], "LG227", "`accelerate` (`step`) reads `odd_flag`",
         "change and retry"),
        ("AttributeError: 'NoneType' object has no attribute 'load_state_dict'",
         [("deepspeed/runtime/engine.py", "_load_zero_checkpoint", "self.optimizer.load_state_dict(")], "LG084",
         "the state of its optimizer", "change and retry"),
        ("AttributeError: 'NoneType' object has no attribute 'load_state_dict'",
         [("deepspeed/runtime/engine.py", "_load_checkpoint", "self.lr_scheduler.load_state_dict(x)")], "LG084",
         "the state of its lr_scheduler", "change and retry"),
        ("AttributeError: 'Namespace' object has no attribute 'odd_mpi'",
         [("deepspeed/runtime/engine.py", "_configure", "args.odd_mpi")], "LG065", "the arguments (`Namespace`)",
         "change and retry"),
        ("TypeError: initialize() takes from 0 to 12 positional arguments but 13 were given",
         [("/job/fit.py", "setup", "deepspeed.initialize(a, b)")], "LG227", "of `deepspeed` takes from 0 to 12", "change and retry"),
        ("TypeError: Odd.__init__() takes 3 positional arguments but 4 were given", [("odd/a.py", "make", "Odd(1, 2, 3)")],
         "LG227", "calls it as another release has it", "change and retry"),
        ("AttributeError: 'NoneType' object has no attribute 'gradient_allreduce_op'",
         [("/job/engines.py", "__init__", "super().__init__(None, *args, **kwargs)"),
          ("deepspeed/runtime/engine.py", "__init__", "self.x = config_class.gradient_allreduce_op == MEAN")], "LG227",
         "builds DeepSpeed's engine itself", "change and retry"),
        ("AttributeError: 'DummyOptim' object has no attribute 'param_groups'",
         [("torch/optim/lr_scheduler.py", "__init__", "len(optimizer.param_groups)")], "LG182", "placeholder `DummyOptim`",
         "change and retry"),
        ("TypeError: DummyOptim is not an Optimizer", [("torch/optim/lr_scheduler.py", "__init__", "raise TypeError(")], "LG182",
         "placeholder `DummyOptim`", "change and retry"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device",
         [("deepspeed/ops/adam/odd.py", "step", "self.run(x)")], "LG011", "compiled part of `deepspeed`", "change and retry"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device",
         [("torch/nn/modules/odd.py", "forward", "run(x)")], "LG011", "torch or an op was built without", "change and retry"),
        ("RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)",
         [("torch/utils/cpp_extension.py", "verify_ninja_availability", "raise RuntimeError(")], "LG022", "on the PATH",
         "change and retry"),
        ("AssertionError: odd parallel group with context is not initialized",
         [("/job/megatron/core/parallel_state.py", "get_odd_group", "assert ODD is not None, 'odd'")], "LG170", "of Megatron",
         "change and retry"),
        ("NotImplementedError", [("deepspeed/runtime/pipe/engine.py", "_exec_odd", "raise NotImplementedError()")], "LG291",
         "`deepspeed` has not implemented", "change and retry"),
        ("NotImplementedError: odd types must be equal to use odd",
         [("deepspeed/runtime/engine.py", "_check", "raise NotImplementedError(")], "LG291", "`deepspeed` has not implemented",
         "change and retry"),
        ("AttributeError: 'OddModel' object has no attribute 'save_fp16_model'", [("/job/fit.py", "end", "m.save_fp16_model(x)")],
         "LG120", "belongs to DeepSpeed's engine", "change and retry"),
        ("AttributeError: 'DeepSpeedDataLoader' object has no attribute 'odd'", [("/job/rl.py", "run", "loader.odd")], "LG227",
         "is DeepSpeed's own", "change and retry"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/c/tmp.odd.pkl' -> '/c/odd.pkl'",
         [("/job/vae.py", "download", "move(a, b)")], "LG054", "a rank renames `/c/tmp.odd.pkl`", "change and retry"),
        ("RuntimeError: FlashAttention only supports Ampere GPUs or newer.", [], "LG019", "runs on Ampere GPUs", "change and retry"),
    ],
)  # fmt: skip
def test_the_package_of_a_frame_tells_whose_fault_it_is(error, frames, cause, words, action):
    diagnosis = diagnose_text(traceback_text([MAIN, *frames], error, 0))
    assert (diagnosis.cause, words in diagnosis.title) == (cause, True), diagnosis.title
    assert decide_action(diagnosis).action == action


def test_a_quote_of_an_attribute_without_frames():
    diagnosis = diagnose_text("AttributeError: 'OddDataset' object has no attribute 'odd_rank'\n")
    assert (diagnosis.cause, diagnosis.confidence) == ("LG227", "likely")
    frames = [MAIN, ("/job/data.py", "load", "odd.odd_rank")]
    own = diagnose_text(traceback_text(frames, "AttributeError: 'OddDataset' object has no attribute 'odd_rank'"))
    assert own.cause == ""


REFUSED = (
    "requests.exceptions.ConnectionError: HTTPConnectionPool(host='{host}', port=9): Max retries exceeded with url: / (Caused by "
    "NewConnectionError(\"HTTPConnection(host='{host}', port=9): Failed to establish a new connection: [Errno 111] refused\"))"
)
PROXY = (
    "requests.exceptions.ProxyError: HTTPConnectionPool(host='127.0.0.1', port=9): Max retries exceeded with url: http://a.org/ "
    "(Caused by ProxyError('Unable to connect to proxy', NewConnectionError('refused')))"
)


@pytest.mark.parametrize(
    ("error", "cause", "words", "action"),
    [
        (REFUSED.format(host="localhost"), "LG304", "a server on this host failed (`localhost`, port 9)", "change and retry"),
        (REFUSED.format(host="127.0.0.1"), "LG304", "a server on this host", "change and retry"),
        ("requests.exceptions.HTTPError: 503 Server Error: odd for url: http://0.0.0.0:51/x", "LG304", "port 51", "change and retry"),
        (REFUSED.format(host="odd.org"), "LG040", "over HTTP failed", "retry"),
        (PROXY, "LG304", "the proxy that the environment names", "change and retry"),
    ],
)  # fmt: skip
def test_a_request_to_this_host_or_to_its_proxy(error, cause, words, action):
    frames = [MAIN, (f"{SITE}/requests/adapters.py", "send", "raise ConnectionError(e, request=request)")]
    diagnosis = diagnose_text(traceback_text(frames, error))
    assert (diagnosis.cause, words in diagnosis.title) == (cause, True), diagnosis.title
    assert decide_action(diagnosis).action == action


@pytest.mark.parametrize(
    "line",
    [
        "[W socket.cpp:601] [c10d] The client socket cannot be initialized to connect to [localhost]:29500 (errno: 97 - odd).",
        "[rank0]:[W1012 10:00:00.1 socket.cpp:752] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
        "[W socket.cpp:752] [c10d] The IPv6 network addresses of (node-1, 29500) cannot be retrieved (gai error: -2 - Name or "
        "service not known).",
    ],
)  # fmt: skip
def test_a_warning_of_a_socket_alone_is_harmless(line):
    diagnosis = diagnose_text(f"{line}\n")
    assert diagnosis.state == "no failure seen"
    assert any("are harmless" in note for note in diagnosis.notes)
    ipv4 = diagnose_text(line.replace("IPv6 ", "") + "\n")
    assert ipv4.state == ("failed" if "IPv6" in line else "no failure seen")


def test_ranks_that_wait_for_each_other_and_builds_that_wait():
    setup = "[2025-01-01 10:00:00,000] [INFO] [comm.py:668:init_distributed] Initializing TorchBackend in DeepSpeed with backend nccl\n"
    assert any("one port of its own" in note for note in diagnose_text(setup).notes)
    build = "Using /root/.cache/torch_extensions as PyTorch extensions root...\nLoading extension module odd_op...\n"
    assert any("remove the folders below" in note for note in diagnose_text(build).notes)


def test_a_port_behind_the_name_of_the_script():
    taken = "RuntimeError: [enforce fail] EADDRINUSE: address already in use\n"
    command = "cmd = python3 -m deepspeed.launcher.launch --master_addr=127.0.0.1 --master_port=29500 fit.py --x 1 --master_port 60000\n"
    diagnosis = diagnose_text(command + taken)
    assert "`--master_port 60000` before the script's name" in diagnosis.change
    assert decide_action(diagnosis).action == "change and retry"
    assert diagnose_text(command.replace(" --master_port 60000", "") + taken).change.startswith("end the process")


def test_a_launcher_without_a_hostfile_and_ranks_that_do_not_meet():
    lines = (
        traceback_text([MAIN, (f"{SITE}/torch/distributed/rendezvous.py", "next", "store = TCPStore(a)")], "").rstrip()
        + "\n"
    )
    warning = "[WARNING] [runner.py:178:fetch_hostfile] Unable to find hostfile, will proceed with training with local resources only.\n"
    assert decide_action(diagnose_text(lines)).action == "retry"
    diagnosis = diagnose_text(warning + lines)
    assert "found no hostfile" in diagnosis.title
    assert decide_action(diagnosis).action == "change and retry"


def test_a_crash_after_the_adam_of_the_cpu():
    start = "Adam Optimizer #0 is created with AVX2 arithmetic capability.\n"
    assert diagnose_text(start + "Segmentation fault (core dumped)\n").cause == "LG160"
    assert diagnose_text("Segmentation fault (core dumped)\n").cause == "LG018"


def test_a_slot_that_the_hostfile_does_not_give():
    for line in ("No slot 2 specificied on host work1", "ValueError: No slot '2' specified on host 'work1'"):
        assert diagnose_text(f"{line}\n").cause == "LG061"
