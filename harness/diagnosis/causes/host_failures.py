# SPDX-License-Identifier: Apache-2.0
"""Hosts, the launcher and the scheduler."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

_PORT_USERS = r"torch/|deepspeed|rendezvous|elastic|accelerate|init_process_group"
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
        "set up the same environment under the same path on every host; an ssh command skips the part of ~/.bashrc "
        "for interactive shells",
        (
            FailureSignature(r"(?:python\S*|deepspeed|conda|torchrun|accelerate): (?:command )?not found"),
            FailureSignature(
                r"ModuleNotFoundError: No module named '?(?P<module>[\w.]+)|"
                r"python\S*: No module named (?P<name>[\w.]+)",
                sure=False,
            ),
            FailureSignature(r"^ImportError: (?!\S+\.so)", sure=False),
        ),
    ),
    FailureCause(
        "LG065",
        "option-refused",
        "the script, or the launcher, does not know an option",
        'DeepSpeed\'s launcher passes `--local_rank=N` to the script: parse it (`parser.add_argument("--local_rank",'
        " type=int)`), or pass `--no_local_rank`; put launcher options before the script's name",
        (
            FailureSignature(r"error: unrecognized arguments: (?P<option>.*)"),
            FailureSignature(r"error: the following arguments are required", sure=False),
            FailureSignature(r"error: argument \S+: (?:invalid|expected)", sure=False),
        ),
    ),
    FailureCause(
        "LG066",
        "port-taken",
        "the port of the rendezvous is in use",
        "end the job or leftover rank that holds it (`ss -ltnp`), or choose another: `launch.master_port` of a run "
        "spec, `--master_port` of deepspeed and torchrun, `--main_process_port` of accelerate",
        (
            FailureSignature(r"EADDRINUSE"),
            FailureSignature(r"[Aa]ddress already in use", frames=_PORT_USERS),
            FailureSignature(r"Errno 98\b", frames=_PORT_USERS),
        ),
    ),
    FailureCause(
        "LG067",
        "rendezvous-failed",
        "ranks could not connect to each other at the rendezvous",
        "check that all hosts were started, that all of them reach MASTER_ADDR, that firewalls open the port, and "
        "that the number of nodes is right",
        (
            FailureSignature(
                r"Timed out after \d+ seconds waiting for clients\. (?P<joined>\d+)/(?P<all>\d+) clients joined"
            ),
            FailureSignature(r"client socket has timed out after \d+ ?m?s while trying to connect to"),
            FailureSignature(
                r"client socket has failed to connect to (?:any network address of )?\(?\[?(?P<host>[^\s,\])|]+)",
                sure=False,
            ),
            FailureSignature(
                r"(?:No address associated with hostname|Temporary failure in name resolution|"
                r"Name or service not known|nodename nor servname provided)(?!'? thrown while requesting)",
                sure=False,
            ),
            FailureSignature(r"Gloo connectFullMesh failed", sure=False),
            FailureSignature(r"(?:MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE) expected, but not set"),
        ),
    ),
    FailureCause(
        "LG068",
        "ended-by-the-scheduler",
        "the scheduler ended the job",
        "request more time, or save more often and resume; `harness launch` saves on SIGUSR1 or SIGTERM",
        (
            FailureSignature(
                r"slurmstepd: error: .*CANCELLED AT|JOB \d+ ON \S+ CANCELLED|STEP \d+\.\d+ ON \S+ CANCELLED"
            ),
            FailureSignature(r"(?:The node was low on resource|Evicted|preempted by)", sure=False),
        ),
    ),
    FailureCause(
        "LG069",
        "asked-to-stop",
        "the job got a signal to stop: SIGTERM, or Ctrl-C",
        "if nobody stopped it, check the scheduler's log for a time limit or a preemption; the log shows no error "
        "of the job itself",
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
