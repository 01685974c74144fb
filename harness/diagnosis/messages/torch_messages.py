# SPDX-License-Identifier: Apache-2.0
"""Messages of torch: process groups, NCCL, rendezvous, elastic, devices."""

from __future__ import annotations

MESSAGES = r"""
LG211 Global rank \d+ is not part of group ::! deepspeed/runtime/zero
    title: ZeRO-3 broadcast from a rank outside its data-parallel process group, as happens with tensor parallelism
    change: install DeepSpeed 0.9.3 or later, which broadcasts from the first rank of the group, or use ZeRO stage 1
        with tensor parallelism
LG194 Duplicate GPU detected ?: ?rank (?P<a>\d+) and rank (?P<b>\d+)
    title: two ranks of one host use the same GPU (ranks {a} and {b})
LG194 Duplicate GPU detected
LG192 is setting up NCCL communicator and retrieving ncclUniqueId from \[(?P<from>\d+)\]
    title: the NCCL communicator was not set up: rank {from} did not publish the communicator's id in time; the ranks
        that report it only waited
    change: read the first error of rank {from}, which probably died or never started; kill processes that an earlier
        run left on the hosts; check that MASTER_ADDR and MASTER_PORT are reachable from all hosts, and that NCCL uses
        the right interface (NCCL_SOCKET_IFNAME)
LG192 store->get\('?(?P<key>[^')]*)'?\) got error|got error: (?:Connection reset by peer|Broken pipe|wait timeout
    |Socket Timeout).*store
    title: a rank waited for a store entry of another rank; that rank or the host of the store exited or is not
        reachable
LG192 wait timeout after (?P<ms>\d+)ms, keys: (?P<keys>\S+)
    title: ranks did not meet: one waited {ms} ms for a store entry ({keys}) of another rank, which died or never
        connected
    change: look for the first error of the ranks that do not report this; check that all hosts were started with the
        same MASTER_ADDR and port and reach each other (firewall, NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), and kill
        processes of earlier runs
LG192 Timed out initializing process group in store based barrier on rank.*world_size=(?P<all>\d+), (?:worker_count
    |num_workers_joined)=(?P<joined>\d+)
    title: only {joined} of {all} ranks joined the initialization of a process group; the ranks that report it only
        waited
    change: look for the first error of the ranks that do not report this; all hosts must be started with the same
        number of ranks, script and MASTER_ADDR; kill processes of earlier runs
LG192 Timed out initializing process group in store based barrier
    title: some ranks did not join the initialization of a process group; the ranks that report it only waited
    change: look for the first error of the ranks that do not report this; all hosts must be started with the same
        number of ranks, script and MASTER_ADDR; kill processes of earlier runs
LG070 Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>_?ALLGATHER\w*
    |_?ALLGATHER_BASE), NumelIn=(?P<numel>\d+), NumelOut=(?P<gathered>\d+)
    title: ranks waited in an all-gather of {gathered} elements (such as ZeRO-3's parameter gather) for a rank that did
        not join; the ranks that report the timeout only waited
    change: check with `py-spy dump` what the missing rank ran instead: a save or generation on one rank alone, a longer
        data or evaluation step, a module or expert that only some ranks run (`set_z3_leaf_modules`); raise the timeout
        (`ddp_timeout`, `timeout` of `init_distributed`) only where such a wait is normal
LG070 Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>BROADCAST\w*)(?:, Nume
    lIn=(?P<numel>\d+))?
    title: ranks waited in a broadcast for a rank that did not join, often the source; the ranks that report the timeout
        only waited
    change: check with `py-spy dump` what the source rank (mostly rank 0) did instead: loading or preparing data alone,
        a download, a save; prepare data before the job, and raise the timeout (`ddp_timeout`, `timeout` of
        `init_distributed`) only where such a wait is normal
LG070 Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>_?(?:ALLREDUCE
    |REDUCE)\w*)(?:, NumelIn=(?P<numel>\d+))?
    title: ranks waited in a reduction (gradients, a barrier, a loss or norm) for a rank that did not join; the ranks
        that report the timeout only waited
    change: check with `py-spy dump` what the missing rank did instead: a longer data, checkpoint or evaluation step,
        one batch more or less, a caught error, a dead host; raise the timeout (`ddp_timeout`, `timeout` of
        `init_distributed`) only where such a wait is normal
LG070 Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>_?ALLTOALL\w*)(?:, Num
    elIn=(?P<numel>\d+))?
    title: ranks waited in an all-to-all (experts, sequence parallelism) for a rank that did not join; the ranks that
        report the timeout only waited
    change: look for ranks whose batches, lengths or experts differ: every rank must run the same layers; `py-spy dump`
        on all ranks shows which one is elsewhere
LG070 Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>SEND
    |RECV)(?:, NumelIn=(?P<numel>\d+))?
    title: a pipeline stage waited for its neighbour, which did not send or receive; the ranks that report the timeout
        only waited
    change: check with `py-spy dump` what the neighbour stage's rank did instead: a longer step, an error, a different
        shape
LG239 socket\.cpp:\d+\] \[c10d\] The client socket has failed to connect to (?:any network address of )?\(?\[?(?P<addre
    ss>[^\],]+)\]?[:,] ?(?P<port>\d+)
    title: a rank could not connect to the rendezvous at {address}, port {port}; it tried again, but this log shows no
        success
LG239 socket\.cpp:\d+\] \[c10d\] The (?:IPv[46] )?network addresses of \((?P<address>[^,)]+), (?P<port>\d+)\) cannot b
    e retrieved
    title: the name of the rendezvous host does not resolve here: {address}
    change: set MASTER_ADDR (`--master_addr`, `--main_process_ip`) to a name or address that resolves on every host, or
        add it to /etc/hosts; a line about IPv6 alone is harmless
LG067 [Tt]he client socket has timed out after (?P<wait>\S+) while trying to connect to \(?(?P<addres
    s>[^,)\s]+), ?(?P<port>\d+)\)?
    title: a rank did not reach the rendezvous at {address}, port {port}: nothing listens there, or a firewall blocks it
    change: check that the main process runs on that host, that {address} (MASTER_ADDR) resolves to the same reachable
        address on every host, that firewalls open port {port}, and that the number of nodes is right
LG067 (?<!\[c10d\] )[Tt]he client socket has failed to connect to \[?(?P<address>[^\]\s]+)\]?:(?P<port>\d+) \((?P<wh
    y>[^)]*)\)
    title: a rank did not reach the rendezvous at {address}, port {port}: {why}
    change: check that the main process is up on that host and started first, that MASTER_ADDR is an address that all
        hosts reach, and that port {port} is open
LG067 (?<!\[c10d\] )The (?:IPv[46] )?network addresses of \((?P<address>[^,)]+), (?P<port>\d+)\) cannot be retrieve
    d \(gai error: -?\d+ - (?P<why>[^)]*)\)
    title: the name of the rendezvous host does not resolve here: {address} ({why})
    change: set MASTER_ADDR (`--master_addr`, `--main_process_ip`) to a name or address that resolves on every host, or
        add it to /etc/hosts
LG067 TCP client failed to connect/validate to host (?P<address>\S+?):(?P<port>\d+)
    title: a rank did not reach the rendezvous at {address}, port {port}
    change: check that the main process is up, that MASTER_ADDR is reachable from every host, and that port {port} is
        open
LG067 (?:torch\.distributed\.elastic\.rendezvous\.api\.)?RendezvousTimeoutError
    title: fewer than `--nnodes` nodes joined the rendezvous in time: some were not started, or cannot reach its address
    change: start all nodes with the same `--nnodes`, `--rdzv_id` and `--rdzv_endpoint` (an address that all reach, an
        open port), or raise `--rdzv_conf join_timeout=...`
LG067 * RendezvousConnectionError|The connection to the C10d store has failed
    title: a node could not connect to the rendezvous store, or lost it: the node that hosts it exited, or its address
        is not reachable
    change: look at the log of the node of `--rdzv_endpoint`, which may have failed first; check that its address and
        port are reachable from every node
LG067 * RendezvousClosedError
    title: the rendezvous was closed: another node exited, or an old run used the same `--rdzv_id`
    change: look at the log of the other nodes for the first failure; give each run its own `--rdzv_id`
LG067 Error initializing torch\.distributed using env:// rendezvous: environment variable (?P<name>\w+) expected, but n
    ot set
    title: the script was started without a launcher: {name} is not set
    change: start it with `deepspeed`, `torchrun` or `accelerate launch`, or set RANK, WORLD_SIZE, LOCAL_RANK,
        MASTER_ADDR and MASTER_PORT
LG067 (?:rank|endpoint) is absent in RendezvousParameters|Port is absent in endpoint
    change: give `--node_rank`, `--master_addr` and `--master_port` on every node
LG066 The server socket has failed to (?:listen on any local network address
    |bind to \S+).*?(?P<port>\d{2,5}) ?\(errno: 98
    title: port {port} of the rendezvous is in use on this host by another job or a leftover rank of a dead one
    change: end the process that holds it (`ss -ltnp`), or choose another: `launch.master_port` of a run spec,
        `--master_port` of deepspeed and torchrun, `--main_process_port` of accelerate, MASTER_PORT
LG066 server socket has failed to listen on any local network address
    title: the port of the rendezvous is in use on this host by another job or a leftover rank of a dead one
    change: end the process that holds it (`ss -ltnp`), or choose another: `launch.master_port` of a run spec,
        `--master_port` of deepspeed and torchrun, `--main_process_port` of accelerate, MASTER_PORT
LG211 Default process group (?:has not been initialized|is not initialized)|Process group (?:not initialized
    |has not been initialized)
LG211 * LOCAL_RANK is not in the environment|KeyError: '(?:LOCAL_RANK|RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT
    |LOCAL_WORLD_SIZE)'
    title: the environment variables of the rank are not set, most often because the script was started without a
        launcher
    change: start it with `deepspeed`, `torchrun` or `accelerate launch`
LG211 trying to initialize the default process group twice
    title: the process group was initialized twice
    change: call `deepspeed.init_distributed` or `init_process_group` once; the Accelerator and TrainingArguments do it
        themselves
LG211 Distributed package doesn't have NCCL built in|Distributed package doesn't have (?P<name>\w+) built in
    title: this torch was built without NCCL (a CPU build, Windows or macOS)
    change: install a CUDA build of torch on Linux, or use the backend `gloo`
LG211 No backend type associated with device type (?P<device>\w+)
    title: a collective got a tensor on {device}, but the process group has no backend for that device
    change: move the tensor to the rank's GPU first, or initialize with `backend="cpu:gloo,cuda:nccl"`; do not reduce or
        clip offloaded tensors yourself
LG211 Tensors must be CUDA and dense|Tensors must be on the same device|Cannot use NCCL .*CPU tensors
    title: NCCL got a tensor on the CPU
    change: move it to the rank's GPU before the collective
LG211 Invalid process group specified|is not part of (?:the )?group|Group .* is not registered
    title: a rank used a process group that it does not belong to
    change: create groups on all ranks (`new_group`), and use a group only on its members
LG010 NCCL error in: .*CUDA driver version is insufficient|Last error:.*CUDA driver version is insufficient
LG010 NCCL error in: .*driver.*(?:too old|insufficient|unsupported)
LG001 NCCL error in: .*out of memory
    title: NCCL could not allocate its buffers: the GPU ran out of memory
    change: use a smaller micro-batch, a higher ZeRO stage or offload; check `nvidia-smi` for other processes
LG005 NCCL error in: .*(?:shared memory segment|/dev/shm|shm)
    title: NCCL could not allocate shared memory: /dev/shm is too small or full
    change: make /dev/shm larger (`docker run --shm-size=16g` or `--ipc=host`; a `Memory` volume in Kubernetes)
LG194 NCCL error in: .*(?:invalid device ordinal)
LG016 NCCL error in: .*(?:uncorrectable|ECC|hardware|GPU is lost|unspecified launch failure)
LG073 * NCCL [Ee]rror(?: in)?: .*(?:remote process exited|ncclRemoteError|Connection (?:closed|reset)|socketProgress
    |closed by remote|Broken pipe)
    title: a rank lost its NCCL connection to another one, which exited or was cut off
LG072 * NCCL [Ee]rror(?: in)?: .*(?:Connection refused|No route to host|Network is unreachable|socketStartConnect
    |socketPollConnect|ibv_\w+ failed|NET/IB)
LG210 * NCCL error in: .*unhandled system error.*Last error: ?\|? ?(?P<last>.*)
    title: a system call of NCCL failed on this rank: {last}
    change: run once with NCCL_DEBUG=INFO; the usual causes are the interface (NCCL_SOCKET_IFNAME), /dev/shm
        (`--shm-size`), limits (`ulimit -l`, `ulimit -n`) and another rank that failed first
LG210 * NCCL error in: .*unhandled cuda error.*Last error: ?\|? ?(?P<last>.*)
    title: a CUDA call of NCCL failed on this rank: {last}
    change: compare the driver with torch's CUDA and NCCL (`nvidia-smi`, `torch.cuda.nccl.version()`), look for an
        earlier CUDA error, and check that GPU memory is free; run once with NCCL_DEBUG=INFO; if NCCL_P2P_DISABLE=1
        helps, the problem is P2P access
LG210 * NCCL error in: .*invalid usage.*Last error: ?\|? ?(?P<last>.*)
    title: NCCL reports invalid usage: {last}
    change: give each rank its own GPU (`torch.cuda.set_device(local_rank)`), and run the same collectives on all ranks;
        run once with NCCL_DEBUG=WARN
LG210 * NCCL [Ee]rror(?: in)?: .*unhandled cuda error|ncclUnhandledCudaError
    title: a CUDA call of NCCL failed, and the log does not say which
    change: run once with NCCL_DEBUG=INFO, whose WARN lines name it; NCCL_P2P_DISABLE=1 (and NCCL_CUMEM_ENABLE=0) works
        around missing P2P access between GPUs (`nvidia-smi topo -m`); other causes are an old driver, no free GPU
        memory and an earlier CUDA error
LG210 * NCCL [Ee]rror(?: in)?: .*invalid usage
    title: NCCL reports invalid usage, most often two ranks on one GPU or different collectives
    change: call `torch.cuda.set_device(local_rank)`, and run once with NCCL_DEBUG=WARN, which names the reason
LG073 * NCCL [Ee]rror(?: in)?: .*unhandled system error
    title: a system call of NCCL failed, most often because another rank exited; otherwise because of the network or
        /dev/shm
    change: look for the rank that failed first; if none did, run once with NCCL_DEBUG=INFO, whose WARN lines name the
        call (NCCL_SOCKET_IFNAME, `--shm-size`, `ulimit -l`)
LG071 * Detected mismatch between collectives on ranks
LG019 Feature '(?P<feature>[^']*)' requires .target sm_\d+
    title: this GPU does not support an instruction of a kernel (`{feature}`)
    change: use fp16 instead of bf16, or a newer GPU
LG210 * (?:symbol lookup error|undefined symbol): .*nccl\w*|NCCL version mismatch|undefined symbol: nccl\w+
    title: the process loaded a different NCCL library than torch needs
    change: remove the other NCCL from LD_LIBRARY_PATH and LD_PRELOAD, or reinstall `nvidia-nccl-cu12` in the version
        that torch requires
LG089 * Expected all tensors to be on the same device ::! deepspeed/runtime/zero/(?:stage|offload)
    |deepspeed/runtime/(?:fp16|bf16)
    title: DeepSpeed's optimizer step combined an offloaded gradient on the CPU with a scale on the GPU: a bug of that
        DeepSpeed release
    change: install a newer DeepSpeed (0.14.1 and 0.14.2 have this bug in gradient clipping with offload, releases
        before 0.15 in the overflow check), or turn `offload_optimizer` off
LG081 Expected all tensors to be on the same device, but found at least two devices, (?P<a>\S+) and (?P<b>[^!\s]+)
    title: an operation got tensors on two devices ({a} and {b})
    change: move the inputs to the engine's device (`batch.to(engine.device)`), load the model without
        `device_map="auto"`, and create tensors inside `forward` on the device of the inputs
LG081 Expected all tensors to be on the same device(?! and contiguous), but (?:got|found)
LG081 [Ee]xpected (?:mat1 and mat2|m1 and m2|scalar type \w+ but found|object of (?:scalar|data|device) ?type
    |self and mat2|query, key, and value) ?(?P<what>[^.]*)
    title: an operation got tensors of two dtypes: the inputs, an adapter or a module in fp32 and the model in fp16 or
        bf16, or the reverse
    change: cast the inputs to the dtype of the engine (`x.half()` under fp16, `x.to(torch.bfloat16)` under bf16), load
        the model and adapters in that dtype (`torch_dtype=torch.bfloat16`; peft: `autocast_adapter_dtype=False`), or
        run the forward pass or generation under `torch.autocast("cuda", dtype=torch.bfloat16)`
LG081 Input type \(\S+\) and (?:weight|bias) type
    title: the input has a different dtype or device than the weights
    change: cast and move the inputs: `x.to(engine.device, dtype=next(engine.module.parameters()).dtype)`
LG081 (?:FlashAttention|Flash Attention|flash_attn|flash attention)\S* only supports? (?:fp16 and bf16|Float16)
    |FlashAttention only support fp16 and bf16
    title: FlashAttention got fp32 tensors; it supports only fp16 and bf16
    change: load the model with `torch_dtype=torch.bfloat16` and enable `bf16` (or fp16) in the JSON; with LoRA keep the
        adapters in that dtype
LG015 * CUDA error: device-side assert triggered
LG017 * CUDA error: an illegal memory access was encountered
LG001 CUDA error: out of memory
LG004 * CUDA error: invalid argument ::! pin_memory|offload|swap_tensor|cpu_adam|pinned
    title: the driver refused to pin a host buffer (page-locked memory) of this size
    change: set `pin_memory: false` in `offload_optimizer` and `offload_param`, raise `ulimit -l`, or make the pinned
        buffers smaller
LG218 * CUBLAS_STATUS_NOT_INITIALIZED
    title: cuBLAS could not be initialized, most often because GPU memory is full or an earlier kernel failed
    change: free memory (a smaller micro-batch, no other process on the GPU), and run with CUDA_LAUNCH_BLOCKING=1; token
        ids beyond the vocabulary cause it too
LG218 * CUBLAS_STATUS_(?P<status>\w+)
    title: cuBLAS failed: {status}
LG218 * cuDNN error: (?P<status>(?!CUDNN_STATUS_ALLOC_FAILED)\w+)|CUDNN_STATUS_(?!ALLOC_FAILED)\w+|Unable to find a valid cuDNN algorithm
    title: cuDNN failed, most often because GPU memory is full or the process loaded a different cuDNN than torch's
    change: free GPU memory (a smaller micro-batch); remove other cuDNN folders from LD_LIBRARY_PATH, and reinstall
        torch
LG218 * CUSOLVER_STATUS_\w+|CUSPARSE_STATUS_\w+|cusolver error
LG012 (?:Torch not compiled with CUDA enabled|no NVIDIA driver on your system)
LG012 * CUDA unknown error - this may be due to an incorrectly set up environment
    title: CUDA cannot be initialized in this process: the driver does not work, or CUDA_VISIBLE_DEVICES changed after
        the start
    change: look at `nvidia-smi` and `dmesg`; reload the module (`modprobe -r nvidia_uvm; modprobe nvidia_uvm`) or
        reboot; set CUDA_VISIBLE_DEVICES only before Python starts
LG012 Error 802: system not yet initialized
    title: the NVSwitches of this host are not initialized
    change: start the fabric manager that has the driver's version (`systemctl status nvidia-fabricmanager`)
LG010 Error 80[34]: (?:forward compatibility|system has unsupported display driver)
    title: the CUDA libraries do not match the loaded driver: it was updated without a reboot, or `cuda/compat` is
        loaded
    change: reboot or reload the driver; remove `cuda/compat` from LD_LIBRARY_PATH
LG010 Failed to initialize NVML: Driver/library version mismatch
    title: the driver's library and its loaded kernel module have different versions, as after an update without a
        reboot
    change: reboot the host, or unload the NVIDIA modules
LG013 Attempting to deserialize object on CUDA device (?P<device>\d+) but torch\.cuda\.device_count\(\) is (?P<coun
    t>\d+)
    title: the checkpoint was saved on GPU {device}, and this rank sees only {count} GPU(s)
    change: load it with `map_location="cpu"`
LG012 Attempting to deserialize object on a CUDA device but torch\.cuda\.is_available\(\) is False
    title: the checkpoint was saved on a GPU, and torch sees none here
    change: load it with `map_location="cpu"`, or check `nvidia-smi` and that torch is a CUDA build
LG005 DataLoader worker \(pid.*is killed by signal: Bus error
LG002 * DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Killed
LG018 * DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Segmentation fault
LG215 * DataLoader worker \(pid\(?s?\)? ?(?P<pids>[\d, ]+)\) (?:exited unexpectedly
    |is killed by signal: (?P<signal>[^.]*))
LG215 * DataLoader timed out after|Pin memory thread exited unexpectedly
    title: the data loader got no batch in time, or its pin-memory thread died: a worker is stuck or dead
    change: run with `num_workers=0` to see the worker's error, and check the storage that the worker reads from
LG053 Too many open files\. Communication with the workers is no longer possible
LG211 Unknown backend '?(?P<name>[^'. ]+)'?\. Specify
    |We detected accelerator .* But we don't know which communication backend|No backend (?:for|type)
    |Default (?:device not found|backend not registered)|backend because no backend
    title: torch has no communication backend for this device or name
    change: initialize with `nccl` on NVIDIA GPUs and `gloo` on the CPU, and for another accelerator import its package
        first
LG211 Process group .* is not initialized in the world group map|(?:Process group|group) cannot be None
    |process group specified or has been destroyed
    title: a process group was used before it was created, or after it was destroyed
    change: create it on all ranks, and destroy it only at the end
LG211 Expected timeout argument to be of type datetime\.timedelta
    change: pass `datetime.timedelta(seconds=...)` as the timeout
LG071 Invalid usage of tensors with different dtypes|Coalescing manager requires all collectives to be the same type
    title: a collective got tensors of different dtypes, or different operations were coalesced
    change: give all tensors of a collective one dtype
LG071 Argument ``(?:gather|scatter)_list`` must|Must provide object_gather_list on dst rank
    |source rank must provide non-None
    title: gather or scatter got a list on the wrong rank, or none on the right one
    change: pass the list only on the destination rank of a gather, or on the source rank of a scatter
LG013 device_id \S+ is out of range
    title: a rank was assigned the index of a GPU that does not exist on this host
    change: start no more ranks per host than it has GPUs, and use the local rank as the index
LG067 nnodes=\S+ is not in "MIN:MAX" format|Unsupported nproc_per_node value|nproc_per_node.*is not available|(?:Cuda
    |Xpu) is not available\.$
    title: torchrun cannot use the number of nodes or ranks that it got
    change: give `--nnodes N` and `--nproc_per_node` as numbers; `gpu` needs GPUs that torch sees
"""
