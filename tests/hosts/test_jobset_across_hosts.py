# SPDX-License-Identifier: Apache-2.0
"""The command of a JobSet's pods on two hosts in a box, a host for each pod. Needs root, sshd, pdsh and the training
extra; a minute. `/etc/hosts` has the names of the pods, in the place of a cluster's DNS, and as in a pod its own name.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from harness.errors import ExitCode
from harness.launching.setup.jobset import JOB_UID_VARIABLE
from tests.support.boxes import NEEDS_ROOT, TheBox, made_box
from tests.support.host_launches import ODD, PORT, SPEC, write_text
from tests.support.jobset_pods import container_of, expand, expand_command

pytestmark = [pytest.mark.hosts, *NEEDS_ROOT]


@pytest.fixture
def box(tmp_path) -> Iterator[TheBox]:
    with made_box(2, "k") as made, contextlib.ExitStack() as stack:
        lines = [f"{made.address(host)} pods-worker-0-{host - 1}.pods box-{host}\n" for host in (1, 2)]
        (tmp_path / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
        for host in (1, 2):
            stack.enter_context(made.mounted(host, tmp_path / "hosts", Path("/etc/hosts")))
        yield made


class Pods:
    """Both pods of one start of the JobSet, with the id of its Job."""

    def __init__(self, box: TheBox, manifest: Path, uid: str) -> None:
        container = container_of(yaml.safe_load(manifest.read_text()))
        self.texts = [manifest.with_name(f"{uid}-{node}.txt") for node in (0, 1)]
        self.processes = []
        for node, text in enumerate(self.texts):
            variables = {item["name"]: expand(item.get("value", uid), {}) for item in container["env"]}
            variables["JOB_COMPLETION_INDEX"] = str(node)
            command = [sys.executable, "-m", *expand_command(container, variables)]
            with text.open("w") as screen:
                pipes = {"stdout": screen, "stderr": subprocess.STDOUT, "cwd": container["workingDir"]}
                self.processes.append(box.start_on(node + 1, *command, env=box.environ(**variables), **pipes))

    def wait(self) -> list[int]:
        try:
            return [process.wait(120) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()

    def until_step(self, run_dir: Path, step: int) -> None:
        end, file = time.monotonic() + 300, run_dir / "metrics.jsonl"
        while time.monotonic() < end:
            lines = file.read_text().splitlines() if file.is_file() else []
            if any(row["type"] == "step" and row["step"] >= step for row in map(json.loads, lines)):
                return
            assert all(process.poll() is None for process in self.processes), self.output()
            time.sleep(0.1)
        raise AssertionError(self.output())

    def output(self) -> str:
        return "\n".join(text.read_text()[-3000:] for text in self.texts)


def test_a_preempted_pod_stops_all_and_the_next_start_resumes(box, tmp_path):
    write_text(tmp_path)
    values = {"steps": 10_000, "stage": 3, "parallel": "", "save": "null", "env": "", "launch": "", "more": ""}
    text, output = tmp_path / "text.jsonl", tmp_path / "runs"
    spec = SPEC.format(name="pods", output=output, text=text, port=PORT, odd=ODD, **values)
    (tmp_path / "pods.yaml").write_text(spec)
    words = ["--num-nodes=2", "--num-gpus=1", "--set", "cluster.gpu=cpu", "--set", "checkpoint.save_at_end=true"]
    words += ["--image=i", f"--pvc=runs:{tmp_path}"]
    command = [sys.executable, "-m", "harness", "launch", "pods.yaml", "--kubernetes", *words, "--output", "job.yaml"]
    subprocess.run(command, cwd=tmp_path, env=box.environ(), check=True)

    first = Pods(box, tmp_path / "job.yaml", "first")
    first.until_step(output / "pods-first", 3)
    statuses = (output / "pods-first" / "status").glob("rank-*.json")
    ranks = [json.loads(file.read_text()) for file in sorted(statuses)]
    assert [rank["host"] for rank in ranks] == ["box-1", "box-2"]
    environ = box.on(2, "cat", f"/proc/{ranks[1]['pid']}/environ").stdout.split("\0")
    assert {f"ODD={ODD}", f"{JOB_UID_VARIABLE}=first"} <= set(environ)
    box.on(2, "sh", "-c", "pkill -TERM -f '[h]arness launch.*pods.yaml'")  # as a node that is drained does
    assert first.wait() == [ExitCode.TERMINATED, ExitCode.TERMINATED], first.output()
    (saved,) = (output / "pods-first" / "checkpoints").glob("step-*/manifest.json")
    step = int(saved.parent.name.removeprefix("step-"))

    second = Pods(box, tmp_path / "job.yaml", "second")
    second.until_step(output / "pods-second", step + 2)
    rows = [json.loads(line) for line in (output / "pods-second" / "metrics.jsonl").read_text().splitlines()]
    assert min(row["step"] for row in rows if row["type"] == "step") == step + 1
    for host in (1, 2):
        box.on(host, "sh", "-c", "pkill -TERM -f '[h]arness launch.*pods.yaml'")
    assert set(second.wait()) == {ExitCode.TERMINATED}, second.output()
