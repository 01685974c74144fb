# SPDX-License-Identifier: Apache-2.0
"""Real launches on hosts in a box, by pdsh and ssh. Needs root, sshd, pdsh and the training extra; two minutes.

One run has all the trouble, a killed rank and then a host that is cut off; what the others do is compared with its steps.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.verdicts import read_verdict
from tests.support.boxes import NEEDS_ROOT, TheBox, box_command, made_box
from tests.support.host_launches import BATCH, ODD, SAVE, STEPS, Launch, write_text
from tests.support.verdict_checks import assert_told_alike

pytestmark = [pytest.mark.hosts, *NEEDS_ROOT]


@pytest.fixture(scope="module")
def box() -> Iterator[TheBox]:
    with made_box(4, "m") as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_text(tmp_path_factory.mktemp("hosts"))


@pytest.fixture(scope="module")
def troubled(box, folder) -> Launch:
    """A run on two hosts: first the rank on host 2 is killed, then host 2 is cut off; it ends on host 1 alone."""
    more = ", max_restarts: 3, restart_delay_seconds: 0.5, min_hosts: 1"
    run = Launch(box, folder, "troubled", (1, 2), save=SAVE, launch=more)
    run.hold_between_saves(2, SAVE + 2, SAVE)
    pid = json.loads((run.run_dir / "status" / "rank-00001.json").read_text())["pid"]
    run.environ = box.on(2, "cat", f"/proc/{pid}/environ").stdout.split("\0")
    box.on(2, "pkill", "-9", "-f", "[t]rain_worker.py --local_rank")
    run.seconds = [run.until_restart(1, 60)]
    run.hold_between_saves(2, 2 * SAVE + 2, SAVE)
    assert box_command(box.name, "cut", "2").returncode == 0
    box.on(2, "pkill", "-CONT", "-f", "[t]rain_worker.py --local_rank")
    try:
        run.seconds.append(run.until_restart(2, 120))
        code = run.end()
    finally:
        box_command(box.name, "heal", "2")
    assert code == 0, run.text.read_text()[-3000:]
    return run


@pytest.fixture(scope="module")
def losses(troubled) -> dict[int, float]:
    """Step -> its loss, as it was first taken, on two hosts up to the cut."""
    found: dict[int, float] = {}
    for row in troubled.rows("step"):
        found.setdefault(row["step"], row["loss"])
    return found


def test_a_killed_rank_is_named_with_its_host(troubled):
    text = troubled.text.read_text()
    assert re.search(r"failed on rank 1 \(box-2\) at step \d+: killed by SIGKILL.*; restarting in", text), text[-5000:]
    assert troubled.seconds[0] < 30
    kept = json.loads((troubled.run_dir / "restarts.json").read_text())["attempts"]
    assert [(a["rank"], a["host"]) for a in kept[:2]] == [(1, "box-2"), (1, troubled.box.address(2))]
    assert [a["start_step"] % SAVE for a in kept] == [0, 0, 0]
    killed, cut = (read_verdict(troubled.run_dir / "status" / f"attempt-{n}") for n in (1, 2))
    assert (killed.rank, killed.host, killed.signal) == (1, "box-2", "SIGKILL")
    assert (cut.rank, cut.host, cut.cause) == (1, troubled.box.address(2), "LG077")
    assert read_verdict(troubled.run_dir).state == "completed"
    assert kept[1]["start_step"] >= SAVE


def test_a_host_that_is_cut_off_is_named_and_done_without(box, troubled):
    text = troubled.text.read_text()
    assert troubled.seconds[1] < 60
    assert f"no heartbeat from host {box.address(2)}" in text
    assert f"continuing without {box.address(2)}: 1 ranks" in text
    resolved = json.loads((troubled.run_dir / "spec.resolved.json").read_text())
    assert (resolved["batch"]["global"], len(resolved["hosts"])) == (BATCH, 1)


def test_a_host_that_is_cut_off_is_named_everywhere(box, folder, troubled):
    """Without a restart: the terminal, `harness runs`, the report and `harness explain --log RUN`."""
    run = Launch(box, folder, "alone", (3, 4), on=3, steps=100_000)
    run.until_step(3)
    assert box_command(box.name, "cut", "4").returncode == 0
    try:
        assert run.end() == 1
    finally:
        box_command(box.name, "heal", "4")
    verdict = assert_told_alike(run.run_dir, run.text.read_text())
    assert (verdict.rank, verdict.host, verdict.cause) == (1, box.address(4), "LG077")
    assert verdict.step >= 3


def test_no_sample_is_left_out_or_taken_twice(troubled):
    rows = troubled.rows("step")
    assert rows[-1]["step"] == STEPS
    assert all(row["samples"] == BATCH * row["step"] for row in rows)
    restarts = [row["step"] for row in troubled.rows("restart")]
    taken = [row["step"] for row in rows]
    kept = [*range(1, restarts[0] + 1), *range(restarts[0] + 1, restarts[1] + 1), *range(restarts[1] + 1, STEPS + 1)]
    assert sorted(set(taken)) == kept
    assert all(step % SAVE == 0 for step in restarts)


def test_one_host_and_two_hosts_take_the_same_steps(troubled):
    """Steps that were lost are taken again: by two hosts after the kill, by one after the cut. ZeRO-3."""
    parts: list[dict[int, float]] = [{}]
    for line in (troubled.run_dir / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["type"] == "restart":
            parts.append({})
        elif row["type"] == "step":
            parts[-1][row["step"]] = row["loss"]
    for before, after in itertools.pairwise(parts):
        again = sorted(before.keys() & after.keys())
        assert again
        assert [after[s] for s in again] == pytest.approx([before[s] for s in again], rel=1e-5)


def test_nobody_is_left_and_the_cut_off_host_ends_its_ranks_itself(troubled):
    assert troubled.left(1) == ""
    end = time.monotonic() + 40  # the guard there waits for half a minute after it last heard the supervisor
    while troubled.left(2) and time.monotonic() < end:
        time.sleep(0.5)
    assert troubled.left(2) == ""


def test_variables_arrive_on_other_hosts_as_they_are(troubled):
    assert f"ODD={ODD}" in troubled.environ
    assert not any(Path(where, "marker-of-hosts").exists() for where in (Path.cwd(), Path.home(), "/"))
    assert (troubled.run_dir / "deepspeed.env").read_text().count(ODD) == 1


def test_it_goes_on_on_other_hosts(box, folder, troubled, losses):
    """From a checkpoint on the folder that all hosts share."""
    checkpoint = sorted((troubled.run_dir / "checkpoints").glob("step-*"))[0]
    step = int(checkpoint.name.removeprefix("step-"))
    resumed = Launch(box, folder, "elsewhere", (3, 4), "--resume", str(checkpoint), steps=step + 2)
    assert resumed.losses() == pytest.approx([losses[step + 1], losses[step + 2]], rel=1e-5)
    argv = json.loads((resumed.run_dir / "launch.json").read_text())["argv"]
    assert argv[argv.index("--master_addr") + 1] == box.address(3)
    assert "GLOO_SOCKET_IFNAME=eth0\n" in (resumed.run_dir / "deepspeed.env").read_text()
    hosts = {json.loads(f.read_text())["host"] for f in (resumed.run_dir / "status").glob("rank-*.json")}
    assert hosts == {"box-3", "box-4"}


@pytest.fixture(scope="module")
def whole(box, folder) -> list[float]:
    """Losses of one rank on one host at stage 1, whose new weights are other random numbers than those of stage 3."""
    return Launch(box, folder, "whole", (1,), stage=1, steps=2).losses()


@pytest.mark.parametrize(("parallel", "hosts"), [("tensor_parallel_size: 2", 4), ("pipeline_parallel_size: 2", 2)])
def test_a_model_spread_over_hosts_trains_alike(box, folder, whole, parallel, hosts):
    name = parallel.partition("_")[0]
    spread = {"stage": 1, "parallel": parallel, "steps": 2}
    run = Launch(box, folder, name, tuple(range(1, hosts + 1)), "--no-preflight", **spread)
    assert run.losses() == pytest.approx(whole, rel=1e-4)


def test_an_all_reduce_over_hosts(box, folder, troubled):
    words = ["preflight", str(folder / "elsewhere.yaml"), "--hostfile", str(folder / "elsewhere.hosts"), "--allreduce"]
    command = [sys.executable, "-m", "harness", *words, "--format", "json"]
    done = box.on(1, *command, env=box.environ(), check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["all_reduce"]
    assert (found["world"], found["backend"], found["right"]) == (2, "gloo", True)
    assert sorted(found["hosts"]) == ["box-3", "box-4"]
    assert [size["bus"] > 0 for size in found["sizes"]] == [True] * 3
