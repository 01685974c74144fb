# SPDX-License-Identifier: Apache-2.0
"""Collectives: most of their errors are echoes of a failure on another rank."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

_TIMED_OUT = (
    "find the missing rank: it may have been in a longer data, checkpoint or evaluation step, have had one batch more "
    "or less than the others, have waited for a lock, or be on a dead host (`py-spy dump` shows it); "
)

CAUSES = (
    FailureCause(
        "LG070",
        "collective-timed-out",
        "ranks waited in a collective for one that did not join; the ranks that report the timeout only waited",
        _TIMED_OUT + "set a longer timeout only where such a wait is normal",
        (
            FailureSignature(
                r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)"
                r"(?:, NumelIn=(?P<numel>\d+))?",
            ),
            FailureSignature(
                r"failure detected by watchdog at work sequence id: (?P<seq>\d+) PG status: last enqueued work: "
                r"(?P<enqueued>-?\d+), last completed work: (?P<done>-?\d+)"
            ),
            FailureSignature(
                r"Timeout at NCCL work: (?P<seq>\d+), last enqueued NCCL work: (?P<enqueued>-?\d+), "
                r"last completed NCCL work: (?P<done>-?\d+)"
            ),
            FailureSignature(
                r"[Cc]ollective operation timeout|Some NCCL operations have failed or timed out|"
                r"wait timeout after \d+ms, keys"
            ),
            FailureSignature(
                r"(?:ProcessGroupNCCL's )?watchdog (?:got stuck|is stuck|thread (?:got|is) stuck)|"
                r"Could not acquire GIL",
                False,
            ),
            FailureSignature(
                r"Monitored ?[Bb]arrier.*(?P<rank>\d+) failed|"
                r"Rank(?:s)? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier"
            ),
            FailureSignature(r"Timed ?out waiting for|store->get.*[Tt]imeout|DistStoreError", sure=False),
            FailureSignature(r"Socket Timeout", sure=False),
        ),
        level="echo",
    ),
    FailureCause(
        "LG071",
        "ranks-disagree",
        "the ranks called different collectives: another operation, shape or order",
        "look for a branch that only some ranks take (saving, evaluation, an empty batch, an expert without tokens), "
        "and for shapes that differ; TORCH_DISTRIBUTED_DEBUG=DETAIL names the first mismatch",
        (
            FailureSignature(r"Is there a distributed collective mismatch in your code"),
            FailureSignature(r"op\.preamble\.length <= op\.nbytes"),
            FailureSignature(r"Detected mismatch between collectives on ranks|Mismatch between collective"),
            FailureSignature(r"mismatch between ranks for .*|disagreement (?:between|on|for) rank", sure=False),
            FailureSignature(
                r"tracing error at step \d+|'status': '(?:INFLIGHT|NOT_AVAILABLE)'",
                sure=False,
                frames="(?:^|/)deepspeed/",
            ),
        ),
    ),
    FailureCause(
        "LG072",
        "network-failed",
        "the network between ranks failed",
        "check the interface that NCCL uses (NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, NCCL_IB_HCA), links and switches "
        "(`ibstat`), and the memlock limit for InfiniBand (`ulimit -l`)",
        (
            FailureSignature(r"NCCL WARN NET/IB ?: ?Got completion .*(?:error|status)"),
            FailureSignature(r"NCCL WARN .*(?:No route to host|Network is unreachable|link down|port error)"),
            FailureSignature(
                r"NCCL WARN .*(?:Connection refused|connect to .* failed|Connect to .* failed)", sure=False
            ),
            FailureSignature(
                r"(?:socketStartConnect|socketPollConnect|ncclSocketConnect).*(?:failed|timed out)", sure=False
            ),
            FailureSignature(r"No route to host|Network is unreachable", sure=False),
        ),
    ),
    FailureCause(
        "LG073",
        "peer-was-lost",
        "a rank lost its connection to another one, which exited or was cut off",
        "find the rank that failed first in its host's log, `dmesg` or the scheduler's log; this log only shows "
        "that it is gone",
        (
            FailureSignature(
                r"Connection closed by peer|Connection reset by peer|[Bb]roken pipe|Errno (?:32|104)\b", sure=False
            ),
            FailureSignature(
                r"ncclRemoteError|remote process (?:exiting prematurely|exited)|NCCL communicator was aborted",
                sure=False,
            ),
            FailureSignature(
                r"ncclSystemError|ncclUnhandledCudaError|ncclInternalError|ncclInvalidUsage|NCCL error", sure=False
            ),
            FailureSignature(
                r"NCCL WARN .*(?:socketProgress|Connection closed|closed by remote peer|misc/socket)", sure=False
            ),
            FailureSignature(r"terminate called after throwing|Fatal Python error: Aborted|what\(\):", sure=False),
            FailureSignature(r"DistBackendError|DistNetworkError|gloo/transport|recvBytes|failed to recv", sure=False),
            FailureSignature(r"To avoid data inconsistency, we are taking the entire process down", sure=False),
            FailureSignature(r"Process group watchdog thread terminated|ncclCommAbort|Aborting due to", sure=False),
        ),
        level="echo",
    ),
    FailureCause(
        "LG074",
        "launcher-says-it-failed",
        "a rank ended with an error that is not in this log",
        "read the log of that rank or host; with torchrun, `@record` or `--redirects 3` keeps its output",
        (
            FailureSignature(r"exits with return code = (?P<code>-?\d+)", sure=False),
            FailureSignature(r"ChildFailedError|failed \(exitcode: (?P<exit>-?\d+)\)", sure=False),
            FailureSignature(r"ssh exited with exit code \d+|Exited with exit code \d+", sure=False),
            FailureSignature(
                r"MPI_ABORT|mpirun (?:noticed|detected)|BAD TERMINATION|Primary job +terminated", sure=False
            ),
            FailureSignature(r"subprocess\.CalledProcessError|returned non-zero exit status", sure=False),
        ),
        level="end",
    ),
    FailureCause(
        "LG076",
        "run-hung",
        "no rank made progress within `launch.hang_timeout_seconds`, so the harness ended the run",
        "read the stacks of the ranks in the run's `logs/stacks-*.txt`: the others wait for the rank named, or for the "
        "one outside their collective; set a longer `launch.hang_timeout_seconds` only where such a wait is normal",
        (
            FailureSignature(r"^harness hung in .*no progress for .*; ending the run"),
            FailureSignature(r"^harness hung in .*nothing moved for .*; ending the run"),
        ),
    ),
    FailureCause(
        "LG077",
        "host-cut-off",
        "a host stopped sending heartbeats: it went down, or lost its network",
        "check whether the host is up, and look at its link and its logs (`last -x`, `dmesg`); `launch.max_restarts` "
        "with `launch.min_hosts` continues without it",
        (
            FailureSignature(r"^harness no heartbeat from host (?P<host>\S+)(?: and \d+ more hosts?)?; ending the run"),
            FailureSignature(r"^harness nothing is heard of host (?P<host>\S+) any more; ending the run"),
        ),
    ),
    FailureCause(
        "LG075",
        "trained-on-this-node-alone",
        "the launcher found no hostfile, so it started ranks on this host alone, without the other hosts",
        "for several hosts pass the hostfile with `--hostfile` (accelerate: `deepspeed_hostfile`; the default is "
        "/job/hostfile), with one `NAME slots=N` per line; a job on one host can ignore this",
        (FailureSignature(r"Unable to find hostfile, will proceed with training with local resources only"),),
        level="hint",
    ),
)
