"""Hosts, the launcher and the scheduler."""

from __future__ import annotations

from harness.diagnosis.values import Cause, Sign

_RUNNER = r"launcher/(?:runner|launch|multinode_runner)|bin/deepspeed"

CAUSES = (
    Cause(
        "LG060",
        "host-not-reachable",
        "a host could not be reached by ssh",
        "log in by hand from the host that launches (`ssh HOST hostname`): keys without a passphrase in "
        "every direction, "
        "host keys known (`ssh-keyscan`), names that resolve; `harness doctor` tries it",
        (
            Sign(r"Host key verification failed"),
            Sign(r"REMOTE HOST IDENTIFICATION HAS CHANGED"),
            Sign(r"Permission denied \((?:publickey|password|gssapi|keyboard)[^)]*\)"),
            Sign(r"ssh: (?:connect to host (?P<host>\S+) port \d+: |Could not resolve hostname (?P<name>[^:\s]+))"),
            Sign(r"ssh_exchange_identification|kex_exchange_identification|Connection reset by \S+ port 22"),
            Sign(r"unable to proceed.*unreachable|was unable to be reached|passwordless-ssh"),
            Sign(r"ssh exited with exit code 255", sure=False),
        ),
    ),
    Cause(
        "LG061",
        "hostfile-refused",
        "the hostfile, or what was asked of it, was refused by the launcher",
        "mend the line named: `NAME slots=N`, each host once; `--include` and `--exclude` take "
        "`HOST:0,1@HOST` with names of "
        "the hostfile; `harness validate-config --hostfile` checks it",
        (
            Sign(r"Hostfile (?:contains|is empty)"),
            Sign(r"Hostname '(?P<host>[^']*)' not found in hostfile|No slot '[^']*' specified on host"),
            Sign(r"include_str and exclude_str are mutually exclusive|Cannot specify num_nodes/gpus with include"),
            Sign(r"Num nodes is >1 but no extra nodes available|Unable to proceed, no GPU resources available"),
            Sign(r"backend cannot select specific device ids"),
            Sign(r"node_rank is not set correctly"),
            Sign(r"IndexError: list index out of range", sure=False, frames=_RUNNER),
        ),
    ),
    Cause(
        "LG062",
        "launcher-not-there",
        "the launcher that was asked for is not there",
        "install it on the host that launches (`pdsh`, `mpirun`, `srun`), or name another with `--launcher`",
        (
            Sign(r"launcher '(?P<name>[^']*)' not installed|Unknown launcher \S+"),
            Sign(r"No such file or directory: '(?:pdsh|mpirun|srun)'"),
            Sign(r"(?:pdsh|mpirun|srun): (?:command )?not found"),
        ),
    ),
    Cause(
        "LG063",
        "environment-file-refused",
        "a line of `.deepspeed_env` is not NAME=VALUE",
        "write one `NAME=VALUE` a line, without `export`, comments or quotes",
        (Sign(r"not enough values to unpack \(expected 2, got 1\)", sure=False, frames=_RUNNER),),
    ),
    Cause(
        "LG064",
        "program-missing-on-a-host",
        "a host lacks Python, a package or the script",
        "make every host have the same environment under the same path; the shell that ssh opens reads no "
        "~/.bashrc part "
        "for interactive use",
        (
            Sign(r"(?:python\S*|deepspeed|conda|torchrun|accelerate): (?:command )?not found"),
            Sign(
                r"ModuleNotFoundError: No module named '?(?P<module>[\w.]+)|python\S*: No module named (?P<name>[\w.]+)"
            ),
            Sign(r"^ImportError: (?!\S+\.so)", sure=False),
        ),
    ),
    Cause(
        "LG065",
        "option-refused",
        "the script, or the launcher, does not know an option",
        "DeepSpeed's launcher gives every script `--local_rank=N`: let it be parsed "
        "(`deepspeed.add_config_arguments`), or "
        "pass `--no_local_rank`; options of the launcher stand before the script's name",
        (
            Sign(r"error: unrecognized arguments: (?P<option>.*)"),
            Sign(r"error: the following arguments are required"),
            Sign(r"error: argument \S+: (?:invalid|expected)"),
        ),
    ),
    Cause(
        "LG066",
        "port-taken",
        "the port of the rendezvous is taken",
        "another job, or a rank of a dead one, holds it: end that, or choose another with `--master_port` "
        "(`launch.master_port`)",
        (
            Sign(r"EADDRINUSE"),
            Sign(r"[Aa]ddress already in use"),
            Sign(r"Errno 98\b"),
        ),
    ),
    Cause(
        "LG067",
        "rendezvous-failed",
        "ranks did not find each other at the start",
        "look whether all hosts were started; MASTER_ADDR must be a name or address that all of them reach, "
        "the port open "
        "in firewalls, and the number of nodes right",
        (
            Sign(r"Timed out after \d+ seconds waiting for clients\. (?P<joined>\d+)/(?P<all>\d+) clients joined"),
            Sign(r"client socket has timed out after \d+ ?m?s while trying to connect to"),
            Sign(r"client socket has failed to connect to (?:any network address of )?\(?\[?(?P<host>[^\s,\])|]+)"),
            Sign(r"RendezvousTimeoutError|RendezvousConnectionError|RendezvousClosedError"),
            Sign(r"No address associated with hostname|Temporary failure in name resolution", sure=False),
            Sign(r"Name or service not known|nodename nor servname provided", sure=False),
            Sign(r"Gloo connectFullMesh failed", sure=False),
            Sign(r"NCCL WARN Bootstrap : no socket interface found"),
            Sign(r"(?:MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE) expected, but not set"),
        ),
    ),
    Cause(
        "LG068",
        "ended-by-the-scheduler",
        "the scheduler ended the job",
        "ask for more time, or save more often and resume; `harness launch` saves when SIGUSR1 or SIGTERM comes",
        (
            Sign(r"CANCELLED AT .*DUE TO (?P<why>TIME LIMIT|PREEMPTION|NODE FAILURE)"),
            Sign(r"slurmstepd: error: .*CANCELLED AT|JOB \d+ ON \S+ CANCELLED|STEP \d+\.\d+ ON \S+ CANCELLED"),
            Sign(r"DUE TO NODE FAILURE|Node failure on|NODE_FAIL"),
            Sign(r"(?:The node was low on resource|Evicted|preempted by)", sure=False),
        ),
    ),
    Cause(
        "LG069",
        "asked-to-stop",
        "the job was asked to stop: SIGTERM, or Ctrl-C",
        "nothing is wrong with the job; if nobody asked, look into the scheduler's log for a time limit or "
        "a pre-emption",
        (
            Sign(r"^KeyboardInterrupt\b"),
            Sign(r"Process \d+ got signal: (?:15|2|1)\b|SignalException"),
            Sign(r"exits with return code = (?:-15|143|-2|130)\b", sure=False),
            Sign(r"Main process received SIG(?:TERM|INT), exiting", sure=False),
            Sign(r"[Rr]eceived (?:signal )?(?:Signals\.)?SIG(?:TERM|INT|HUP)|Received \d+ death signal", sure=False),
        ),
        level="end",
    ),
)
