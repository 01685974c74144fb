# SPDX-License-Identifier: Apache-2.0
"""A launch as a job of Slurm: the batch script, and `sbatch`. The job runs `harness launch --slurm` again.

`prepare` checks the spec before the job waits in a queue; this module does not read it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ExitCode, UserError
from harness.facts.environment_variables import is_secret
from harness.file_io import replace_file
from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.interpreter import python_command
from harness.launching.hosts.local_host import DISTRIBUTION
from harness.planted_files import find_foreign_owner

NOTICE_SECONDS = 120
"""Seconds between the signal to the job and the end of its time, or a pre-emption. A save has to fit."""
_SUBMIT_SECONDS = 60.0
_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@{notice}
# Made by `harness launch --slurm`. {notice} s before its time limit, or at a pre-emption, the job gets SIGUSR1:
# the ranks finish their step and save, and Slurm requeues the job, which resumes.
cd {folder} || exit 2
{per_node}resume={resume}
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ]{has_saved}; then resume=auto; fi
{command} --resume "$resume"{node_words} &
run=$!
trap 'kill -USR1 "$run" 2>/dev/null' USR1 TERM
while kill -0 "$run" 2>/dev/null; do
  wait "$run"
  code=$?
done
wait "$run" 2>/dev/null
last=$?
if [ "$last" != 127 ]; then code=$last; fi
if [ "$code" = {stopped} ] && scontrol requeue "$SLURM_JOB_ID"; then exit 0; fi
exit "$code"
"""
_PER_NODE = """\
# The container of each host starts its own ranks; no host reaches another by ssh.
node=()
if [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ]; then node=(--no-ssh --run-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"); fi
"""
TASK_VARIABLE = "$SLURM_ARRAY_TASK_ID"
"""In an argument of the launch: the index of the task of a job array."""
_HAS_SAVED = """ && [ -n "$(find -H {folder} -path {manifests} -newer {script} -print -quit)" ]"""
"""Has a run of the job saved? One that began at step 0 and saved nothing begins there again, whatever was before."""
NOT_SUBMITTED = "No job was submitted"
PREEMPTED_EXIT_CODE = 138
"""The exit code of `harness launch` after SIGUSR1."""


@dataclass(frozen=True, slots=True)
class SlurmContainer:
    """The container of each host: an image of Pyxis and Enroot (`registry#name:tag`, a `.sqsh` file) or a `.sif` file
    of Apptainer, and what it mounts beside the current folder, `SOURCE` or `SOURCE:PATH`.
    """

    image: str
    mounts: tuple[str, ...] = ()

    def step(self, folder: Path, output_dir: Path) -> list[str]:
        """The command that runs one container on each host of the job, in front of the harness's own. The current
        folder and the run directory are there under the same paths, and so is the target of a link to the latter.
        Ranks may use all cores of the job: srun would bind its one task of a host to one (Slurm 22.05 and later).
        """
        target, written = output_dir.resolve(), Path(os.path.normpath(output_dir))
        outside = [f"{target}:{path}" for path in dict.fromkeys((target, written)) if not path.is_relative_to(folder)]
        own = [str(folder), *outside]
        mounts = [text if ":" in text else f"{text}:{text}" for text in (*own, *self.mounts)]
        srun = ["srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--cpu-bind=none"]
        if self.image.endswith(".sif"):
            binds = [word for mount in mounts for word in ("--bind", mount)]
            return [*srun, "apptainer", "exec", "--nv", *binds, "--pwd", str(folder), self.image, "harness"]
        container = [f"--container-image={self.image}", f"--container-mounts={','.join(mounts)}"]
        return [*srun, *container, f"--container-workdir={folder}", "harness"]


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job before its submission: the batch script, its path, and the command that submits it."""

    script: str
    file: Path
    argv: tuple[str, ...]


def is_outside_job(environ: Mapping[str, str]) -> bool:
    """True if this process is not part of a Slurm job."""
    return not any(environ.get(name) for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NODELIST"))


def job_command(arguments: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The command line of the launch inside the job, without the options of the submission. `env`: `launch.env`.

    Raises UserError (SE003, exit code 4) where a `--set` has a secret, which others could read in the script and in the
    job's list of processes.
    """
    for name, value in env.items():
        if is_secret(name, value) and any(name in word and value in word for word in arguments):
            message = f"`--set` of `launch.env.{name[:60]}` would write a secret into the job's script"
            fix = Fix(f"`export {name[:60]}=...` in this shell instead: sbatch gives the job your environment")
            raise UserError([Finding("SE003", "error", message, fix=fix)], ExitCode.PREFLIGHT)
    own = {"--sbatch", "--resume", "--dry-run", "--container", "--container-mount"}
    return drop_options(arguments, own)


def harness_argv() -> list[str]:
    """The command of this program. Without an installation it runs from the current folder."""
    words = ("-m", "harness")
    return python_command(*words) if machine.package_version(DISTRIBUTION) else [sys.executable, *words]


def drop_options(arguments: Sequence[str], names: Collection[str]) -> list[str]:
    """A command line without these options. Each option is one word, as `spell_out_arguments` writes it."""
    return [word for word in arguments if word.partition("=")[0] not in names]


def build_job(
    name: str,
    folder: Path,
    output_dir: Path,
    command: Sequence[str],
    resume: str,
    options: Sequence[str],
    stamp: str,
    *,
    per_node: bool = False,
) -> SlurmJob:
    """The job for a run of this name. `command` is the harness's own without `--resume`; `options` are sbatch's, which
    win over those of the script. Every word is quoted, but for `TASK_VARIABLE`; the name is cut down to what sbatch
    takes as one. In a job array the run of a task has its index behind its name, so that a task resumes its own. With
    `per_node` the command runs on every host, which starts its own ranks.
    """
    is_array = is_job_array(options)
    if is_array:
        command = [*command, f"--set=name={name}-{TASK_VARIABLE}"]
    job_name = re.sub(r"[^A-Za-z0-9_.-]", "-", name).lstrip("-") or "run"
    file = output_dir / "slurm" / f"{job_name}-{stamp}.sh"
    pattern = re.sub(r"[^A-Za-z0-9_.-]", "?", name)  # no line of the name may be one of the script
    manifests = f"*/{pattern}-*/checkpoints/step-*/manifest.json"
    if is_array:
        manifests = f"*/{pattern}-{TASK_VARIABLE}-*/checkpoints/step-*/manifest.json"
    words = {"folder": str(output_dir), "manifests": manifests, "script": str(file)}
    has_saved = _HAS_SAVED.format(**{key: _quote(text) for key, text in words.items()})
    script = _SCRIPT.format(
        name=job_name,
        notice=NOTICE_SECONDS,
        folder=shlex.quote(str(folder)),
        resume=shlex.quote(resume),
        has_saved=has_saved if resume == "never" else "",
        per_node=_PER_NODE if per_node else "",
        node_words=' "${node[@]}"' if per_node else "",
        command=" ".join(map(_quote, command)),
        stopped=PREEMPTED_EXIT_CODE,
    )
    log = str(file.with_suffix("")).replace("%", "%%") + "-%j.log"
    return SlurmJob(script, file, ("sbatch", "--parsable", f"--output={log}", *options, str(file)))


def is_job_array(options: Sequence[str]) -> bool:
    """Do these options of sbatch make a job array?"""
    return any(option.startswith(("--array", "-a")) for option in options)


def first_task(options: Sequence[str]) -> str:
    """The first index of a job array, by which a launch is checked before it is submitted."""
    text = next(option for option in options if option.startswith(("--array", "-a")))
    found = re.search(r"\d+", text)
    return found[0] if found else "0"


def _quote(word: str) -> str:
    """A word of the shell, in which the index of the task stays a variable."""
    return f'"{TASK_VARIABLE}"'.join(shlex.quote(part) if part else "" for part in word.split(TASK_VARIABLE)) or "''"


def submit_job(job: SlurmJob) -> str:
    """Write the script and submit it; returns the number of the job. Raises UserError (exit code 4)."""
    try:
        job.file.parent.mkdir(parents=True, exist_ok=True)
        planted = find_foreign_owner(job.file.parent)
        if planted is not None:
            raise _submit_error("EN011", f"{planted}, who could change the job's script before sbatch reads it")
        replace_file(job.file, job.script)  # never through a link
        job.file.chmod(0o755)
    except OSError as error:
        raise _submit_error(
            "EN011", f"`{job.file}` cannot be written: {(error.strerror or str(error)).lower()}"
        ) from None
    try:
        result = subprocess.run(  # noqa: S603
            job.argv, text=True, capture_output=True, check=False, timeout=_SUBMIT_SECONDS, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise _submit_error("HO028", f"`sbatch` cannot be started: {reason}") from None
    except subprocess.TimeoutExpired:
        raise _submit_error("HO028", f"`sbatch` did not answer within {_SUBMIT_SECONDS:.0f} s") from None
    if result.returncode:
        error_text = " / ".join((result.stderr or result.stdout).strip().splitlines()[-2:]).removeprefix("sbatch: ")
        raise _submit_error("HO028", f"`sbatch` refused the job: {error_text[:300].rstrip('.')}")
    return result.stdout.strip().partition(";")[0]


def _submit_error(gate: str, message: str) -> UserError:
    fix = Fix("give the options of the cluster, such as `--sbatch=--partition=gpu --sbatch=--nodes=2`; see `sinfo`")
    if gate == "EN011":
        fix = Fix("set `launch.output_dir` to a writable folder")
    return UserError([Finding(gate, "error", message, fix=fix)], ExitCode.PREFLIGHT)
