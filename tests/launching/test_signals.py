"""A real run under the real launcher, broken off in every way. Needs the training extra; about half a minute a case.

No process of the run may be left, the exit code must tell what happened, and what is kept must be said.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.launching.processes import all_processes, of_run
from harness.launching.shm import buffers

PORT = 29673
SPEC = """\
name: tiny
model:
  config: {model_type: llama, vocab_size: 320, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 128}
  tokenizer: bytes
data: {train: "builtin:python-docs", max_length: 64, eval_fraction: 0.01}
train: {max_steps: 1000000, per_device_train_batch_size: 2, seed: 1}
optimizer: {type: sgd, learning_rate: 0.001}
zero: {stage: 1}
eval: {max_batches: 1}
launch: {num_gpus: 2, output_dir: OUTPUT, master_port: PORT}
"""


class Launched:
    """`harness launch` in a process of its own, and what can be known of its run from outside."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.output = folder / "runs"
        spec = folder / "tiny.yaml"
        spec.write_text(SPEC.replace("OUTPUT", str(self.output)).replace("PORT", str(PORT)))
        self.text = folder / "screen.txt"
        command = [sys.executable, "-m", "harness", "launch", str(spec), *options]
        with self.text.open("w") as screen:
            self.process = subprocess.Popen(command, stdout=screen, stderr=subprocess.STDOUT, start_new_session=True)

    @property
    def run_dir(self) -> Path:
        return (self.output / "latest").resolve()

    def living(self) -> list[int]:
        return [p.pid for p in of_run(self.run_dir, session=-1)]

    def status(self, rank: int) -> dict[str, object]:
        try:
            return json.loads((self.run_dir / "status" / f"rank-{rank:05d}.json").read_text())
        except (OSError, ValueError):
            return {}

    def wait_until(self, done, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not done() and time.monotonic() < end:
            time.sleep(0.05)
        return bool(done())

    def wait_for(self, name: str, seconds: float) -> bool:
        """Until the run directory, which may not be there yet, has this file."""

        def exists() -> bool:
            return (self.run_dir / name).exists()

        return self.wait_until(exists, seconds)

    def wait_training(self) -> None:
        """Generous: the ops may have to be compiled first."""
        trains = self.wait_until(lambda: self.process.poll() is not None or self._steps() >= 3, 900)
        assert trains, self.text.read_text()
        assert self.process.poll() is None, self.text.read_text()

    def launcher(self) -> int:
        """The process that DeepSpeed's command starts and that starts the ranks."""
        words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self.living()}
        return next(pid for pid, line in words.items() if b"deepspeed.launcher.launch" in line)

    def end(self, seconds: float) -> tuple[int, str]:
        return self.process.wait(seconds), self.text.read_text()

    def _steps(self) -> int:
        try:
            return (self.run_dir / "metrics.jsonl").read_text().count('"type": "step"')
        except OSError:
            return 0


@pytest.fixture
def launched(tmp_path):
    runs: list[Launched] = []

    def start(*options: str) -> Launched:
        runs.append(Launched(tmp_path, *options))
        return runs[-1]

    yield start
    for run in runs:
        for pid in [run.process.pid, *run.living()]:
            if pid in all_processes():
                os.kill(pid, signal.SIGKILL)
        run.process.wait()
    for buffer in buffers():
        if buffer.port == PORT:
            buffer.path.unlink(missing_ok=True)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_stops_every_rank_within_ten_seconds(launched, signum, code):
    run = launched()
    run.wait_training()
    assert len(run.living()) >= 4
    began = time.monotonic()
    run.process.send_signal(signum)
    ended, text = run.end(20)
    assert time.monotonic() - began < 10
    assert ended == code
    assert run.living() == []
    assert {run.status(rank)["state"] for rank in (0, 1)} == {"stopped"}
    saved = sorted((run.run_dir / "checkpoints").glob("step-*/manifest.json"))
    assert saved
    assert saved[-1].parent.name in text
    assert "--resume" in text
    assert [b for b in buffers() if b.port == PORT] == []


def test_a_second_signal_does_not_wait(launched):
    run = launched("--set", "launch.stop_grace_seconds=600")
    run.wait_training()
    os.kill(int(run.status(1)["pid"]), signal.SIGSTOP)  # a rank that will never finish its step
    run.process.send_signal(signal.SIGINT)
    assert run.wait_for("stop", 5)
    time.sleep(1)
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    ended, text = run.end(20)
    assert time.monotonic() - began < 5
    assert ended == 130
    assert run.living() == []
    assert "ranks were killed" in text


def test_a_signal_while_the_ranks_start_stops_at_once(launched):
    run = launched()
    assert run.wait_for("logs/launcher.log", 900)
    time.sleep(0.5)
    began = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    ended, text = run.end(20)
    assert time.monotonic() - began < 5
    assert ended == 130
    assert run.living() == []
    assert "no rank is training yet" in text


def test_ranks_do_not_outlive_a_killed_supervisor(launched):
    run = launched()
    run.wait_training()
    run.process.kill()
    assert run.wait_until(lambda: run.living() == [], 10), run.living()


def test_a_killed_launch_process_is_a_failure(launched):
    run = launched()
    run.wait_training()
    os.kill(run.launcher(), signal.SIGKILL)
    ended, text = run.end(30)
    assert ended == 1
    assert "launch process was killed" in text
    assert run.living() == []


def test_a_killed_rank_is_named(launched):
    run = launched()
    run.wait_training()
    os.kill(int(run.status(1)["pid"]), signal.SIGKILL)
    ended, text = run.end(60)
    assert ended == 137
    assert "failed on rank 1" in text
    assert run.living() == []


def test_a_rank_that_fails_is_named_with_its_error(launched):
    run = launched("--set", "data.train=no-such-file.txt")
    ended, text = run.end(900)
    assert ended not in {0, 3}
    assert "no-such-file.txt" in text
    assert "Traceback" not in text
    assert run.living() == []
