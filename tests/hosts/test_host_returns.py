# SPDX-License-Identifier: Apache-2.0
"""A host that is cut off in a run and answers again, on hosts in a box. Needs root, sshd, pdsh and the training extra; a
minute or two.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.boxes import NEEDS_ROOT, TheBox, box_command, made_box
from tests.support.host_launches import BATCH, SAVE, Launch, write_text

pytestmark = [pytest.mark.hosts, *NEEDS_ROOT]


@pytest.fixture(scope="module")
def box() -> Iterator[TheBox]:
    with made_box(2, "r") as made:
        yield made


@pytest.fixture(scope="module")
def returned(box, tmp_path_factory) -> Launch:
    """A run on two hosts that goes on without host 2 while that is cut off, and ends with a stop on both."""
    folder = write_text(tmp_path_factory.mktemp("hosts"))
    more = ", max_restarts: 1, restart_delay_seconds: 0.5, min_hosts: 1"
    run = Launch(box, folder, "returning", (1, 2), steps=1_000_000, save=SAVE, launch=more)
    run.until_step(SAVE + 1)
    assert box_command(box.name, "cut", "2").returncode == 0
    try:
        run.until_restart(1, 120)
        run.until_step(SAVE + 2)
    finally:
        box_command(box.name, "heal", "2")
    run.until_restart(2, 120)
    run.until_step(run.rows("restart")[-1]["step"] + 3)
    (run.run_dir / "stop").write_text("enough\n")
    run.end(60)
    return run


def test_the_run_takes_the_host_back_after_a_save(box, returned):
    text = returned.text.read_text()
    lost = box.address(2)
    assert f"continuing without {lost}: 1 ranks on 1 of the hosts" in text, text[-3000:]
    assert f"{lost} can be reached again; stopping after this step" in text
    assert f"continuing with {lost} again: 2 ranks on 2 of the hosts" in text
    attempts = json.loads((returned.run_dir / "restarts.json").read_text())["attempts"]
    assert [a["state"] for a in attempts] == ["failed", "stopped", "stopped"]
    assert attempts[1]["step"] - attempts[2]["start_step"] < SAVE, "it stopped before another save was due"
    resolved = json.loads((returned.run_dir / "spec.resolved.json").read_text())
    assert (resolved["batch"]["global"], len(resolved["hosts"])) == (BATCH, 2)


def test_every_sample_is_taken_once_over_both_changes(returned):
    rows = returned.rows("step")
    assert all(row["samples"] == BATCH * row["step"] for row in rows)


def test_nobody_is_left(returned):
    assert returned.left(1) == returned.left(2) == ""
    assert Path(returned.run_dir / "stop").read_text() == "enough\n"


if os.environ.get("HARNESS_NIGHTLY"):  # a hundred seconds

    def test_a_link_that_is_down_for_a_minute_costs_one_restart(box, tmp_path):
        """Without `launch.min_hosts` the run needs the host, and waits for it."""
        run = Launch(box, write_text(tmp_path), "flap", (1, 2), steps=1_000_000, save=SAVE, launch=", max_restarts: 1")
        run.until_step(SAVE + 1)
        assert box_command(box.name, "cut", "2").returncode == 0
        time.sleep(50)  # longer than a restart that reaches nobody takes
        assert box_command(box.name, "heal", "2").returncode == 0
        run.until_restart(1, 120)
        run.until_step(run.rows("restart")[-1]["step"] + 3)
        (run.run_dir / "stop").write_text("enough\n")
        run.end(60)
        assert len(run.rows("restart")) == 1
        assert f"waiting for {box.address(2)} to answer" in run.text.read_text()
