# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's launcher, started before the plan is ready: its imports take as long as the survey of the hosts.

It imports and waits for the plan; no other process depends on it, and it ends with this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.interpreter import python_command
from harness.launching.hosts.local_host import LocalHost
from harness.launching.process.processes import set_up_child
from harness.launching.setup.launch_plan import LaunchPlan
from harness.spec.sections.launch_spec import LaunchSpec


@dataclass(slots=True)
class PrewarmedLauncher:
    """A launcher that waits for its plan. Use once: `run` or `discard`."""

    child: subprocess.Popen[bytes]
    program: str

    @classmethod
    def start(cls, local_host: LocalHost, launch: LaunchSpec) -> PrewarmedLauncher | None:
        """Start the imports, which the variables and the patches of the spec may change. None where the launcher is no
        script of this Python.
        """
        if len(local_host.deepspeed) != 1 or not _is_script_of_this_python(Path(local_host.deepspeed[0])):
            return None
        child = subprocess.Popen(  # noqa: S603
            python_command(str(local_host.scripts / "prewarmed_deepspeed.py"), json.dumps(launch.patches)),
            cwd=local_host.cwd,
            env={**local_host.environ, **launch.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=set_up_child,  # noqa: PLW1509  (as where the launcher is started without it)
        )
        return cls(child, local_host.deepspeed[0])

    def run(self, plan: LaunchPlan) -> subprocess.Popen[bytes] | None:
        """Run this plan in the prewarmed process and return that. None when it has ended."""
        body = {"argv": list(plan.argv), "environment": plan.environment(os.environ), "folder": str(plan.cwd)}
        if plan.argv[0] != self.program or self.child.poll() is not None or self.child.stdin is None:
            self.discard()
            return None
        try:
            self.child.stdin.write(json.dumps(body).encode() + b"\n")
            self.child.stdin.close()
            self.child.stdin = None
        except OSError:  # it has just ended
            self.discard()
            return None
        return self.child

    def discard(self) -> None:
        """End the process without a plan."""
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()


def _is_script_of_this_python(program: Path) -> bool:
    """True if pip made the script for this Python, so that `runpy` in this Python runs the same code."""
    try:
        first = program.read_bytes()[:256].split(b"\n", 1)[0].decode()
    except (OSError, UnicodeDecodeError):
        return False
    return first.startswith("#!") and Path(first[2:].strip()).parent == Path(sys.executable).parent
