# SPDX-License-Identifier: Apache-2.0
"""Logs that clusters leave, written line by line in the forms of the programs' sources and documentation.

Each case: a name, the text, the cause that is right, words of the answer, the rank and the host where the text shows them.
"""

from __future__ import annotations

from typing import NamedTuple


class ClusterCase(NamedTuple):
    """One log and its right answer; `words` must stand in the title or the change."""

    name: str
    text: str
    cause: str
    words: str = ""
    rank: int | None = None
    host: str = ""


DMESG_OOM = """\
[Sun Mar  1 10:16:27 2026] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
[Sun Mar  1 10:16:27 2026] Tasks state (memory values in pages):
[Sun Mar  1 10:16:28 2026] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/slurm/uid_1000/job_812,task_memcg=/slurm/uid_1000/job_812/step_0,task=python,pid=4304,uid=1000
[Sun Mar  1 10:16:28 2026] Memory cgroup out of memory: Killed process 4304 (python) total-vm:98112344kB, anon-rss:62914560kB, file-rss:81920kB, shmem-rss:524288kB, UID:1000 pgtables:131072kB oom_score_adj:0
[Sun Mar  1 10:16:29 2026] oom_reaper: reaped process 4304 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:524288kB
"""
SPAWNED = "".join(
    f"[2026-03-01 09:59:0{i},100] [INFO] [launch.py:256:main] process {4301 + i} spawned with command: "
    f"['/usr/bin/python', '-u', 'train.py', '--local_rank={i}']\n"
    for i in range(4)
)
MAPPING_OF_4 = (
    "[2026-03-01 09:59:00,100] [INFO] [launch.py:168:main] global_rank_mapping=defaultdict(<class 'list'>, "
    "{'localhost': [0, 1, 2, 3]})\n"
)
STEPS = "".join(f"{{'loss': 2.{i}31, 'grad_norm': 0.9, 'learning_rate': 1e-05, 'epoch': 0.{i}}}\n" for i in range(6))


def xid(code: int, text: str) -> str:
    """A line of NVIDIA's driver in `dmesg`."""
    return f"[  812.345678] NVRM: Xid (PCI:0000:4e:00): {code}, pid=4304, name=python, {text}\n"


PODS = """\
Name:             llama-worker-3
Namespace:        training
Status:           Failed
Containers:
  pytorch:
    State:          Terminated
      Reason:       OOMKilled
      Exit Code:    137
      Started:      Sun, 01 Mar 2026 09:58:01 +0000
Events:
  Type     Reason     Age    From               Message
  ----     ------     ----   ----               -------
  Normal   Scheduled  18m    default-scheduler  Successfully assigned training/llama-worker-3 to gpu-7
  Warning  BackOff    2m     kubelet            Back-off restarting failed container pytorch in pod llama-worker-3
"""
RAY_OOM = """\
(raylet, ip=10.0.0.7) [2026-03-01 10:16:27,123 E 345 345] (raylet) node_manager.cc:3065: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 4bb45ae, IP: 10.0.0.7) over the last time period.
Traceback (most recent call last):
  File "/job/train_ray.py", line 88, in <module>
    result = trainer.fit()
ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.
Memory on the node (IP: 10.0.0.7, ID: 4bb45ae) where the task (actor ID: 1c2, name=RayTrainWorker.__init__, pid=2345, memory used=61.20GB) was running was 120.10GB / 125.70GB (0.955), which exceeds the memory usage threshold of 0.95.
"""
RAY_INNER = """\
(RayTrainWorker pid=2345, ip=10.0.0.4) Traceback (most recent call last):
(RayTrainWorker pid=2345, ip=10.0.0.4)   File "/job/train_ray.py", line 41, in train_loop
(RayTrainWorker pid=2345, ip=10.0.0.4)     loss.backward()
(RayTrainWorker pid=2345, ip=10.0.0.4) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB
Traceback (most recent call last):
  File "/job/train_ray.py", line 88, in <module>
    result = trainer.fit()
ray.exceptions.RayTaskError(OutOfMemoryError): ray::_RayTrainWorker__execute.get_next() (pid=2345, ip=10.0.0.4, actor_id=1c2, repr=<ray.train._internal.worker_group.RayTrainWorker object at 0x7f>)
  File "/job/train_ray.py", line 41, in train_loop
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB
"""
TORCHRUN_TABLE = """\
W0301 10:16:30.000000 4242 torch/distributed/elastic/multiprocessing/api.py:908] Sending process 4301 closing signal SIGTERM
E0301 10:16:31.000000 4242 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: {code}) local_rank: 3 (pid: 4304) of binary: /usr/bin/python
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/usr/local/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 277, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-03-01_10:16:30
  host      : gpu-node-17
  rank      : 8 (local_rank: 0)
  exitcode  : -15 (pid: 4301)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 4301
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-03-01_10:16:29
  host      : gpu-node-17
  rank      : 11 (local_rank: 3)
  exitcode  : {code} (pid: 4304)
  error_file: <N/A>
  traceback : {told}
============================================================
"""
ENABLE = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
IB_PREFIX = "gpu-7:4304:4390 [3] transport/net_ib.cc:1298 NCCL WARN "

CASES = [
    ClusterCase("dmesg: limit of a control group", DMESG_OOM, "LG002", "limit"),
    ClusterCase("dmesg and the pid of a rank", MAPPING_OF_4 + SPAWNED + STEPS + DMESG_OOM, "LG002", "limit", 3),
    ClusterCase(
        "journal: the host's memory",
        "Mar 01 10:16:28 gpu-7 kernel: Out of memory: Killed process 991 (pt_main_thread) total-vm:1kB, anon-rss:9kB\n",
        "LG002",
        "host's memory",
        None,
        "gpu-7",
    ),
    ClusterCase(
        "Xid 13", xid(13, "Graphics SM Warp Exception on (GPC 0, TPC 0): Out Of Range Address"), "LG017", "Xid 13"
    ),
    ClusterCase("Xid 31", xid(31, "Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS"), "LG017", "MMU"),
    ClusterCase("Xid 43", xid(43, "Ch 00000010"), "LG250", "ended"),
    ClusterCase("Xid 45", xid(45, "Ch 00000010"), "LG250", "ended"),
    ClusterCase("Xid 48", xid(48, "DBE (double bit error)"), "LG016", "ECC"),
    ClusterCase("Xid 63", xid(63, "Row Remapper: New row marked for remapping"), "LG016", "reset"),
    ClusterCase("Xid 64", xid(64, "Row Remapper: Error writing to inforom"), "LG016", "replaced"),
    ClusterCase("Xid 74", xid(74, "NVLink: fatal error detected on link 2"), "LG249", "NVLink"),
    ClusterCase("Xid 79", xid(79, "GPU has fallen off the bus."), "LG016", "power"),
    ClusterCase("Xid 94", xid(94, "Contained: SM (0x1). RST: No, D-RST: No"), "LG016", "Xid 94"),
    ClusterCase("Xid 95", xid(95, "Uncontained: FBHUB. RST: Yes"), "LG016", "reset"),
    ClusterCase("Xid 119", xid(119, "Timeout after 6s of waiting for RPC response from GPU0 GSP!"), "LG016", "GSP"),
    ClusterCase("Xid 140", xid(140, "Unrecovered ECC error"), "LG016", "ECC"),
    ClusterCase(
        "an Xid 45 that followed a kill",
        DMESG_OOM + "[Sun Mar  1 10:16:30 2026] NVRM: Xid (PCI:0000:4e:00): 45, pid=4304, name=python, Ch 00000010\n",
        "LG002",
    ),
    ClusterCase(
        "SXid",
        "[ 91.2] nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n",
        "LG249",
        "NVSwitch",
    ),
    ClusterCase(
        "ext4", "[ 9.123456] EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2\n", "LG052", "disk"
    ),
    ClusterCase(
        "disk", "[ 9.123456] blk_update_request: I/O error, dev sda, sector 123456 op 0x0:(READ)\n", "LG052", "disk"
    ),
    ClusterCase("nvme", "[ 9.123456] nvme nvme0: I/O 832 QID 4 timeout, aborting\n", "LG052", "NVMe"),
    ClusterCase("nfs", "[ 9.123456] nfs: server nas1 not responding, still trying\n", "LG052", "NFS"),
    ClusterCase(
        "hung task", "[ 9.123456] INFO: task python:4304 blocked for more than 120 seconds.\n", "LG052", "disk"
    ),
    ClusterCase("mlx5", "[ 9.123456] mlx5_core 0000:41:00.0 ib0: Link down\n", "LG072", "cable"),
    ClusterCase("ecc of the host", "[ 9.123456] EDAC MC0: 1 UE memory read error on CPU_SrcID#0\n", "LG254", "memory"),
    ClusterCase("panic", "[ 9.123456] Kernel panic - not syncing: Fatal exception\n", "LG242", "host"),
    ClusterCase(
        "slurm: memory",
        STEPS
        + "slurmstepd: error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM Killed.\n"
        "srun: error: gpu-node-02: task 3: Out Of Memory\n",
        "LG002",
        "--mem",
    ),
    ClusterCase(
        "slurm: time",
        STEPS
        + "slurmstepd: error: *** JOB 812 ON gpu-node-02 CANCELLED AT 2026-03-01T10:16:30 DUE TO TIME LIMIT ***\n",
        "LG068",
        "--time",
    ),
    ClusterCase(
        "slurm: preempted",
        STEPS
        + "slurmstepd: error: *** JOB 812 ON gpu-node-02 CANCELLED AT 2026-03-01T10:16:30 DUE TO PREEMPTION ***\n",
        "LG068",
        "--requeue",
    ),
    ClusterCase(
        "slurm: node",
        STEPS + "srun: error: Node failure on gpu-node-03\nsrun: error: gpu-node-03: tasks 8-15: Killed\n",
        "LG242",
        "node",
        None,
        "gpu-node-03",
    ),
    ClusterCase(
        "slurm: one task failed and the step was cancelled",
        STEPS
        + "srun: error: gpu-node-02: task 11: Exited with exit code 1\n"
        + "slurmstepd: error: *** STEP 812.0 ON gpu-node-02 CANCELLED AT 2026-03-01T10:16:30 ***\n"
        + "srun: error: gpu-node-02: tasks 8-10,12-15: Terminated\n",
        "LG069",
    ),
    ClusterCase(
        "slurm: an exception and then its end",
        "11: ValueError: boom\n"
        + "slurmstepd: error: *** STEP 812.0 ON gpu-node-02 CANCELLED AT 2026-03-01T10:16:30 ***\n",
        "",
        "",
        11,
    ),
    ClusterCase(
        "sacct",
        "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode\n"
        "------------ ---------- ---------- ---------- ---------- ---------- --------\n"
        "812               llama        gpu       team         64 OUT_OF_ME+    0:125\n"
        "812.batch         batch                 team         64 OUT_OF_ME+    0:125\n",
        "LG002",
        "MaxRSS",
    ),
    ClusterCase("sacct: time", "812    llama   gpu   team   64    TIMEOUT      0:0 \n", "LG068", "time limit"),
    ClusterCase("sacct: node", "812.0  llama         team   64  NODE_FAIL      1:0 \n", "LG242", "node"),
    ClusterCase("pbs", "=>> PBS: job killed: walltime 3604 exceeded limit 3600\n", "LG068", "time limit"),
    ClusterCase("lsf", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\n", "LG002", "memory"),
    ClusterCase("pod: OOMKilled", PODS, "LG002", "resources.limits.memory"),
    ClusterCase(
        "pod: evicted for its disk",
        "Status:           Failed\nReason:           Evicted\nMessage:          The node was low on resource: ephemeral-storage. "
        "Threshold quantity: 10Gi, available: 9Gi. Container pytorch was using 210Gi, request is 0, has larger consumption\n",
        "LG246",
        "volume",
    ),
    ClusterCase(
        "pod: evicted for memory",
        "LAST SEEN   TYPE      REASON    OBJECT               MESSAGE\n"
        "2m          Warning   Evicted   pod/llama-worker-3   The node was low on resource: memory. Threshold quantity: 100Mi\n",
        "LG246",
        "memory",
    ),
    ClusterCase(
        "pod: no GPU free",
        "  Warning  FailedScheduling  2m    default-scheduler  0/8 nodes are available: 8 Insufficient nvidia.com/gpu. "
        "preemption: 0/8 nodes are available: 8 No preemption victims found for incoming pod.\n",
        "LG243",
        "device plug-in",
    ),
    ClusterCase(
        "pod: image",
        '  Warning  Failed  2m  kubelet  Failed to pull image "hub/train:v9": rpc error: code = NotFound\n'
        "  Warning  Failed  2m  kubelet  Error: ImagePullBackOff\n",
        "LG244",
        "tag",
    ),
    ClusterCase(
        "pod: crash loop", "llama-worker-3   0/1     CrashLoopBackOff   6 (2m ago)   18m\n", "LG245", "--previous"
    ),
    ClusterCase("pod: 137", "    State:  Terminated\n      Reason:       Error\n      Exit Code:    137\n", "LG003"),
    ClusterCase(
        "pod: node", "2m  Warning  NodeNotReady  pod/llama-worker-3  Node is not ready\n", "LG242", "other nodes"
    ),
    ClusterCase(
        "pod: preempted",
        "2m  Warning  Preempted  pod/llama-worker-3  Preempted by pod 8f1 on node gpu-7\n",
        "LG068",
        "priority",
    ),
    ClusterCase(
        "jobset", "2m Warning FailedJobs jobset/llama jobset failed due to one or more job failures\n", "LG245"
    ),
    ClusterCase("ray: memory", RAY_OOM, "LG002", "node", None),
    ClusterCase("ray: the inner exception", RAY_INNER, "LG001", "", None, "10.0.0.4"),
    ClusterCase(
        "ray: a worker died",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n",
        "LG247",
        "dmesg",
    ),
    ClusterCase(
        "ray: a worker was killed",
        "A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, check "
        "the logs for the dead worker. Worker exit type: SYSTEM_ERROR\n",
        "LG247",
        "memory",
    ),
    ClusterCase(
        "ray: heartbeats",
        "(raylet) The node with node id: 4bb45ae and address: 10.0.0.7 and node name: 10.0.0.7 has been marked dead because the "
        "detector has missed too many heartbeats from it.\n",
        "LG242",
        "node",
    ),
    ClusterCase(
        "ray: store", "ray.exceptions.ObjectStoreFullError: Failed to put object ff in object store\n", "LG248"
    ),
    ClusterCase(
        "torchrun: SIGABRT",
        TORCHRUN_TABLE.format(code=-6, told="Signal 6 (SIGABRT) received by PID 4304"),
        "LG074",
        "",
        11,
    ),
    ClusterCase(
        "torchrun: SIGKILL",
        TORCHRUN_TABLE.format(code=-9, told="Signal 9 (SIGKILL) received by PID 4304"),
        "LG003",
        "dmesg",
        11,
        "gpu-node-17",
    ),
    ClusterCase(
        "torchrun: an exit code", TORCHRUN_TABLE.format(code=1, told=ENABLE), "LG074", "@record", 11, "gpu-node-17"
    ),
    ClusterCase(
        "nccl: retries",
        IB_PREFIX
        + "NET/IB : Got completion from peer 10.1.0.9<41382> with status=12 opcode=32757 len=0 vendor err 129 (Recv) "
        "localGid fe80::1 remoteGids fe80::2 hca mlx5_3\n",
        "LG072",
        "links",
    ),
    ClusterCase(
        "nccl: retries, newer",
        IB_PREFIX + "NET/IB: Got completion from peer 10.1.0.9<41382> with status=IBV_WC_RETRY_EXC_ERR(12) "
        "opcode=IBV_WC_RDMA_WRITE(1) reqSize=0 vendor_err=129 req_type=Send localGid fe80::1 remoteGids fe80::2 hca mlx5_3\n",
        "LG072",
        "status 12",
    ),
    ClusterCase(
        "nccl: flushed requests follow from a lost peer",
        IB_PREFIX
        + "NET/IB : Got completion from peer 10.1.0.9<41382> with status=5 opcode=0 len=0 vendor err 249 (Send)\n",
        "LG073",
    ),
    ClusterCase(
        "nccl: memlock", IB_PREFIX + "Call to ibv_reg_mr failed with error Cannot allocate memory\n", "LG004", "memlock"
    ),
    ClusterCase(
        "nccl: no interface", IB_PREFIX + "Bootstrap : no socket interface found\n", "LG291", "NCCL_SOCKET_IFNAME"
    ),
    ClusterCase(
        "nccl: efa", IB_PREFIX + "NET/OFI Request completed with error. RC: 113. Error: 4\n", "LG072", "security group"
    ),
    ClusterCase(
        "ucx",
        "[1772360187.1] [gpu-7:4304 :0] ib_mlx5_log.c:177 UCX  ERROR Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 "
        "vend 0x81 hw_synd 0/0)\n",
        "LG072",
        "UCX_NET_DEVICES",
    ),
    ClusterCase(
        "gloo",
        "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error\n",
        "LG067",
        "GLOO_SOCKET_IFNAME",
    ),
    ClusterCase(
        "bash: killed", STEPS + "/job/run.sh: line 12:  4304 Killed                  python train.py\n", "LG003"
    ),
    ClusterCase("bash: terminated", STEPS + "Terminated\n", "LG069"),
    ClusterCase("bash: crashed", "run.sh: line 3: 17 Segmentation fault      (core dumped) python train.py\n", "LG018"),
    ClusterCase(
        "deepspeed: -15",
        STEPS + "[2026-03-01 10:16:30,000] [ERROR] [launch.py:325:sigkill_handler] ['python', '-u', 'train.py', "
        "'--local_rank=3'] exits with return code = -15\n",
        "LG069",
    ),
    ClusterCase(
        "deepspeed: killing subprocesses",
        STEPS + "[2026-03-01 10:16:30,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4301\n",
        "LG003",
    ),
    ClusterCase(
        "nvlink in torch", "RuntimeError: CUDA error: uncorrectable NVLink error detected\n", "LG249", "NVLink"
    ),
    ClusterCase(
        "busy", "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\n", "LG012", "compute mode"
    ),
    ClusterCase(
        "peer access",
        IB_PREFIX + "Cuda failure 'peer access is not supported between these two devices'\n",
        "LG072",
        "P2P",
    ),
    ClusterCase(
        "shared memory of workers",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n",
        "LG005",
    ),
    ClusterCase(
        "sockets that were tried again before another failure",
        "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n"
        "[W1125 02:39:40.808874134 socket.cpp:767] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: "
        "99 - Cannot assign requested address).\n[rank0]: MemoryError\n",
        "LG004",
    ),
]
