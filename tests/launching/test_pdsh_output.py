# SPDX-License-Identifier: Apache-2.0
"""Output of several hosts told apart, and what a host's exit code says of its ranks. Needs nothing; milliseconds."""

from __future__ import annotations

import signal
from dataclasses import replace

from harness.launching.hosts import pdsh_output
from harness.launching.hosts.pdsh_output import PdshDemux
from harness.launching.supervise.run_verdict import RankExit, decide_verdict
from harness.run_records.rank_statuses import RankStatus


def test_each_host_has_a_file_and_what_is_no_hosts_has_none(tmp_path):
    told = PdshDemux(["10.0.0.1", "b"], tmp_path)
    lines = [
        "10.0.0.1: step 1",
        "b: ValueError: no",
        "c: other",
        "ValueError: mine",
        "b: ",
        "pdsh@x: b: ssh exited with exit code 247",
    ]
    assert [told.feed(line) for line in lines] == [
        "step 1",
        "ValueError: no",
        "c: other",
        "ValueError: mine",
        "",
        lines[-1],
    ]
    told.feed("pdsh@x: c: ssh exited with exit code 9")
    told.close()
    assert told.exit_codes == {"b": 247}
    assert {f.name: f.read_text() for f in tmp_path.iterdir()} == {
        "host-10.0.0.1.log": "step 1\n",
        "host-b.log": "ValueError: no\n\n",
    }


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path):
    told = PdshDemux(["b"], tmp_path / "nowhere")
    assert told.feed("b: text") == "text"
    told.close()


def test_a_rank_whose_launcher_told_its_signal_comes_before_peers_that_said_first_that_they_lost_it():
    peer = RankStatus(0, "box-1", 10, "failed", 24, 100.0, "RuntimeError: Connection closed by peer")
    gone = RankStatus(1, "box-2", 11, "running", 24, 99.0)
    death = RankExit(1, 11, 107.0, signal.SIGKILL, reported_by_launcher=True)
    verdict = decide_verdict({0: peer, 1: gone}, 2, 255, [death])
    assert (verdict.rank, verdict.host, verdict.code) == (1, "box-2", 137)
    assert "killed by SIGKILL" in verdict.reason
    assert not verdict.crashed
    # Without a signal: it ended without an error message, and the others say that they have lost somebody.
    verdict = decide_verdict({0: peer, 1: gone}, 2, 255, [RankExit(1, 11, 101.0, None)])
    assert (verdict.rank, verdict.reason) == (1, "it ended without an error message")
    # Long after, or where the other has an error of its own, who spoke first is believed.
    assert decide_verdict({0: peer, 1: gone}, 2, 255, [RankExit(1, 11, 107.0, None)]).rank == 0
    own = replace(peer, error="ValueError: no")
    assert decide_verdict({0: own, 1: gone}, 2, 255, [RankExit(1, 11, 101.0, None)]).rank == 0


def test_of_many_hosts_a_few_files_are_open(tmp_path, monkeypatch):
    monkeypatch.setattr(pdsh_output, "_MAX_OPEN_FILES", 3)
    names = [f"h{i}" for i in range(10)]
    told = PdshDemux(names, tmp_path)
    for number in range(3):
        for name in names:
            told.feed(f"{name}: line {number}")
            assert len(told._files) <= 3
    told.close()
    assert {(tmp_path / f"host-{name}.log").read_text() for name in names} == {"line 0\nline 1\nline 2\n"}
