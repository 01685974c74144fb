# SPDX-License-Identifier: Apache-2.0
"""Hosts, the launcher and the scheduler."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

_LAUNCHER_FRAMES = r"launcher/(?:runner|launch|multinode_runner)|bin/deepspeed"

CAUSES = (
    FailureCause(
        "LG060",
        "host-not-reachable",
        "a host could not be reached by ssh",
        "log in by hand from the host that launches (`ssh HOST hostname`): keys without a passphrase in "
        "every direction, "
        "host keys known (`ssh-keyscan`), names that resolve; `harness doctor` tests it",
        (
            FailureSignature(r"Host key verification failed"),
            FailureSignature(r"REMOTE HOST IDENTIFICATION HAS CHANGED"),
            FailureSignature(r"Permission denied \((?:publickey|password|gssapi|keyboard)[^)]*\)"),
            FailureSignature(
                r"ssh: (?:connect to host (?P<host>\S+) port \d+: |Could not resolve hostname (?P<name>[^:\s]+))"
            ),
            FailureSignature(
                r"ssh_exchange_identification|kex_exchange_identification|Connection reset by \S+ port 22"
            ),
            FailureSignature(r"unable to proceed.*unreachable|was unable to be reached|passwordless-ssh"),
            FailureSignature(r"ssh exited with exit code 255", sure=False),
        ),
    ),
    FailureCause(
        "LG061",
        "hostfile-refused",
        "the launcher refused the hostfile, or the hosts selected from it",
        "fix the line named: `NAME slots=N`, each host once; `--include` and `--exclude` take "
        "`HOST:0,1@HOST` with names of "
        "the hostfile; `harness validate-config --hostfile` checks it",
        (
            FailureSignature(r"Hostfile (?:contains|is empty)"),
            FailureSignature(r"Hostname '(?P<host>[^']*)' not found in hostfile|No slot '[^']*' specified on host"),
            FailureSignature(
                r"include_str and exclude_str are mutually exclusive|Cannot specify num_nodes/gpus with include"
            ),
            FailureSignature(
                r"Num nodes is >1 but no extra nodes available|Unable to proceed, no GPU resources available"
            ),
            FailureSignature(r"backend cannot select specific device ids"),
            FailureSignature(r"node_rank is not set correctly"),
            FailureSignature(r"IndexError: list index out of range", sure=False, frames=_LAUNCHER_FRAMES),
        ),
    ),
    FailureCause(
        "LG062",
        "launcher-not-there",
        "the requested launcher is not installed",
        "install it on the host that launches (`pdsh`, `mpirun`, `srun`), or name another with `--launcher`",
        (
            FailureSignature(r"launcher '(?P<name>[^']*)' not installed|Unknown launcher \S+"),
            FailureSignature(r"No such file or directory: '(?:pdsh|mpirun|srun)'"),
            FailureSignature(r"(?:pdsh|mpirun|srun): (?:command )?not found"),
        ),
    ),
    FailureCause(
        "LG063",
        "environment-file-refused",
        "a line of `.deepspeed_env` is not NAME=VALUE",
        "write one `NAME=VALUE` per line, without `export`, comments or quotes",
        (FailureSignature(r"not enough values to unpack \(expected 2, got 1\)", sure=False, frames=_LAUNCHER_FRAMES),),
    ),
    FailureCause(
        "LG064",
        "program-missing-on-a-host",
        "a host lacks Python, a package or the script",
        "make every host have the same environment under the same path; the shell that ssh opens reads no "
        "~/.bashrc part "
        "for interactive use",
        (
            FailureSignature(r"(?:python\S*|deepspeed|conda|torchrun|accelerate): (?:command )?not found"),
            FailureSignature(
                r"ModuleNotFoundError: No module named '?(?P<module>[\w.]+)|python\S*: No module named (?P<name>[\w.]+)"
            ),
            FailureSignature(r"^ImportError: (?!\S+\.so)", sure=False),
        ),
    ),
    FailureCause(
        "LG065",
        "option-refused",
        "the script, or the launcher, does not know an option",
        "DeepSpeed's launcher gives every script `--local_rank=N`: let it be parsed "
        "(`deepspeed.add_config_arguments`), or "
        "pass `--no_local_rank`; options of the launcher stand before the script's name",
        (
            FailureSignature(r"error: unrecognized arguments: (?P<option>.*)"),
            FailureSignature(r"error: the following arguments are required"),
            FailureSignature(r"error: argument \S+: (?:invalid|expected)"),
        ),
    ),
    FailureCause(
        "LG066",
        "port-taken",
        "the port of the rendezvous is taken",
        "another job, or a rank of a dead one, holds it: end that, or choose another with `--master_port` "
        "(`launch.master_port`)",
        (
            FailureSignature(r"EADDRINUSE"),
            FailureSignature(r"[Aa]ddress already in use"),
            FailureSignature(r"Errno 98\b"),
        ),
    ),
    FailureCause(
        "LG067",
        "rendezvous-failed",
        "ranks did not connect to each other at the start",
        "check that all hosts were started; MASTER_ADDR must be a name or address that all of them reach, "
        "the port open "
        "in firewalls, and the number of nodes right",
        (
            FailureSignature(
                r"Timed out after \d+ seconds waiting for clients\. (?P<joined>\d+)/(?P<all>\d+) clients joined"
            ),
            FailureSignature(r"client socket has timed out after \d+ ?m?s while trying to connect to"),
            FailureSignature(
                r"client socket has failed to connect to (?:any network address of )?\(?\[?(?P<host>[^\s,\])|]+)"
            ),
            FailureSignature(r"RendezvousTimeoutError|RendezvousConnectionError|RendezvousClosedError"),
            FailureSignature(r"No address associated with hostname|Temporary failure in name resolution", sure=False),
            FailureSignature(r"Name or service not known|nodename nor servname provided", sure=False),
            FailureSignature(r"Gloo connectFullMesh failed", sure=False),
            FailureSignature(r"NCCL WARN Bootstrap : no socket interface found"),
            FailureSignature(r"(?:MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE) expected, but not set"),
        ),
    ),
    FailureCause(
        "LG068",
        "ended-by-the-scheduler",
        "the scheduler ended the job",
        "ask for more time, or save more often and resume; `harness launch` saves on SIGUSR1 or SIGTERM",
        (
            FailureSignature(r"CANCELLED AT .*DUE TO (?P<why>TIME LIMIT|PREEMPTION|NODE FAILURE)"),
            FailureSignature(
                r"slurmstepd: error: .*CANCELLED AT|JOB \d+ ON \S+ CANCELLED|STEP \d+\.\d+ ON \S+ CANCELLED"
            ),
            FailureSignature(r"DUE TO NODE FAILURE|Node failure on|NODE_FAIL"),
            FailureSignature(r"(?:The node was low on resource|Evicted|preempted by)", sure=False),
        ),
    ),
    FailureCause(
        "LG069",
        "asked-to-stop",
        "the job was asked to stop: SIGTERM, or Ctrl-C",
        "the job has no error; if nobody stopped it, check the scheduler's log for a time limit or a pre-emption",
        (
            FailureSignature(r"^KeyboardInterrupt\b"),
            FailureSignature(r"Process \d+ got signal: (?:15|2|1)\b|SignalException"),
            FailureSignature(r"exits with return code = (?:-15|143|-2|130)\b", sure=False),
            FailureSignature(r"Main process received SIG(?:TERM|INT), exiting", sure=False),
            FailureSignature(
                r"[Rr]eceived (?:signal )?(?:Signals\.)?SIG(?:TERM|INT|HUP)|Received \d+ death signal", sure=False
            ),
        ),
        level="end",
    ),
)
