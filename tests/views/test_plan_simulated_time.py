# SPDX-License-Identifier: Apache-2.0
"""Seconds of a simulated step next to the plan's, and its trace, as they are shown."""

from __future__ import annotations

import json

from harness.plan.simulation.simulated_time import compare_time
from harness.views.plan_simulation import render_simulated_time, render_trace, simulated_time_as_dict
from harness.views.style import Style
from tests.support.plan_inputs import offload, plan_of
from tests.support.simulated_clock import result_of


def test_the_text_has_both_sides_and_says_what_is_hidden() -> None:
    comparison = compare_time(plan_of("llama-3.1-8b", zero=offload("cpu")), result_of())
    text = render_simulated_time(comparison, Style(False), 200)
    assert "Seconds a step of 4 micro-batches" in text
    assert any(line.split()[:1] == ["step"] and line.split()[-1] == "37.50" for line in text.splitlines())
    assert "host to device 4.0 s (2.5 s not hidden)" in text
    assert "the plan with this overlap: " in text
    body = simulated_time_as_dict(comparison)
    assert body is not None
    assert body["simulated_groups"]["copies"] == {"busy": 4.0, "exposed": 2.5}


def test_no_clock_is_one_line() -> None:
    assert render_simulated_time(None, Style(False), 200).startswith("No time: the clock needs a known GPU")
    assert simulated_time_as_dict(None) is None


def test_a_trace_has_a_track_for_each_stream_and_the_phases() -> None:
    texts = ["default", "mm", "compute", "forward", "llama.py:1 forward", "disk read", "async_pread", "step"]
    slices = [[0, 1, 2, 3, 4, 0.0, 5.0, 1], [5, 6, 5, 7, 4, 5.0, 2.5, 1]]
    trace = {"texts": texts, "slices": slices, "phases": [["forward", 0, 5], ["step", 5, 2.5]], "merged_below": 0.0}
    body = json.loads(render_trace(trace, "run, rank 0"))
    names = {event["tid"]: event["args"]["name"] for event in body["traceEvents"] if event["name"] == "thread_name"}
    assert names == {0: "phases", 1: "default", 2: "disk read"}
    product = next(event for event in body["traceEvents"] if event["name"] == "mm")
    assert (product["ph"], product["tid"], product["ts"], product["dur"]) == ("X", 1, 0.0, 5.0)
    assert product["args"] == {"phase": "forward", "line": "llama.py:1 forward", "kernels": 1}
    assert body["otherData"]["of"] == "run, rank 0"
