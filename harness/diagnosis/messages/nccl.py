# SPDX-License-Identifier: Apache-2.0
"""Messages of NCCL, its network plug-ins, UCX, libfabric and gloo."""

from __future__ import annotations

_RDMA_SETTINGS = """
    change: compare the ports of all hosts (`ibstat`, `ibv_devinfo`: state, MTU, link layer), and NCCL's settings on
        all of them: `NCCL_IB_HCA`, `NCCL_IB_GID_INDEX` (RoCE v2: often 3), `NCCL_IB_TC`; `NCCL_IB_DISABLE=1` shows
        whether RDMA is at fault
"""

MESSAGES = rf"""
LG067 NCCL WARN Bootstrap : no socket interface found|NCCL WARN NET/Socket : no (?:socket )?interface found|no interface found for NCCL_SOCKET_IFNAME
    title: NCCL found no network interface on a host
    change: correct `NCCL_SOCKET_IFNAME`, which names an interface that this host does not have (`ip -br addr` lists
        those it has): give a prefix that all hosts share, exclude some with `^docker,lo`, or unset it
LG073 * NET/IB ?: ?Got completion .*status=(?:IBV_WC_WR_FLUSH_ERR|5\b)
LG072 * NET/IB ?: ?Got completion from peer (?P<peer>[^\s<]+)(?:<\d+>)? with (?:status|error)=?(?: ?)(?:IBV_WC_RETRY_EXC_ERR\(12\)|12\b).*?(?:hca (?P<hca>\w+))?$
    title: an RDMA transfer exceeded its retries (status 12): the peer, its network card or the path to it was down
    change: check whether the peer exited first; if not, check links, cables and switches between the two hosts
        (`ibstat`, `perfquery`, `mlxlink`) and congestion control; `NCCL_IB_TIMEOUT=22` and `NCCL_IB_RETRY_CNT=7`
        tolerate short outages
LG072 * NET/IB ?: ?Got completion from peer (?P<peer>[^\s<]+)(?:<\d+>)? with (?:status|error).*?(?:vendor err (?P<vendor>\d+))?.*?(?:hca (?P<hca>\w+))?$
    title: an RDMA transfer failed{_RDMA_SETTINGS.rstrip()}
LG072 * NET/IB ?: .*(?:Got async event|Got port event|async fatal event) ?:? .*(?:port error|device fatal|QP fatal|port_err|GID table change|link)
    title: an InfiniBand port failed while NCCL used it
LG004 NCCL WARN Call to ibv_(?:reg_mr|reg_mr_iova2|create_cq|create_qp)\w* failed.*(?:Cannot allocate memory|ENOMEM)
    title: a host could not lock enough memory for RDMA
    change: raise the limit of locked memory (`ulimit -l unlimited`; `memlock` in limits.conf, `LimitMEMLOCK=infinity`
        of slurmd, `--ulimit memlock=-1` of Docker) on every host
LG072 * NCCL WARN Call to ibv_modify_qp failed.*(?:Connection timed out|Invalid argument|No such device|Network is unreachable)
    title: NCCL could not open an RDMA connection between two network cards{_RDMA_SETTINGS.rstrip()}
LG072 * NCCL WARN (?:Call to )?ibv_\w+ failed|NCCL WARN NET/IB ?: ?(?:Unable to open device|No device found)|NCCL WARN NET/IB ?: .*(?:fail|error)
    title: an InfiniBand or RoCE call of NCCL failed: a card is down, or the hosts have different
        settings{_RDMA_SETTINGS.rstrip()}
LG072 * NCCL WARN NET/OFI .*(?:[Ee]rror|[Ff]ailed|RC: -?\d+)|NET/OFI (?:Request|Libfabric) .*(?:error|failed)
    title: an EFA or libfabric transfer failed
    change: allow all traffic within the security group in both directions, use the same `aws-ofi-nccl` and libfabric
        on all hosts, set `FI_PROVIDER=efa`, and check `fi_info -p efa`
LG072 * UCX +ERROR|ucp_\w+ failed|Transport retry count exceeded on (?P<hca>mlx\w+)
    title: UCX lost a connection or could not open one
    change: check the link of that card (`ibstat`); `UCX_NET_DEVICES` and `UCX_TLS` must name devices and transports
        that all hosts have
LG005 NCCL WARN (?:Call to posix_fallocate failed|Error: failed to extend|Error while (?:creating|attaching to) shared memory segment) ?.*(?:No space left|/dev/shm)|NCCL WARN .*posix_fallocate.*No space
LG071 * NCCL WARN Message truncated
LG071 * NCCL WARN .*(?:mismatch(?:ed)? (?:between ranks|collective|size)|different (?:NCCL )?versions)
LG013 NCCL WARN Duplicate GPU detected ?: ?rank (?P<rank>\d+)
    title: two ranks of one communicator use the same GPU
    change: give each rank its own GPU: `torch.cuda.set_device(local_rank)` before the first use of CUDA, no more
        ranks per host than GPUs (`--num_gpus`, `slots`), and the same CUDA_VISIBLE_DEVICES for all local ranks
LG004 * CUDA error: OS call failed or operation not supported on this OS
    title: the driver refused a call to the operating system, most often to pin (page-lock) host memory
    change: raise the limit of locked memory (`ulimit -l`, the container's memlock), pin less (`pin_memory: false` of
        `offload_optimizer`, `offload_param` and the data loader), and check whether the host has memory left
LG072 * NCCL WARN Cuda failure.*peer access is not supported between these two devices
    title: two GPUs of a host cannot access each other's memory
    change: set `NCCL_P2P_DISABLE=1` to confirm it; then check `nvidia-smi topo -p2p r`, ACS and the IOMMU (off for P2P
        over PCIe), and the limits of the container
LG249 uncorrectable NVLink error detected
LG012 * CUDA error: all CUDA-capable devices are busy or unavailable|cudaErrorDevicesUnavailable
    title: the GPU is busy or unavailable: another process holds it in exclusive mode, or it needs a reset
    change: look at `nvidia-smi` for processes and for the compute mode (`nvidia-smi -c DEFAULT` turns exclusive mode
        off), kill leftover processes, and reset the GPU (`nvidia-smi -r`) if no process holds it
LG012 * CUDA error: system not yet initialized
    title: the NVSwitches of this host are not initialized
    change: start the fabric manager whose version matches the driver (`systemctl status nvidia-fabricmanager`)
LG005 Unexpected bus error encountered in worker\. This might be caused by insufficient shared memory
LG070 * due to ProcessGroupNCCL watchdog hang|Heartbeat monitor timed out! Process will be terminated
LG010 NCCL WARN Cuda failure (?:35|222|803) '
LG073 * NCCL WARN .*(?:Connection closed by (?:remote )?peer|connection reset by peer|remote process exited)
LG072 * NCCL WARN .*(?:socketPollConnect|socketStartConnect|socketConnect|Connect to|Call to connect).*(?:No route to host|Network is unreachable|timed out|Connection refused|returned 113|returned 111|returned 110)
    title: NCCL could not connect to another host
    change: set `NCCL_SOCKET_IFNAME` to the interface that reaches all hosts, and open the ports between them (NCCL
        often picks `docker0` or a virtual bridge by mistake); check whether the peer exited first
LG067 * Gloo connectFullMesh failed with
    title: gloo could not connect every rank to every other rank
    change: set `GLOO_SOCKET_IFNAME` to the interface that reaches all hosts, make host names resolve to that address
        on every host (not to 127.0.0.1), and open the ports between them
LG070 * gloo/transport/\S+ Timed ?out|Timed out waiting \d+ms for (?:recv|send) operation|Application timeout caused pair closure
"""
