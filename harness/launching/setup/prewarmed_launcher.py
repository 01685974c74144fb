"""DeepSpeed's launcher, started before it is known what it is to do: importing it takes as long as asking the hosts.

Until it is given its orders it imports and waits; nobody else sees it, and it ends with this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.interpreter import python_command
from harness.launching.hosts.local_host import LocalHost
from harness.launching.process.processes import set_up_child
from harness.launching.setup.launch_plan import LaunchPlan


@dataclass(slots=True)
class PrewarmedLauncher:
    """Use once: `orders`, or `give_up`."""

    child: subprocess.Popen[bytes]
    program: str

    @classmethod
    def start(cls, here: LocalHost, variables: Mapping[str, str]) -> PrewarmedLauncher | None:
        """`variables` are those of the spec, which may decide what is imported. None where the launcher is no script of
        this Python.
        """
        if len(here.deepspeed) != 1 or not _is_script_of_this_python(Path(here.deepspeed[0])):
            return None
        child = subprocess.Popen(  # noqa: S603
            python_command(str(here.scripts / "prewarmed_deepspeed.py")),
            cwd=here.cwd,
            env={**here.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=set_up_child,  # noqa: PLW1509  (as where the launcher is started without it)
        )
        return cls(child, here.deepspeed[0])

    def run(self, plan: LaunchPlan) -> subprocess.Popen[bytes] | None:
        """It carries this plan out from here on. None when it has ended before."""
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
        """It is not needed."""
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()


def _is_script_of_this_python(program: Path) -> bool:
    """Whether it is the script that pip makes for this Python: it then does what `runpy` does with it here."""
    try:
        first = program.read_bytes()[:256].split(b"\n", 1)[0].decode()
    except (OSError, UnicodeDecodeError):
        return False
    return first.startswith("#!") and Path(first[2:].strip()).parent == Path(sys.executable).parent
