"""Real launches on hosts in a box, by pdsh and ssh. Needs root, sshd, pdsh and the training extra; two minutes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from boxes import NEEDS_ROOT, TheBox, box_command, made_box

PORT = 29561
STEPS = 4
SPEC = """\
name: {name}
model:
  config: {{model_type: llama, vocab_size: 320, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 128}}
  tokenizer: bytes
data: {{train: "builtin:python-docs", max_length: 64}}
train: {{max_steps: {steps}, global_batch_size: 4, per_device_train_batch_size: 2, seed: 1}}
optimizer: {{type: adamw, learning_rate: 0.001}}
scheduler: {{type: constant}}
precision: {{bf16: true}}
zero: {{stage: {stage}}}
parallel: {{{parallel}}}
checkpoint: {{save_steps: {save}, save_at_end: true}}
launch: {{output_dir: {output}, master_port: {port}, num_gpus: 2, env: {{OMP_NUM_THREADS: "1"}}{launch}}}
"""
pytestmark = NEEDS_ROOT


@pytest.fixture(scope="module")
def box() -> Iterator[TheBox]:
    with made_box(4, "m") as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("hosts")


class Launch:
    """`harness launch` on host 1 of the box, over `hosts` (none: two ranks there)."""

    def __init__(
        self, box: TheBox, folder: Path, name: str, hosts: tuple[int, ...], *options: str, **spec: object
    ) -> None:
        self.box, self.hosts, self.output = box, hosts, folder / "runs"
        values = {"steps": STEPS, "stage": 3, "parallel": "", "save": 100, "launch": ""} | spec
        file = folder / f"{name}.yaml"
        file.write_text(SPEC.format(name=name, output=self.output, port=PORT, **values))
        command = [sys.executable, "-m", "harness", "launch", str(file), *options]
        if hosts:
            hostfile = folder / f"{name}.hosts"
            hostfile.write_text("".join(f"{box.address(h)} slots=1\n" for h in hosts))
            command += ["--hostfile", str(hostfile)]
        self.text = folder / f"{name}.txt"
        with self.text.open("w") as screen:
            self.process = box.start_on(1, *command, env=box.environ(), stdout=screen, stderr=subprocess.STDOUT)

    def end(self, seconds: float = 400) -> int:
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()

    @property
    def run_dir(self) -> Path:
        return (self.output / "latest").resolve()

    def rows(self, kind: str) -> list[dict[str, object]]:
        try:
            found = [json.loads(x) for x in (self.run_dir / "metrics.jsonl").read_text().splitlines()]
        except (OSError, ValueError):
            return []
        return [row for row in found if row["type"] == kind]

    def losses(self) -> list[float]:
        assert self.end() == 0, self.text.read_text()[-3000:]
        return [row["loss"] for row in self.rows("step")]

    def until_step(self, step: int, seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while not any(row["step"] >= step for row in self.rows("step")[-1:]) and time.monotonic() < end:
            assert self.process.poll() is None, self.text.read_text()[-3000:]
            time.sleep(0.1)

    def left(self, host: int) -> str:
        """Processes of the run on a host, and its buffers in shared memory."""
        script = "pgrep -af '[t]rain.py --local_rank'; ls /dev/shm | grep deepspeed"
        return self.box.on(host, "sh", "-c", script, check=False).stdout.strip()


@pytest.fixture(scope="module")
def on_one(box, folder) -> list[float]:
    """The losses of six steps on one host, two ranks."""
    losses = Launch(box, folder, "one", (), steps=6).losses()
    assert len(losses) == 6
    return losses


@pytest.fixture(scope="module")
def on_two(box, folder, on_one) -> Launch:
    """Four steps on two hosts, saved at their end."""
    run = Launch(box, folder, "two", (1, 2), "--no-preflight")
    run.losses()
    return run


def test_zero_3_across_hosts_trains_as_on_one(on_one, on_two):
    assert [row["loss"] for row in on_two.rows("step")] == pytest.approx(on_one[:STEPS], rel=1e-5)
    hosts = {json.loads(f.read_text())["host"] for f in (on_two.run_dir / "status").glob("rank-*.json")}
    assert hosts == {"box-1", "box-2"}
    assert on_two.left(1) + on_two.left(2) == ""


def test_it_goes_on_on_other_hosts(box, folder, on_one, on_two):
    """The checkpoint lies on a folder that all hosts share."""
    resumed = Launch(box, folder, "two", (3, 4), "--resume", str(on_two.run_dir), steps=6)
    assert resumed.losses() == pytest.approx(on_one[STEPS:], rel=1e-4)
    argv = json.loads((resumed.run_dir / "launch.json").read_text())["argv"]
    assert argv[argv.index("--master_addr") + 1] == box.address(3)
    assert "GLOO_SOCKET_IFNAME=eth0\n" in (resumed.run_dir / "deepspeed.env").read_text()


@pytest.mark.parametrize(("stage", "parallel"), [(1, "tensor_parallel_size: 2"), (1, "pipeline_parallel_size: 2")])
def test_a_model_spread_over_hosts_trains_alike(box, folder, on_one, stage, parallel):
    name = parallel.partition("_")[0]
    run = Launch(box, folder, name, (1, 2), "--no-preflight", stage=stage, parallel=parallel, steps=2)
    assert run.losses() == pytest.approx(on_one[:2], rel=2e-3)


def test_a_killed_rank_is_named_with_its_host_and_nobody_is_left(box, folder):
    run = Launch(box, folder, "killed", (1, 2), "--no-preflight", steps=10**6)
    run.until_step(2)
    box.on(2, "pkill", "-9", "-f", "[t]rain.py --local_rank")
    began = time.monotonic()
    assert run.end(60) == 128 + signal.SIGKILL
    assert time.monotonic() - began < 15
    assert re.search(r"failed on rank 1 \(box-2\) at step \d+: killed by SIGKILL", run.text.read_text())
    assert run.left(1) + run.left(2) == ""


def test_a_host_that_is_cut_off_is_done_without(box, folder):
    """Detected and named; the run goes on from its last checkpoint with one host fewer, and the same global batch."""
    more = ", max_restarts: 2, restart_delay_seconds: 1, min_hosts: 1"
    run = Launch(box, folder, "cut", (1, 2), steps=400, save=10, launch=more)
    run.until_step(12)
    assert box_command(box.name, "cut", "2").returncode == 0
    began = time.monotonic()
    try:
        end = began + 120
        while not run.rows("restart") and time.monotonic() < end:
            time.sleep(0.1)
        assert time.monotonic() - began < 60
        code = run.end()
    finally:
        box_command(box.name, "heal", "2")
    text = run.text.read_text()
    assert code == 0, text[-3000:]
    assert f"nothing is heard of host {box.address(2)} any more" in text
    assert f"going on without {box.address(2)}: 1 ranks" in text
    steps = run.rows("step")
    assert steps[-1]["step"] == 400
    tokens = {row["step"]: row["tokens"] for row in steps if "tokens" in row}
    assert not tokens or len({tokens[s] - tokens[s - 1] for s in tokens if s - 1 in tokens}) == 1
    resolved = json.loads((run.run_dir / "spec.resolved.json").read_text())
    assert resolved["batch"]["global"] == 4
    assert len(resolved["hosts"]) == 1
    assert run.left(1) == ""
    end = time.monotonic() + 40  # the guard there waits for half a minute
    while run.left(2) and time.monotonic() < end:
        time.sleep(0.5)
    assert run.left(2) == ""
