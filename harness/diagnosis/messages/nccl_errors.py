# SPDX-License-Identifier: Apache-2.0
"""Messages of torch about NCCL (each result code with its `Last error` line), gloo and the stores; CUDA errors."""

from __future__ import annotations

MESSAGES = r"""
LG210 * (?:NCCL error|NCCL Error|NCCL WARN|Last error).*peer access is not supported
    title: two GPUs of this host cannot access each other's memory: peer access is not supported between them (NCCL)
    change: set NCCL_P2P_DISABLE=1; in a virtual machine or with the IOMMU on, check ACS and `nvidia-smi topo -m`; use a
        newer NCCL (a newer torch)
LG210 * (?:NCCL error|NCCL Error|NCCL WARN|Last error).*(?:NVLS|NVLink SHARP|[Mm]ulticast)
    title: NCCL could not set up NVLink SHARP (multicast memory) between the GPUs of this host
    change: set NCCL_NVLS_ENABLE=0, or start the fabric manager (`systemctl status nvidia-fabricmanager`) and give the
        container all GPUs of the host
LG210 * (?:NCCL error|NCCL Error|NCCL WARN).*(?:named symbol not found
    |API call is not supported in the installed CUDA driver|no kernel image|device kernel image is invalid
    |Failed to find CUDA library|libcuda\.so)
    title: the NCCL of this torch does not match the driver or the GPU of this host
    change: install a driver that supports torch's CUDA (`nvidia-smi` shows the newest it can), or a torch for an older
        CUDA; remove other copies of NCCL and libcuda from LD_LIBRARY_PATH
LG210 * (?:NCCL error|NCCL Error).*(?:Failed to CUDA (?:calloc|malloc|host alloc)|cuMemCreate|Cuda failure 2\b)
    title: NCCL could not allocate its buffers on the GPU or in pinned host memory
    change: free GPU memory: a smaller micro-batch, a higher ZeRO stage or offload, no other process on the GPU
        (`nvidia-smi`); raise `ulimit -l`, and set NCCL_CUMEM_ENABLE=0
LG210 * (?:NCCL error|NCCL Error|NCCL WARN).*(?:Cuda failure \d* ?'(?P<why>invalid argument|unknown error
    |invalid resource handle|operation not permitted|initialization error|OS call failed[^']*
    |mapping of buffer object failed)')
    title: a CUDA call of NCCL failed on this rank: {why}
    change: run once with NCCL_DEBUG=INFO; try NCCL_P2P_DISABLE=1, NCCL_CUMEM_ENABLE=0 and NCCL_NVLS_ENABLE=0 one at a
        time, compare the driver with torch's CUDA, and give each rank its own GPU
        (`torch.cuda.set_device(local_rank)`)
LG016 (?:NCCL error|NCCL Error|NCCL WARN).*Cuda failure \d* ?'(?:uncorrectable|.*ECC|.*fallen off|.*GPU is lost)
LG017 * (?:NCCL error|NCCL Error|NCCL WARN).*Cuda failure \d* ?'(?:an illegal memory access|misaligned address)
    title: an earlier kernel of this rank accessed invalid memory, and NCCL reported it
LG015 * (?:NCCL error|NCCL Error|NCCL WARN).*Cuda failure \d* ?'device-side assert
    title: an assertion of an earlier kernel of this rank failed, and NCCL reported it
LG067 (?:NCCL error|NCCL Error).*(?:no socket interface found|No interface found|Bootstrap : no socket)
    title: NCCL found no network interface on a host
    change: correct `NCCL_SOCKET_IFNAME`, which names an interface that this host does not have (`ip -br addr` lists its
        interfaces): give a prefix that all hosts share, exclude some with `^docker,lo`, or unset it
LG004 * (?:NCCL error|NCCL Error).*ibv_(?:reg_mr|create_cq|create_qp)\w* failed
    title: a host could not register memory for RDMA: its memlock limit is too low, or the card is misconfigured
    change: raise the limit of locked memory on every host (`ulimit -l unlimited`, `--ulimit memlock=-1` of Docker,
        `LimitMEMLOCK=infinity` of slurmd); `NCCL_IB_DISABLE=1` shows whether RDMA is the cause
LG072 * (?:NCCL error|NCCL Error)(?!.*NET/IB|.*ibv_).*(?:[Cc]onnect to|socketStartConnect|socketPollConnect
    |Call to connect|NET/OFI|Net : Call|Software caused connection abort|timed? ?out)
    title: NCCL could not connect this rank to another host
    change: set `NCCL_SOCKET_IFNAME` to the interface that reaches all hosts, open the ports between them in firewalls,
        check links (`ibstat`), and check whether the peer exited first; NCCL_DEBUG=INFO names the address
LG210 * (?:NCCL error|NCCL Error).*internal error.*Last error: ?\|? ?(?P<last>Message truncated.*|.*Message truncated.*)
    title: ranks sent messages of different sizes while NCCL connected them: their NCCL versions or settings differ, or
        an old process uses the same port
    change: use the same image and NCCL_* variables on all hosts, kill processes of earlier runs, and choose another
        port
LG210 * (?:NCCL error in|NCCL Error): .*internal error.*Last error: ?\|? ?(?P<last>\S.*)
    title: NCCL stopped with an internal error on this rank: {last}
    change: run once with NCCL_DEBUG=INFO, whose first WARN line names the call; the usual causes are a peer that
        exited, GPUs or network cards that the container does not expose (`nvidia-smi topo -m`, NVML), NCCL_* settings
        that differ between hosts, and a bug of that NCCL (try a newer torch)
LG210 * (?:NCCL error in|NCCL Error(?: \d)?): .*internal error|ncclInternalError
    title: NCCL stopped with an internal error on this rank, and the log does not say where
    change: run once with NCCL_DEBUG=INFO, whose first WARN line names the call; look for a rank that failed first, for
        different NCCL_* settings or versions on the hosts, and try NCCL_P2P_DISABLE=1, NCCL_IB_DISABLE=1 and
        NCCL_SHM_DISABLE=1 one at a time
LG210 * (?:NCCL error in|NCCL Error): .*invalid argument|ncclInvalidArgument
    title: NCCL refused an argument: two NCCL versions are loaded, or a tensor is not supported
    change: compare `torch.cuda.nccl.version()` with other NCCL libraries on LD_LIBRARY_PATH, and reinstall torch with
        its `nvidia-nccl-cu*` package
LG210 * NCCL Error \d: unhandled cuda error
    title: a CUDA call of NCCL failed, and the log does not say which
    change: run once with NCCL_DEBUG=INFO, whose WARN lines name the call; give each rank its own GPU, and try
        NCCL_P2P_DISABLE=1
LG073 * NCCL Error \d: unhandled system error
    title: a system call of NCCL failed, most often because another rank exited; else the network or /dev/shm
LG210 * NCCL Error \d: invalid (?:usage|argument)
    title: NCCL reports invalid usage, most often because two ranks use one GPU or the ranks call different collectives
    change: call `torch.cuda.set_device(local_rank)`, and run once with NCCL_DEBUG=WARN, which names the reason
LG210 NCCL WARN (?:Mismatched|.*different) NCCL version|NCCL version mismatch between ranks
    title: the ranks use different versions of NCCL
    change: use the same image, torch and `nvidia-nccl-cu*` package on all hosts, and take other NCCL folders out of
        LD_LIBRARY_PATH
LG210 * NCCL WARN Cuda failure \d* ?'(?P<why>(?!out of memory)[^']*)'
    title: a CUDA call of NCCL failed on this rank: {why}
    change: compare the driver with torch's CUDA and NCCL (`nvidia-smi`, `torch.cuda.nccl.version()`), look for an
        earlier CUDA error, and check the free GPU memory; NCCL_P2P_DISABLE=1 shows a P2P problem
LG073 * NCCL WARN (?:Net|NET/\w+|Bootstrap) ?: .*(?:[Cc]onnection (?:to remote process failed|closed)|remote process)
LG070 Watchdog caught collective operation timeout: WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>ALLREDUCE), NumelI
    n=(?P<numel>1), NumelOut=1, Timeout\(ms\)=(?P<ms>\d+)
    title: ranks waited {ms} ms for a rank that did not join an all-reduce of one element, most often a barrier (as in
        `main_process_first`); the ranks that report the timeout only waited
    change: run `py-spy dump` on all ranks to find the missing one: rank 0 may tokenize, download or save alone (prepare
        the data before the job, or raise `ddp_timeout`, `timeout` of `init_distributed`), or a rank had fewer batches
        or caught an error
LG070 Watchdog caught collective operation timeout: WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>_?REDUCE_SCATTER\w
    *)(?:, NumelIn=(?P<numel>\d+))?
    title: ranks waited in a reduce-scatter (ZeRO's gradients) for one that did not join; the ranks that report the
        timeout only waited
    change: look for a rank whose backward pass ran other layers, had another number of micro-batches, or ended with an
        error; `py-spy dump` on all ranks shows which one is elsewhere
LG070 Watchdog caught collective operation timeout: WorkNCCL\(OpType=(?P<op>BROADCAST), Timeout
    title: ranks waited in a broadcast for a rank that did not join, often the source; the ranks that report the timeout
        only waited
    change: check what the source rank (mostly rank 0) did instead: loading or preparing data alone, a download, a save;
        prepare data before the job, and raise the timeout (`ddp_timeout`, `timeout` of `init_distributed`) only where
        such a wait is normal
LG070 Heartbeat monitor timed out! Process will be terminated|Received a dump signal due to a collective timeout
    (?:.* Last enqueued NCCL work: (?P<enqueued>-?\d+), last completed NCCL work: (?P<done>-?\d+))?
    title: the heartbeat monitor of the NCCL watchdog ended a rank, because a collective or CUDA call made no progress;
        the ranks that report it only waited
    change: look for the first timeout or error further up and for the rank that did not join (`py-spy dump`);
        TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC gives slow saves and compilations more time
LG067 connect\(\) timed out\. Original timeout was (?P<ms>\d+) ms
    title: a rank did not reach the store of rank 0 within {ms} ms
    change: check that the host of rank 0 was started, that MASTER_ADDR resolves to its reachable address on every host,
        and that MASTER_PORT is open
LG067 * ^RuntimeError: Connection (?:refused|timed out)$|^(?:socket\.)?(?:timeout|TimeoutError): timed out
    title: a rank could not connect to another one: nothing listened at the address, or a firewall blocks it
    change: check MASTER_ADDR and MASTER_PORT on every host and that the host of rank 0 was started first, and read its
        first error
LG070 [Rr]anks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier
    |timed out in monitoredBarrier after \d+ ms, waiting for rank (?P<absent>\d+)
    title: some ranks did not join a barrier, missing: {ranks}{absent}; the ranks that report it only waited
    change: check what the missing ranks did instead: loading, downloading or preparing data, or failing themselves;
        prepare data before the job, or raise the timeout (`ddp_timeout`)
LG192 * Stop_waiting response is expected|TCPStore.*(?:Broken pipe|sendBytes failed|recvValue failed|Connection (?:reset
    |was closed))|(?:sendBytes|recvValue) failed on SocketImpl|failed to recv, got 0 bytes
    title: a rank lost its connection to the store of rank 0: rank 0 or its host went down, or the network broke
    change: read the log of rank 0 (of the host of MASTER_ADDR): its first error is the cause; the ranks that report
        this only waited
LG073 * ^RuntimeError: Interrupted system call$
    title: a signal interrupted a rank while it waited for another one, for example because the job is being stopped
LG067 Unable to find address for: (?P<name>\S+)|ifa != nullptr
    title: gloo found no address for the interface {name}
    change: set `GLOO_SOCKET_IFNAME` to an interface that every host has (`ip -br addr`), or unset it
LG067 * gloo/transport/\S+\] connect \[(?P<address>[^\]]+)\]\S* ?:? ?\S*: ?(?:Connection refused|No route to host
    |timed out)
    title: gloo could not connect to {address}, the address that another rank published
    change: make each host's name resolve to the address that other hosts reach (not 127.0.x.x) in /etc/hosts, or set
        `GLOO_SOCKET_IFNAME`; open the ports between the hosts
LG239 \[W\S* .*\[c10d\] The (?:hostname of the client socket|client socket) cannot be retrieved
    title: the host's own name does not resolve; torch continues with its address
    change: add the host's name to /etc/hosts
LG218 * CUDA error: (?P<why>unspecified launch failure|an illegal instruction was encountered|misaligned address
    |unknown error|invalid configuration argument|invalid resource handle|too many resources requested for launch
    |initialization error|invalid (?:device (?:function|context|symbol)|program counter))
    title: a CUDA kernel or call failed: {why}
    change: run again with CUDA_LAUNCH_BLOCKING=1 to see the call; turn off fused or compiled kernels (flash-attn,
        xformers, liger, `torch.compile`), and check `dmesg | grep -i xid` for a broken GPU
LG016 CUDA error: (?:uncorrectable (?:ECC|NVLink) error|hardware stack error|.*GPU .*lost|.*GPU has fallen off)
LG011 CUDA error: (?:device kernel image is invalid|the provided PTX was compiled with an unsupported toolchain
    |named symbol)
    title: a kernel was compiled for another GPU, or with a CUDA that is newer than the driver
    change: install a driver for that CUDA, or rebuild the package with the CUDA of torch and TORCH_CUDA_ARCH_LIST of
        this GPU
LG210 * CUDA error: peer access is not supported|CUDA driver error: (?P<why>(?!out of)[\w ]+)
    title: the CUDA driver refused a call, such as peer access between GPUs or a kernel
    change: set NCCL_P2P_DISABLE=1 where GPUs have no peer access (`nvidia-smi topo -m`), and compare the driver with
        torch's CUDA
LG218 * CUDA error: (?:the launch timed out and was terminated|operation not (?:permitted|supported))
    title: the driver stopped or refused a kernel
    change: use a GPU without a display and a driver that supports torch's CUDA, and turn CUDA graphs off
LG001 (?:CUDA driver error|cuda runtime error \(2\)|Triton Error \[CUDA\]) ?: ?out of memory
    |torch\.AcceleratorError: CUDA error: out of memory
LG053 (?:unable to open shared memory object|shared memory object).*Too many open files|received 0 items of ancdata
    title: a rank or data loader worker reached its limit of open files while it passed tensors to another process
    change: raise `ulimit -n` (65536), call `torch.multiprocessing.set_sharing_strategy("file_system")`, or use fewer
        workers
LG005 unable to write to file </torch_\S+>: No space left|unable to (?:mmap|open|write|resize).*</(?:torch|psm)_\S+>
    title: shared memory (/dev/shm) is too small or full; data loader workers pass batches through it
LG004 unable to mmap (?P<bytes>\d+) bytes from file <(?P<path>[^>]+)>: Cannot allocate memory
    title: the host could not map {path} into memory: it is out of memory, or has reached its limit of memory maps
    change: load on fewer ranks at a time or with ZeRO-3 (each rank maps the whole file), raise `ulimit -v` and
        `vm.max_map_count`, and allow overcommit (`vm.overcommit_memory=1`)
LG004 * \[Errno 11\] Resource temporarily unavailable|fork: (?:retry: )?(?:Resource temporarily|Cannot allocate)
    title: the host refused another process or thread, most often because the process limit is reached
    change: raise `ulimit -u` (the container's pids limit), lower `num_workers`, `num_proc` and OMP_NUM_THREADS
LG003 * ProcessExitedException: process (?P<process>\d+) terminated with signal SIGKILL
    title: a process of `torch.multiprocessing.spawn` was killed (SIGKILL), most often because the host ran out of
        memory
LG018 * ProcessExitedException: process (?P<process>\d+) terminated with signal SIG(?:SEGV|ABRT|BUS|ILL|FPE)
LG074 * ProcessExitedException: process (?P<process>\d+) terminated with exit code \d+|ProcessRaisedException
LG003 * died with <Signals\.SIGKILL: 9>
LG018 * died with <Signals\.SIG(?:SEGV: 11|ABRT: 6|BUS: 7|ILL: 4|FPE: 8)>
LG018 * ^(?:corrupted size vs\. prev_size|double free or corruption|free\(\): invalid (?:pointer|size|next size)
    |malloc\(\): |munmap_chunk\(\): invalid|realloc\(\): invalid|malloc_consolidate\(\)|\*\*\* stack smashing)
    title: native code of a rank corrupted its heap or stack, and glibc aborted it
LG018 * Floating point exception(?: \(core dumped\)|$)
    title: native code of a rank divided by zero (SIGFPE)
LG211 * terminate called after throwing an instance of 'c10::(?P<kind>(?!Dist)\w*Error)'
    title: a C++ exception of torch (`c10::{kind}`) aborted the rank; the line `what():` gives the reason
    change: read the line `what():` below: a CUDA error there comes from an earlier kernel (CUDA_LAUNCH_BLOCKING=1 shows
        which), a timeout from a rank that did not join
"""
