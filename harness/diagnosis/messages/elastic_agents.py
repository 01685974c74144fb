# SPDX-License-Identifier: Apache-2.0
"""Messages of torchrun's agents, of shells and launchers about processes that ended.

They only report an end: another line names the cause, if it is in the log at all.
"""

from __future__ import annotations

MESSAGES = r"""
LG065 * ^launch\.py: error: the following arguments are required: training_script
    title: DeepSpeed's launcher sent a host an incomplete command, most often because the address of the first host was
        empty
    change: pass `--master_addr ADDRESS`: `hostname -I` on the first host printed no usable address
LG065 * accelerate .*launch: error: the following arguments are required: training_script
    title: `accelerate launch` got no script: its command line ended early, or the script's name is missing
    change: check the line breaks of the shell script: each line but the last ends in a backslash without a trailing
        space, and the script comes after all options of `accelerate launch`
LG065 line \d+: (?P<option>--?\w[\w-]*): command not found
    title: the shell ran an option as a command, because the line above does not end in a backslash
    change: end each line but the last with a backslash without a trailing space, or write the command on one line
LG065 KeyError: 'PDSH_SSH_ARGS_APPEND'
    title: in this DeepSpeed `--ssh_port` needs the environment variable PDSH_SSH_ARGS_APPEND
    change: `export PDSH_SSH_ARGS_APPEND=""` before the launch, update DeepSpeed, or write the port into
        `~/.ssh/config`
LG003 * Signal 9 \(SIGKILL\) received by PID (?P<pid>\d+)
LG018 * Signal (?:11 \(SIGSEGV\)|4 \(SIGILL\)|8 \(SIGFPE\)) received by PID (?P<pid>\d+)
LG005 * Signal 7 \(SIGBUS\) received by PID (?P<pid>\d+)
LG074 * Signal 6 \(SIGABRT\) received by PID (?P<pid>\d+)
    title: a rank aborted (SIGABRT), as it does after an NCCL watchdog timeout or a failed assertion in native code
    change: read the lines of that rank before its end: a timeout of a collective, `terminate called`, an assertion
LG069 * Signal (?:15 \(SIGTERM\)|2 \(SIGINT\)|1 \(SIGHUP\)) received by PID (?P<pid>\d+)
LG018 * failed \(exitcode: -(?:11|4|8)\) local_rank: (?P<local>\d+)
LG005 * failed \(exitcode: -7\) local_rank: (?P<local>\d+)
LG074 * failed \(exitcode: -6\) local_rank: (?P<local>\d+)
    title: a rank aborted (SIGABRT), as it does after an NCCL watchdog timeout or a failed assertion in native code
    change: read the lines of that rank before its end: a timeout of a collective, `terminate called`, an assertion
LG003 * failed \(exitcode: -9\) local_rank: (?P<local>\d+)
LG069 * failed \(exitcode: -(?:15|2|1)\) local_rank: (?P<local>\d+)
LG074 * failed \(exitcode: (?P<exit>(?!-9\b)-?\d+)\) local_rank: (?P<local>\d+)
LG069 * torch\.distributed\.elastic\.multiprocessing\.api\.SignalException: Process (?P<pid>\d+) got signal: (?P<signal>\d+)
LG073 * has failed to send a keep-alive heartbeat to the rendezvous|has failed to shutdown the rendezvous|RendezvousGracefulExitError
    title: an elastic agent lost the rendezvous: the agent of another node exited or was cut off
LG003 * ^(?:\S+: line \d+: +)?(?:\[\d+\]\+? +)?(?P<pid>\d+)? ?Killed( +.*)?$
LG018 * ^(?:\S+: line \d+: +)?(?:\[\d+\]\+? +)?(?P<pid>\d+)? ?Segmentation fault( +.*)?$
LG005 * ^(?:\S+: line \d+: +)?(?:\[\d+\]\+? +)?(?P<pid>\d+)? ?Bus error( +.*)?$
LG074 * ^(?:\S+: line \d+: +)?(?:\[\d+\]\+? +)?(?P<pid>\d+)? ?Aborted( +.*)?$
LG069 * ^(?:\S+: line \d+: +)?(?:\[\d+\]\+? +)?(?P<pid>\d+)? ?(?:Terminated|Hangup)( +.*)?$
"""
