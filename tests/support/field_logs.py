# SPDX-License-Identifier: Apache-2.0
"""Logs as clusters print them, made up line by line in the forms that launchers, schedulers and NCCL use.

Each case: a name, the text, the cause that is right, the least confidence that is allowed ("" for any), rank, host.
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """One log and its right answer; `never_certain` where nobody could know for sure."""

    name: str
    text: str
    cause: str
    rank: int | None = None
    host: str = ""
    never_certain: bool = False


def _ranks(template: str, ranks, *, host=None) -> str:
    """The lines of a template once a rank, interleaved line by line; `{r}` is the rank, `{h}` its host."""
    lines = template.strip("\n").split("\n")
    return "".join(
        line.replace("{r}", str(r)).replace("{h}", host(r) if host else "").replace("{l}", str(r % 8)) + "\n"
        for line in lines
        for r in ranks
    )


def node(r: int) -> str:
    return f"worker-{r // 8}"


STEPS = "".join(
    f"worker-0: [2026-03-01 10:0{i}:00,100] [INFO] [logging.py:107:log_dist] [Rank 0] step={i}, skipped=0, lr=[1e-05]\n"
    f"worker-0: {{'loss': 2.{i}31, 'grad_norm': 0.9, 'learning_rate': 1e-05}}\n"
    for i in range(6)
)
WATCHDOG = """
{h}: [rank{r}]:[E301 10:16:22.123456789 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5120, OpType=_ALLGATHER_BASE, NumelIn=4096, NumelOut=262144, Timeout(ms)=600000) ran for 600023 milliseconds before timing out.
{h}: [rank{r}]:[E301 10:16:22.223456789 ProcessGroupNCCL.cpp:2271] [PG ID 1 PG GUID 1 Rank {r}] failure detected by watchdog at work sequence id: 5120 PG status: last enqueued work: 5124, last completed work: 5119
{h}: [rank{r}]:[E301 10:16:22.323456789 ProcessGroupNCCL.cpp:684] [Rank {r}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.
{h}: [rank{r}]:[E301 10:16:22.423456789 ProcessGroupNCCL.cpp:698] [Rank {r}] To avoid data inconsistency, we are taking the entire process down.
{h}: terminate called after throwing an instance of 'c10::DistBackendError'
{h}:   what():  [PG ID 1 PG GUID 1 Rank {r}] Process group watchdog thread terminated with exception: [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5120, OpType=_ALLGATHER_BASE, NumelIn=4096, NumelOut=262144, Timeout(ms)=600000) ran for 600023 milliseconds before timing out.
{h}: Fatal Python error: Aborted
"""
LAUNCHER_END = """
{h}: [2026-03-01 10:16:29,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 1{l}
{h}: [2026-03-01 10:16:30,000] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', '--local_rank={l}'] exits with return code = -6
"""
OOM = """
{h}: [rank{r}]: Traceback (most recent call last):
{h}: [rank{r}]:   File "/data/train.py", line 210, in <module>
{h}: [rank{r}]:     main()
{h}: [rank{r}]:   File "/data/train.py", line 188, in main
{h}: [rank{r}]:     loss = engine(batch)
{h}: [rank{r}]:   File "/opt/conda/lib/python3.11/site-packages/torch/nn/functional.py", line 3104, in cross_entropy
{h}: [rank{r}]:     return torch._C._nn.cross_entropy_loss(
{h}: [rank{r}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 15.66 GiB. GPU {l} has a total capacity of 79.15 GiB of which 9.06 GiB is free. Process 3871 has 70.08 GiB memory in use. Of the allocated memory 66.32 GiB is allocated by PyTorch, and 1.72 GiB is reserved by PyTorch but unallocated.
"""
RESET = """
{h}: [rank{r}]: Traceback (most recent call last):
{h}: [rank{r}]:   File "/data/train.py", line 188, in main
{h}: [rank{r}]:     engine.backward(loss)
{h}: [rank{r}]:   File "/opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3000, in all_reduce
{h}: [rank{r}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was a network error, NCCL version 2.21.5
{h}: [rank{r}]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
"""
MAPPING = (
    "worker-0: [2026-03-01 09:59:00,000] [INFO] [launch.py:164:main] nnodes=8, num_local_procs=8, node_rank=0\n"
    "worker-0: [2026-03-01 09:59:00,100] [INFO] [launch.py:168:main] global_rank_mapping=defaultdict(<class 'list'>, {"
    + ", ".join(f"'worker-{n}': {list(range(8 * n, 8 * n + 8))}" for n in range(8))
    + "})\n"
)
TORCHRUN = """
W0301 10:16:30.000000 4242 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4301 closing signal SIGTERM
E0301 10:16:31.000000 4242 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {code}) local_rank: 3 (pid: 4304) of binary: /usr/bin/python
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/usr/local/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 269, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-03-01_10:16:30
  host      : gpu-node-17
  rank      : 11 (local_rank: 3)
  exitcode  : {code} (pid: 4304)
  error_file: <N/A>
  traceback : {told}
============================================================
"""
CASES = [
    Case(
        "one rank of 64 misses a collective",
        MAPPING
        + STEPS
        + _ranks(WATCHDOG, [r for r in range(64) if r != 37], host=node)
        + _ranks(LAUNCHER_END, [0, 8, 16], host=node),
        "LG070",
        37,
        "worker-4",
    ),
    Case(
        "out of memory on one rank of 64, the others lose it first in the log",
        MAPPING
        + STEPS
        + _ranks(RESET, [1, 2, 3], host=node)
        + _ranks(OOM, [5], host=node)
        + _ranks(RESET, [r for r in range(4, 64) if r != 5], host=node),
        "LG001",
        5,
        "worker-0",
    ),
    Case(
        "a time-out that came of a disk that was full",
        MAPPING
        + STEPS
        + "worker-3: [rank24]: Traceback (most recent call last):\n"
        + 'worker-3: [rank24]:   File "/data/train.py", line 99, in save\n'
        + "worker-3: [rank24]: OSError: [Errno 28] No space left on device: '/ckpt/global_step5/zero.pt'\n"
        + _ranks(WATCHDOG, [r for r in range(64) if r != 24], host=node),
        "LG050",
        24,
        "worker-3",
    ),
    Case(
        "killed, by torchrun",
        TORCHRUN.replace("{code}", "-9").replace("{told}", "Signal 9 (SIGKILL) received by PID 4304"),
        "LG003",
        11,
        "gpu-node-17",
        True,
    ),
    Case(
        "torchrun and nothing else",
        TORCHRUN.replace("{code}", "1").replace(
            "{told}", "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
        ),
        "LG074",
        11,
        "gpu-node-17",
        True,
    ),
    Case(
        "killed for memory, dmesg below",
        "[2026-03-01 10:16:30,000] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', '--local_rank=2'] exits with return code = -9\n"
        "[Sun Mar  1 10:16:28 2026] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,task=python,pid=1\n"
        "[Sun Mar  1 10:16:28 2026] Memory cgroup out of memory: Killed process 99812 (python) total-vm:98123456kB, anon-rss:64123456kB\n",
        "LG002",
    ),
    Case(
        "slurm kills for memory",
        "12: step 40 loss: 2.41\nslurmstepd: error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM Killed.\n"
        "srun: error: gpu-node-03: task 12: Out Of Memory\nsrun: Terminating StepId=812.0\n"
        "slurmstepd: error: *** STEP 812.0 ON gpu-node-02 CANCELLED AT 2026-03-01T10:16:30 ***\n",
        "LG002",
    ),
    Case(
        "time limit",
        STEPS
        + "slurmstepd: error: *** JOB 812 ON gpu-node-02 CANCELLED AT 2026-03-01T10:16:30 DUE TO TIME LIMIT ***\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n",
        "LG068",
    ),
    Case(
        "port taken",
        '[rank0]: Traceback (most recent call last):\n[rank0]:   File "train.py", line 3, in <module>\n'
        "[rank0]: torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
        "[rank1]: torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (localhost, 29500).\n",
        "LG066",
        0,
    ),
    Case(
        "one node did not come",
        "[rank0]: torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 8/16 clients joined.\n",
        "LG067",
        0,
    ),
    Case(
        "index beyond the embedding",
        "../aten/src/ATen/native/cuda/Indexing.cu:1289: indexSelectLargeIndex: block: [12,0,0], thread: [64,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
        * 40
        + "[rank3]: RuntimeError: CUDA error: device-side assert triggered\n[rank3]: CUDA kernel errors might be asynchronously reported at some other API call\n",
        "LG014",
    ),
    Case(
        "ECC",
        "worker-2: [rank17]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
        + _ranks(WATCHDOG, [1, 2, 3], host=node),
        "LG016",
        17,
        "worker-2",
    ),
    Case(
        "driver",
        "[rank0]: RuntimeError: The NVIDIA driver on your system is too old (found version 11040).\n",
        "LG010",
        0,
    ),
    Case(
        "architecture",
        "[rank0]: RuntimeError: CUDA error: no kernel image is available for execution on the device\n",
        "LG011",
        0,
    ),
    Case(
        "toolkit",
        "[rank0]: deepspeed.ops.op_builder.builder.CUDAMismatchException: >- DeepSpeed Op Builder: Installed CUDA version 11.8 does not match the version torch was compiled with 12.1, unable to compile cuda/cpp extensions without a matching cuda version.\n",
        "LG020",
        0,
    ),
    Case(
        "no ninja",
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/x/site-packages/torch/utils/cpp_extension.py", line 2400, in verify_ninja_availability\n[rank1]: RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)\n'
        "Exception ignored in: <function DeepSpeedCPUAdam.__del__ at 0x7f0000000000>\nAttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n",
        "LG022",
        1,
    ),
    Case(
        "libaio",
        "[rank0]: RuntimeError: Unable to JIT load the async_io op due to it not being compatible due to hardware/software issue. None\n",
        "LG023",
        0,
    ),
    Case(
        "ssh host key",
        "worker-1: Host key verification failed.\npdsh@head: worker-1: ssh exited with exit code 255\n",
        "LG060",
    ),
    Case(
        "ssh refused",
        "ssh: connect to host worker-7 port 22: Connection refused\npdsh@head: worker-7: ssh exited with exit code 255\n",
        "LG060",
    ),
    Case(
        "ssh key",
        "worker-1: user@worker-1: Permission denied (publickey,password).\npdsh@head: worker-1: ssh exited with exit code 255\n",
        "LG060",
    ),
    Case(
        "local_rank",
        "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --local_rank=0\n",
        "LG065",
    ),
    Case(
        "module missing on one host",
        "worker-3: Traceback (most recent call last):\nworker-3:   File \"/data/train.py\", line 1, in <module>\nworker-3: ModuleNotFoundError: No module named 'flash_attn'\n"
        + _ranks(RESET, [1, 2], host=node),
        "LG064",
        None,
        "worker-3",
    ),
    Case(
        "loss scale",
        STEPS
        + "worker-0: [rank0]: Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n",
        "LG047",
        0,
    ),
    Case(
        "shm",
        "RuntimeError: DataLoader worker (pid 4411) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.\n",
        "LG005",
    ),
    Case(
        "nccl shm",
        "gpu1:44:91 [1] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-abc123 to 9637892 bytes, error: No space left on device (28)\n[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2006, unhandled system error, NCCL version 2.21.5\n",
        "LG005",
    ),
    Case(
        "offline",
        "[rank0]: OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.\n",
        "LG040",
        0,
    ),
    Case(
        "gated",
        "[rank0]: OSError: You are trying to access a gated repo.\n[rank0]: Make sure to have access to it at https://huggingface.co/meta-llama/Llama-3.1-8B.\n",
        "LG041",
        0,
    ),
    Case(
        "torn",
        "[rank2]: RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n",
        "LG033",
        2,
    ),
    Case(
        "weights only",
        "[rank2]: _pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options\n",
        "LG035",
        2,
    ),
    Case(
        "data ran out",
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "train.py", line 70, in main\n[rank3]:     batch = next(it)\n[rank3]: StopIteration\n'
        + _ranks(WATCHDOG.replace("{h}: ", ""), [0, 1, 2]),
        "LG045",
        3,
    ),
    Case(
        "an exception that nobody knows",
        '[rank2]: Traceback (most recent call last):\n[rank2]:   File "/data/reward.py", line 70, in score\n[rank2]: reward.BadJudge: the judge said maybe\n'
        + _ranks(RESET.replace("{h}: ", ""), [0, 1, 3]),
        "",
        2,
    ),
    Case(
        "an error that the job outlived",
        "[rank0]: Traceback (most recent call last):\n[rank0]: OSError: [Errno 28] No space left on device\n"
        + STEPS * 3
        + "KeyboardInterrupt\n",
        "LG069",
        None,
        "",
        True,
    ),
    Case(
        "Ctrl-C",
        STEPS
        + 'Traceback (most recent call last):\n  File "train.py", line 8, in <module>\nKeyboardInterrupt\n[2026-03-01 10:16:30,000] [INFO] [launch.py:335:sigkill_handler] Main process received SIGINT, exiting\n',
        "LG069",
        None,
        "",
        True,
    ),
    Case("nothing but losing peers", _ranks(RESET, [0, 1], host=node), "LG073", 0, "worker-0", True),
    Case(
        "infiniband",
        "gpu3:771:840 [3] NCCL WARN NET/IB : Got completion from peer 10.0.3.4<41234> with error 12, opcode 0, len 0, vendor err 129\n"
        + _ranks(RESET, [3], host=node),
        "LG072",
    ),
    Case(
        "mismatch",
        "[rank1]: RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(OpType=ALLREDUCE), but Rank 0 is running BROADCAST\n",
        "LG071",
        1,
    ),
    Case(
        "wheel of an op for another torch",
        "[rank0]: ImportError: /home/u/.cache/torch_extensions/py311_cu121/cpu_adam/cpu_adam.so: undefined symbol: _ZN3c106detail14torchCheckFailE\n",
        "LG025",
        0,
    ),
    Case("ranks without GPU", "[rank9]: RuntimeError: CUDA error: invalid device ordinal\n", "LG013", 9),
    Case("too many files", "[rank9]: OSError: [Errno 24] Too many open files: '/data/x'\n", "LG053", 9),
    Case("kubernetes", "State: Terminated\n  Reason: OOMKilled\n  Exit Code: 137\n", "LG002"),
    Case("vocabulary on the CPU", "[rank1]: IndexError: index out of range in self\n", "LG014", 1),
    Case(
        "a scheduler's log of a launch that hung",
        "step 40/200  loss 3.012  1.45 k tokens/s  9.0 s left\n"
        "harness hung in a step, no progress for 30 min: process 812 is stopped by a signal; ending the run\n"
        "harness killing 6 processes of the run\n",
        "LG076",
    ),
    Case(
        "a scheduler's log of a launch that hung, by harness 0.1",
        "step 40/200  loss 3.012  1.45 k tokens/s  9.0 s left\n"
        "harness hung in a step, nothing moved for 30 min: process 812 is stopped by a signal; ending the run\n"
        "harness ending 6 processes of the run\n",
        "LG076",
    ),
    Case(
        "a scheduler's log of a launch whose rank was killed by somebody",
        "harness rank 0 failed after that; its output is in the log\n"
        "failed on rank 1 (gpu-07) at step 9: killed by SIGKILL, which a process sent: the kernel had not run out of memory\n",
        "LG006",
        1,
    ),
    Case(
        "a scheduler's log of a launch whose rank the kernel killed",
        "failed on rank 3 (gpu-07) at step 9: killed by SIGKILL of the kernel's out-of-memory killer\n",
        "LG002",
        3,
    ),
    Case(
        "a scheduler's log of a launch that lost a host",
        "step 40/200  loss 3.012  1.45 k tokens/s  9.0 s left\n"
        "harness no heartbeat from host gpu-node-07; ending the run\n"
        "harness killing 3 processes of the run\n",
        "LG077",
    ),
    Case(
        "a scheduler's log of a launch that lost a host, by harness 0.1",
        "step 40/200  loss 3.012  1.45 k tokens/s  9.0 s left\n"
        "harness nothing is heard of host gpu-node-07 any more; ending the run\n"
        "harness ending 3 processes of the run\n",
        "LG077",
    ),
]
