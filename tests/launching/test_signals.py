# SPDX-License-Identifier: Apache-2.0
"""A real run under the real launcher, broken off in every way. Needs the training extra; about half a minute a case.

No process of the run may be left, the exit code must tell what happened, and what is kept must be said.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time

import pytest

from harness.progress import START_UP
from tests.support.control_groups import memory_limit
from tests.support.launch_process import Launched, clean_up, left_over_buffers
from tests.support.verdict_checks import assert_told_alike

pytestmark = pytest.mark.training

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
ONE_RANK = ("--set", "launch.num_gpus=1")
"""Where no other rank is needed to see it: a rank costs 7 s of CPU until it trains."""
LIMIT = 30
"""Seconds for what is to happen at once, with room for a slow machine."""


@pytest.fixture
def launched(tmp_path):
    runs: list[Launched] = []

    def start(*options: str) -> Launched:
        runs.append(Launched(tmp_path, SPEC, *options))
        return runs[-1]

    yield start
    clean_up(runs)


@pytest.mark.parametrize(
    ("signum", "code", "to"),
    [
        (signal.SIGINT, 130, "harness"),
        pytest.param(signal.SIGTERM, 143, "rank", marks=pytest.mark.nightly),
        pytest.param(signal.SIGTERM, 143, "launcher", marks=pytest.mark.nightly),
        (signal.SIGUSR1, 138, "launcher"),
        pytest.param(signal.SIGTERM, 143, "runner", marks=pytest.mark.nightly),
    ],
)
def test_a_signal_saves_and_stops_every_rank_soon(launched, signum, code, to):
    run = launched()
    run.wait_training()
    assert len(run.living()) >= 4
    began = time.monotonic()
    pids = {"harness": lambda: run.process.pid, "launcher": run.launcher, "runner": run.runner}
    os.kill(int(run.status(1)["pid"]) if to == "rank" else pids[to](), signum)
    ended, text = run.end(600)
    took = time.monotonic() - began
    assert ended == code, text
    assert run.living() == []
    assert {run.status(rank)["state"] for rank in (0, 1)} == {"stopped"}
    saved = sorted((run.run_dir / "checkpoints").glob("step-*/manifest.json"))
    assert saved
    assert saved[-1].parent.name in text
    assert "--resume" in text
    assert left_over_buffers() == []
    assert took < 20  # DeepSpeed's launcher waits 30 for a rank that does not end
    if to == "harness":
        assert_told_alike(run.run_dir, text)


def test_a_second_signal_does_not_wait(launched):
    run = launched("--set", "launch.stop_grace_seconds=600")
    run.wait_training()
    os.kill(int(run.status(1)["pid"]), signal.SIGSTOP)  # a rank that will never finish its step
    run.process.send_signal(signal.SIGINT)
    assert run.wait_for("stop", LIMIT)
    time.sleep(1)
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    ended, text = run.end(60)
    assert time.monotonic() - began < LIMIT
    assert ended == 130
    assert run.living() == []
    assert "ranks were killed" in text


def test_a_signal_while_the_ranks_start_stops_at_once(launched):
    run = launched()
    assert run.wait_for("logs/launcher.log", 900)
    time.sleep(0.5)
    began = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    ended, text = run.end(60)
    assert time.monotonic() - began < LIMIT
    assert ended == 130
    assert run.living() == []
    assert "no rank is training yet" in text


def test_ranks_do_not_outlive_a_killed_supervisor(launched):
    run = launched(*ONE_RANK)
    run.wait_training()
    run.process.kill()
    assert run.wait_until(lambda: run.living() == [], LIMIT), run.living()


def test_a_killed_launch_process_is_a_failure(launched):
    run = launched(*ONE_RANK)
    run.wait_training()
    os.kill(run.launcher(), signal.SIGKILL)
    ended, text = run.end(60)
    assert ended == 1
    assert "launch process was killed" in text
    assert run.living() == []


def test_a_killed_rank_is_named(launched):
    run = launched()
    run.wait_training()
    os.kill(int(run.status(1)["pid"]), signal.SIGKILL)
    ended, text = run.end(60)
    assert ended == 137
    assert run.living() == []
    assert "Traceback" not in text
    assert text.count("killed by SIGKILL") == 1
    verdict = assert_told_alike(run.run_dir, text)
    assert (verdict.rank, verdict.host, verdict.signal) == (1, socket.gethostname(), "SIGKILL")
    assert verdict.cause == "LG006"
    assert verdict.reason == "killed by SIGKILL, which a process sent: the kernel had not run out of memory"
    rows = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert verdict.step == max(row["step"] for row in rows if row["type"] == "step")
    told = [line for line in text.splitlines() if line.startswith("harness ranks are ")]
    assert told[0] == f"harness ranks are {START_UP[0]}"
    assert len(told) >= 2


def test_a_rank_that_the_kernel_killed_for_memory_is_named(launched):
    """A control group of its own with less memory than the rank needs: the kernel ends it as on a full host."""
    run = launched(*ONE_RANK)
    run.wait_training()
    with memory_limit(int(run.status(0)["pid"])):
        ended, text = run.end(60)
    assert ended == 137
    assert run.living() == []
    verdict = assert_told_alike(run.run_dir, text)
    assert (verdict.rank, verdict.host, verdict.signal, verdict.cause) == (0, socket.gethostname(), "SIGKILL", "LG002")
    assert verdict.reason == "killed by SIGKILL of the kernel's out-of-memory killer"


def test_a_rank_that_fails_is_named_with_its_error(launched):
    run = launched("--set", "data.train=no-such-file.txt")
    ended, text = run.end(900)
    assert ended not in {0, 3}
    assert "no-such-file.txt" in text
    assert "Traceback" not in text
    assert run.living() == []
