# SPDX-License-Identifier: Apache-2.0
"""Logs of DeepSpeed's launcher, its ops and its checkpoint scripts, in the forms of pdsh, torchrun and Slurm."""

from __future__ import annotations

import pytest

from tests.support.tracebacks import diagnose_text

RUNNER = "/opt/venv/lib/python3.11/site-packages/deepspeed/launcher/runner.py"
NO_HOSTFILE = (
    "[2026-03-01 10:00:00,000] [WARNING] [runner.py:214:fetch_hostfile] Unable to find hostfile, will proceed with "
    "training with local resources only.\n"
    "[2026-03-01 10:00:02,000] [INFO] [launch.py:152:main] WORLD INFO DICT: {'localhost': [0, 1, 2, 3]}\n"
    "[2026-03-01 10:00:02,000] [INFO] [launch.py:158:main] nnodes=1, num_local_procs=4, node_rank=0\n"
    "[2026-03-01 10:00:02,000] [INFO] [launch.py:170:main] dist_world_size=4\n"
)
KILLING = "[2026-03-01 10:00:49,553] [INFO] [launch.py:253:sigkill_handler] Killing subprocess 1080504\n"


def in_ranks(text: str, form: str, ranks=(0, 1)) -> str:
    """The text of each rank, one after the other, in the form of a launcher."""
    return "".join(f"{form.format(r=r)}{line}\n" for r in ranks for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        ("ssh: Could not resolve hostname gpu07: Name or service not known\n", "LG060", "getent hosts"),
        ("ssh: connect to host gpu07 port 22: Connection refused\n", "LG060", "--ssh_port"),
        ("ssh: connect to host gpu07 port 22: Connection timed out\n", "LG077", "firewall"),
        ("gpu07: Permission denied (publickey,password).\n", "LG060", "ssh-copy-id"),
        ("gpu07: Host key verification failed.\n", "LG060", "ssh-keyscan"),
        ("pdsh@head: gpu07: ssh exited with exit code 255\n", "LG060", "ssh HOST hostname"),
        ("gpu07: bash: line 1: /opt/venv/bin/python: No such file\npdsh@head: gpu07: ssh exited with exit code 127\n", "LG064", ""),
        ('pdsh@head: No such rcmd module "ssh"\n', "LG152", "PDSH_RCMD_TYPE"),
        ('pdsh@head: skipping insecure module "/usr/lib/pdsh/sshcmd.so" (check owner)\n', "LG152", "chmod"),
        ("bash: line 1: pdsh: command not found\n", "LG062", ""),
        (f'Traceback (most recent call last):\n  File "{RUNNER}", line 583, in main\nRuntimeError: launcher \'pdsh\' not installed.\n', "LG062", "--no_ssh"),
        (f'Traceback (most recent call last):\n  File "{RUNNER}", line 258, in parse_resource_filter\nValueError: invalid literal for int() with base 10: \'\'\n', "LG061", "CUDA_VISIBLE_DEVICES"),
        (f'Traceback (most recent call last):\n  File "{RUNNER}", line 477, in main\nValueError: Num nodes is >1 but no extra nodes available via hostfile\n', "LG061", "--hostfile"),
    ],
)  # fmt: skip
def test_what_the_launcher_and_ssh_say(text, cause, words):
    diagnosis = diagnose_text(text)
    assert (diagnosis.state, diagnosis.cause) == ("failed", cause)
    assert words in diagnosis.change


def test_a_host_that_the_launcher_does_not_reach():
    text = (
        f'Traceback (most recent call last):\n  File "{RUNNER}", line 487, in main\n'
        "subprocess.CalledProcessError: Command '['ssh', '-o', 'PasswordAuthentication=no', 'gpu07', 'hostname']' returned "
        "non-zero exit status 255.\n\nDuring handling of the above exception, another exception occurred:\n\n"
        f'Traceback (most recent call last):\n  File "{RUNNER}", line 491, in main\n'
        "RuntimeError: Using hostfile at /job/hostfile but host=gpu07 was not reachable via ssh. If you are running with a "
        "single node please remove /job/hostfile or setup passwordless ssh.\n"
    )
    diagnosis = diagnose_text(text)
    assert diagnosis.cause == "LG060"
    assert "ssh -o PasswordAuthentication=no" in diagnosis.change


@pytest.mark.parametrize(
    ("code", "cause"),
    [("-9", "LG003"), ("-11", "LG018"), ("-7", "LG005"), ("-6", "LG074"), ("1", "LG074"), ("2", "LG074"),
     ("126", "LG051"), ("127", "LG064"), ("137", "LG003"), ("143", "LG069"), ("-15", "LG069")],
)  # fmt: skip
def test_the_return_code_of_a_rank_without_any_other_line(code, cause):
    text = f"[ERROR] [launch.py:259:sigkill_handler] ['python', '-u', 'train.py'] exits with return code = {code}\n"
    diagnosis = diagnose_text(KILLING + text)
    assert (diagnosis.state, diagnosis.cause) == ("failed", cause)
    assert diagnosis.confidence != "certain"


def test_ranks_that_the_launcher_ended_without_a_word():
    memory = "[INFO] [utils.py:799:see_memory_usage] CPU Virtual Memory:  used = 26.4 GB, percent = 84.6%\n"
    diagnosis = diagnose_text(memory + KILLING)
    assert (diagnosis.state, diagnosis.cause, diagnosis.confidence) == ("failed", "LG003", "likely")
    assert any("84.6 %" in note for note in diagnosis.notes)
    assert diagnose_text(KILLING + "[INFO] Main process received SIGINT, exiting\n").cause == "LG069"


def test_a_launcher_without_a_hostfile():
    assert diagnose_text(NO_HOSTFILE).state == "no failure seen"
    steps = "".join(f"{{'loss': 2.{i}31, 'learning_rate': 1e-05}}\n" for i in range(9))
    assert diagnose_text(NO_HOSTFILE + steps).state == "no failure seen"  # an ordinary job on one host
    wanted = diagnose_text(
        "ValueError-free command: accelerate launch --num_machines 2 train.py\n" + NO_HOSTFILE + steps
    )
    assert (wanted.state, wanted.cause, wanted.confidence) == ("failed", "LG075", "likely")
    assert wanted.notes == ("2 hosts were requested, and only the ranks of this host were started",)
    assert "--hostfile" in wanted.change
    two = diagnose_text(
        NO_HOSTFILE.replace("[2026", "gpu01: [2026") + NO_HOSTFILE.replace("[2026", "gpu02: [2026") + steps
    )
    assert two.cause == "LG075"
    assert "gpu01, gpu02" in two.notes[0]
    ended = (
        NO_HOSTFILE + steps + "[2026-03-01 10:09:00,000] [INFO] [launch.py:285:main] Process 12 exits successfully.\n"
    )
    assert diagnose_text(ended).state == "completed"


BUILD = """\
Building extension module {op}...
[1/3] c++ -MMD -MF {op}.o.d -c /opt/venv/lib/python3.11/site-packages/deepspeed/ops/csrc/adam/{op}.cpp -o {op}.o
FAILED: {op}.o
{error}
ninja: build stopped: subcommand failed.
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/cpp_extension.py", line 2506, in _run_ninja_build
subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.
RuntimeError: Error building extension '{op}'
"""


@pytest.mark.parametrize("form", ["gpu01: ", "[rank{r}]: ", "{r}: ", "[default{r}]:", ""])
@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        ("/usr/include/python_headers.h:12:10: fatal error: Python.h: No such file or directory", "LG022", "-dev"),
        ("x.cu:3:10: fatal error: cuda_runtime.h: No such file or directory", "LG158", "CUDA_HOME"),
        ("x.h:9:10: fatal error: curand_kernel.h: No such file or directory", "LG158", "CUDA_HOME"),
        ("x.h:9:10: fatal error: libaio.h: No such file or directory", "LG023", "libaio"),
        ("/usr/bin/ld: cannot find -lcurand: No such file or directory", "LG158", "LIBRARY_PATH"),
        ("host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later than 12 are not supported!", "LG156", "gcc"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "LG157", "MAX_JOBS"),
        ("x.cpp:1: fatal error: error writing to /tmp/cc1.s: No space left on device", "LG050", "TMPDIR"),
    ],
)  # fmt: skip
def test_the_compilers_first_error_is_the_cause(form, error, cause, words):
    warning = " [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.\n"
    diagnosis = diagnose_text(warning + in_ranks(BUILD.format(op="cpu_adam", error=error), form))
    assert (diagnosis.state, diagnosis.cause) == ("failed", cause)
    assert words in diagnosis.change


def test_the_op_that_is_missing_is_not_the_cause():
    destructor = "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n"
    ignored = (
        "Exception ignored in: <function DeepSpeedCPUAdam.__del__ at 0x7f00>\nTraceback (most recent call last):\n"
    )
    alone = diagnose_text(ignored + '  File "cpu_adam.py", line 102, in __del__\n' + destructor)
    assert (alone.cause, alone.confidence) == ("LG159", "likely")
    unknown = "[rank0]: Traceback (most recent call last):\n[rank0]: SomeNewBuildError: it broke\n"
    assert diagnose_text(unknown + ignored + destructor).cause == ""  # the first error, though unknown


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("ValueError: Expected 8 of '*_optim_states.pt' under 'out/global_step5' but found 7 files. Possibly due to an overwrite of an old checkpoint, or a checkpoint didn't get saved by one or more processes.", "LG034"),
        ("AssertionError: out seems a bogus DeepSpeed checkpoint folder: Cannot find mp_rank_* files in there.", "LG034"),
        ("AssertionError: Required universal_checkpoint_info state is missing in checkpoint. Verify that client creates this state.", "LG163"),
        ("AssertionError: Loading out/zero/w/fp32.pt full param numel 64 != tensor slice numel 16 * tp_world_size 2", "LG164"),
        ("AssertionError: AutoTP not supported for model. Please provide policy.", "TP006"),
        ("AssertionError: CPUAdam param is on cuda:0 and must be 'cpu', make sure you enabled 'offload_optimizer': 'cpu' in your ZeRO config.", "LG160"),
        ("RuntimeError: PyTorch version mismatch! DeepSpeed ops were compiled and installed with a different version than what is being used at runtime. Please re-install DeepSpeed or switch torch versions. Install torch version=2.1, Runtime torch version=2.4", "LG025"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["[rank{r}]: ", "worker-1: ", "{r}: ", ""])
def test_messages_of_checkpoints_and_layers(message, cause, form):
    traceback = f'Traceback (most recent call last):\n  File "/job/train.py", line 31, in main\n{message}\n'
    diagnosis = diagnose_text(in_ranks(traceback, form))
    assert (diagnosis.cause, diagnosis.confidence) == (cause, "certain")


@pytest.mark.parametrize(
    "line",
    [
        "Installed CUDA version 11.8 does not match the version torch was compiled with 11.7 but since the APIs are compatible, accepting this combination",
        "\x1b[93m [WARNING] \x1b[0m DeepSpeed Op Builder: Installed CUDA version 12.4 does not match the version torch was compiled with 11.8.Detected `DS_SKIP_CUDA_CHECK=1`: Allowing this combination of CUDA, but it may result in unexpected behavior.",
        "\x1b[93m [WARNING] \x1b[0m async_io requires the dev libaio .so object and headers but these were not found.",
        "\x1b[93m [WARNING] \x1b[0m async_io: please install the libaio-dev package with apt",
        "\x1b[93m [WARNING] \x1b[0m sparse_attn requires a torch version >= 1.5 and < 2.0 but detected 2.4",
        "\x1b[93m [WARNING] \x1b[0m please install triton==1.0.0 if you want to use sparse attention",
        "\x1b[93m [WARNING] \x1b[0m NVIDIA Inference is only supported on Ampere and newer architectures",
        "\x1b[93m [WARNING] \x1b[0m gds is not compatible with ROCM",
        "/usr/bin/ld: cannot find -laio: No such file or directory",
        "/usr/bin/ld: cannot find -lcufile: No such file or directory",
        "collect2: error: ld returned 1 exit status",
        "FP16 params for CPUAdam may not work on AMD CPUs",
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["gpu01: ", "[rank{r}]: ", "{r}: ", ""])
def test_what_deepspeed_prints_in_jobs_that_run_well(line, form):
    log = in_ranks(line, form) + in_ranks("ValueError: Hostfile is empty or not formatted correctly\n", "")
    assert diagnose_text(in_ranks(line, form)).state == "no failure seen"
    assert diagnose_text(log).cause == "LG061"


@pytest.mark.parametrize("words", ["UNPROTECTED PRIVATE KEY FILE!", "REMOTE HOST IDENTIFICATION HAS CHANGED!"])
def test_warnings_with_which_ssh_ends(words):
    assert diagnose_text(f"gpu-2: @         WARNING: {words}          @\n").cause == "LG060"
