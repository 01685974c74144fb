# SPDX-License-Identifier: Apache-2.0
"""Measurements of a run against clocks and counts of the test's own; stragglers are named with the cause.

Two forked ranks, all runs in one job: about 25 s.
"""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from harness.facts.metrics_schema import SCHEMA_VERSION
from harness.launching.setup.environment import with_flops_profiler_output
from harness.run_records.run_record import read_run_record
from harness.slowness import diagnose_slowness
from harness.views.report.problems_section import render_problems
from tests.support.fake_nvml import build_fake_nvml
from tests.support.metrics_lines import validate_line
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.parity_cases import WIDE, write_run
from tests.support.training.runtime_helpers import TINY, metric_lines
from tests.training.jobs.telemetry_cases import LOADED_PAGES

JOB = Path(__file__).parents[1] / "jobs" / "telemetry_cases.py"
STEPS, MICRO, ACCUMULATION, RANKS, LENGTH = 16, 2, 2, 2, 64
ROWS = MICRO * ACCUMULATION * RANKS
SLOW = 0.25  # s: above what another process on a rank's core takes of a step

CASES: dict[str, dict[str, Any]] = {
    "even": {"stage": 1, "trackers": ["csv", "wandb"]},
    "late": {"stage": 2, "late": True, "profile": "3"},
    "data": {"stage": 2, "slow": {"rank": 1, "kind": "data", "seconds": SLOW / 2}},
    "backward": {"stage": 3, "slow": {"rank": 0, "kind": "backward", "seconds": SLOW}},
    "optimizer": {"stage": 0, "slow": {"rank": 1, "kind": "optimizer", "seconds": SLOW}},
    "lengths": {"stage": 1, "long": 1},
    "disk": {"stage": 3, "nvme": True, "slow": {"rank": 1, "kind": "disk", "seconds": 0.06}},
    "gpu": {"stage": 1, "slow": {"rank": 1, "kind": "backward", "seconds": SLOW}},
}


@pytest.fixture(scope="module")
def runs(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run directory of each case."""
    folder = tmp_path_factory.mktemp("telemetry")
    jobs = []
    for name, case in CASES.items():
        data = write_rows(folder / f"{name}.jsonl", long_rank=case.get("long"))
        write_run(folder / name, spec(name, case, data, folder), RANKS)
        config = json.loads((folder / name / "ds_config.json").read_text())
        (folder / name / "ds_config.json").write_text(json.dumps(with_flops_profiler_output(config, folder / name)))
        jobs.append(
            {
                "run": str(folder / name),
                "slow": case.get("slow"),
                "late": case.get("late", False),
                "swap": str(folder / "swap"),
                "driver": str(build_fake_nvml(folder / "driver")) if name == "gpu" else None,
            }
        )
    (folder / "jobs.json").write_text(json.dumps(jobs))
    forked.run(JOB, str(folder / "jobs.json"), ranks=RANKS)
    outcomes = {name: json.loads((folder / name / "outcome.json").read_text()) for name in CASES}
    assert {name: outcome["error"] for name, outcome in outcomes.items()} == dict.fromkeys(CASES)
    return {name: folder / name for name in CASES}


def write_rows(path: Path, long_rank: int | None) -> Path:
    """Records of uneven length, in order: micro-batch m of rank r is the r-th slice of its part. The rows of a long rank
    are four times as long.
    """
    lines = []
    for row in range(ROWS * STEPS):
        rank = row // MICRO % RANKS
        length = 20 + row * 7 % 30 if long_rank is None else 250 if rank == long_rank else 60
        lines.append(json.dumps({"prompt": "ab", "completion": "x" * (length - 3)}))
    path.write_text("\n".join(lines) + "\n")
    return path


def spec(name: str, case: dict[str, Any], data: Path, folder: Path) -> dict[str, Any]:
    nvme = case.get("nvme", False)
    long = "long" in case
    model = {**TINY, "vocab_size": WIDE if nvme else 320, "tie_word_embeddings": nvme, "max_position_embeddings": 256}
    if long:
        model |= {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3}
    zero: dict[str, Any] = {"stage": case["stage"]}
    if nvme:
        zero |= {"offload_optimizer": {"device": "nvme", "nvme_path": str(folder / "swap")}, "sub_group_size": 600_000}
    return {
        "name": name,
        "model": {"config": model, "tokenizer": "bytes"},
        "data": {
            "train": str(data),
            "max_length": 256 if long else LENGTH,
            "shuffle": False,
            "group_by_length": False,
            "eval_fraction": 0.0,
        },
        "train": {
            "max_steps": STEPS,
            "per_device_train_batch_size": MICRO,
            "gradient_accumulation_steps": ACCUMULATION,
        },
        "zero": zero,
        "telemetry": {
            "peak_flops": 1e12,
            "trackers": case.get("trackers", []),
            "wandb_mode": "offline",
            "profile_steps": case.get("profile"),
            "comms_logger": name == "late",
            "flops_profiler": name == "late",
        },
        "checkpoint": {"save_steps": 10 if name in ("even", "late") else None, "save_at_end": False},
    }


def test_every_line_is_as_the_schema_says(runs: dict[str, Path]) -> None:
    for run in runs.values():
        lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
        assert [wrong for line in lines for wrong in validate_line(line)] == []
        assert lines[0]["format_version"] == SCHEMA_VERSION
        assert len(metric_lines(run, "step")) == STEPS
        assert all(later["time"] >= earlier["time"] for earlier, later in itertools.pairwise(lines))


def test_tokens_are_those_counted_by_hand(runs: dict[str, Path]) -> None:
    """A record has a token a letter and one for its end; of those, the completion and the end are trained on."""
    records = [json.loads(line) for line in (runs["even"].parent / "even.jsonl").read_text().splitlines()]
    trained = [len(record["completion"]) + 1 for record in records]
    texts = [len(record["prompt"] + record["completion"]) + 1 for record in records]
    total = 0
    for index, line in enumerate(metric_lines(runs["even"], "step")):
        lengths = texts[index * ROWS : (index + 1) * ROWS]
        padded = [max(lengths[i : i + MICRO]) * MICRO for i in range(0, ROWS, MICRO)]
        total += sum(lengths)
        assert (line["step_tokens"], line["step_positions"], line["tokens"]) == (sum(lengths), sum(padded), total)
        assert line["samples"] == (index + 1) * ROWS
        assert line["predicted_tokens"] == sum(trained[: (index + 1) * ROWS])
        assert line["tokens_per_second"] == pytest.approx(sum(lengths) / line["seconds"], rel=1e-3)


@pytest.mark.parametrize("name", ["even", "data", "backward", "disk"])
def test_the_parts_add_up_to_the_step(name: str, runs: dict[str, Path]) -> None:
    """By a clock around the step that is not the harness's: the parts, and with the loop's own share the whole."""
    wall = json.loads((runs[name] / "outcome.json").read_text())["wall"]
    lines = metric_lines(runs[name], "step")
    parts = ("data", "forward", "backward", "optimizer")
    inside, whole = 0.0, 0.0
    for line, outside in list(zip(lines, wall, strict=True))[2:]:
        named = sum(line[f"seconds_{part}"] for part in parts)
        assert named + line["seconds_loop"] == pytest.approx(line["seconds"], abs=5e-6)
        inside, whole = inside + line["seconds"], whole + outside
        assert named <= outside * 1.001
    assert inside == pytest.approx(whole, rel=0.3 if whole / STEPS < 0.1 else 0.1)  # agreeing to go on is outside
    assert statistics.median(sum(line[f"seconds_{p}"] for p in parts) / line["seconds"] for line in lines) > 0.6


def test_lines_that_are_written_a_step_late_are_all_there_in_order(runs: dict[str, Path]) -> None:
    """As on a device: no step waits for its line, but before a save and at the end no line is pending."""
    lines = [json.loads(text) for text in (runs["late"] / "metrics.jsonl").read_text().splitlines()]
    order = [(line["type"], line["step"]) for line in lines if line["type"] in ("step", "save")]
    steps = [("step", step) for step in range(1, STEPS + 1)]
    assert order == [*steps[:10], ("save", 10), *steps[10:]]
    wall = json.loads((runs["late"] / "outcome.json").read_text())["wall"]
    seconds = sum(line["seconds"] + line.get("seconds_profile", 0) for line in lines if line["type"] == "step")
    assert seconds == pytest.approx(sum(wall), rel=0.2)


def test_the_profile_of_some_steps(runs: dict[str, Path]) -> None:
    (line,) = metric_lines(runs["late"], "profile")
    assert (line["first_step"], line["step"], line["path"]) == (3, 3, "profile")
    folder = runs["late"] / "profile"
    with gzip.open(folder / "rank-00000.steps-3-3.trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert sum(event.get("name") == "aten::mm" for event in events) > 10
    table = (folder / "rank-00000.steps-3-3.txt").read_text()
    shares = [float(row.split()[-1].rstrip("%")) for row in table.split("\n\n")[1].splitlines()[1:]]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert "matrix products" in table
    assert "seconds_profile" in metric_lines(runs["late"], "step")[3]


def test_deepspeeds_own_profiler_and_communication_log(runs: dict[str, Path]) -> None:
    collectives = json.loads((runs["late"] / "profile/communication.json").read_text())["summary"]
    assert any("reduce" in name for name in collectives)
    assert "fwd flops" in (runs["late"] / "profile/flops.txt").read_text()


def test_trackers_in_a_run(runs: dict[str, Path]) -> None:
    """A tracker that is not installed, or fails, has a line in metrics.jsonl."""
    rows = (runs["even"] / "trackers/csv/step.csv").read_text().splitlines()
    assert len(rows) == STEPS + 1
    failed = [line["tracker"] for line in metric_lines(runs["even"], "tracker_failed")]
    assert failed == ([] if importlib.util.find_spec("wandb") else ["wandb"])


def test_saves_are_told_apart_from_steps(runs: dict[str, Path]) -> None:
    lines = {line["step"]: line for line in metric_lines(runs["even"], "step")}
    (first,) = metric_lines(runs["even"], "save")
    assert lines[11]["seconds_checkpoint"] >= first["stall_seconds"] * 0.99
    assert "seconds_checkpoint" not in lines[10]
    # Lines of short steps are written together: those of the save's and of the last step have the time at which they end.
    between = lines[STEPS]["time"] - lines[10]["time"]
    total = sum(lines[s]["seconds"] + lines[s].get("seconds_checkpoint", 0.0) for s in range(11, STEPS + 1))
    assert total == pytest.approx(between, abs=0.03 + 0.02 * between)


def test_memory_is_that_of_the_process(runs: dict[str, Path]) -> None:
    """The harness looks at most once a second, which is longer than all steps of a quick run take: each of its looks is
    compared with psutil's at that moment, and lines have nothing but what was seen in one.
    """
    for name in ("even", "backward"):
        readings = json.loads((runs[name] / "outcome.json").read_text())["memory"]
        values = [value for value, _ in readings]
        assert values == pytest.approx([resident for _, resident in readings], rel=0.01)
        steps = metric_lines(runs[name], "step")
        assert all(line["memory_host_peak_bytes"] >= line["memory_host_bytes"] for line in steps)
        # Where jobs follow each other, the first steps of one may still have the last look of the one before.
        since = next(i for i, line in enumerate(steps) if line["memory_host_bytes"] in values)
        assert sum(line["seconds"] for line in steps[:since]) <= 1.0
        assert {line["memory_host_bytes"] for line in steps[since:]} <= set(values)
        ranks = [line["memory_host_bytes"][0] for line in metric_lines(runs[name], "ranks") if line["step"] > since]
        assert ranks
        assert set(ranks) <= set(values)
    assert len(values) >= 3  # this one's steps take four seconds: it looked again
    assert steps[-1]["memory_host_bytes"] in values[-2:]


def test_shares_of_the_peak_follow_from_flops_and_time(runs: dict[str, Path]) -> None:
    for line in metric_lines(runs["lengths"], "step"):
        rate = line["flops"] / line["seconds"] / RANKS
        assert line["device_flops_per_second"] == pytest.approx(rate, rel=1e-3)
        assert line["mfu"] == pytest.approx(rate / 1e12, rel=1e-3)
        assert line["hfu"] / line["mfu"] == pytest.approx(line["flops_hardware"] / line["flops"], rel=1e-3)


def test_nvme_traffic_is_that_of_the_swap_files(runs: dict[str, Path]) -> None:
    """Masters and two states are read and written in each step, gradients written in the backward and read with them."""
    outcome = json.loads((runs["disk"] / "outcome.json").read_text())
    line = metric_lines(runs["disk"], "step")[-1]
    states = outcome["swapped"]
    assert states > 1 << 20
    assert line["nvme_bytes"] == pytest.approx(states * RANKS, rel=0.1)
    assert line["nvme_read_bytes"] == pytest.approx(states, rel=0.1)
    assert line["nvme_write_bytes"] == pytest.approx(states, rel=0.1)
    assert 0 < line["seconds_io"] < line["seconds"]


SLOWEST = {
    "data": (1, "data"),
    "backward": (0, "compute"),
    "optimizer": (1, "compute"),
    "lengths": (1, "input_size"),
    "disk": (1, "io"),
    "gpu": (1, "gpu"),
}


@pytest.mark.parametrize("name", SLOWEST)
def test_a_slow_rank_is_named_with_its_cause(name: str, runs: dict[str, Path]) -> None:
    """Though all ranks' steps take as long as each other."""
    rank, cause = SLOWEST[name]
    stragglers = [line for line in metric_lines(runs[name], "straggler") if line["state"] == "named"]
    assert stragglers, metric_lines(runs[name], "ranks")[-1]
    assert (stragglers[0]["ranks"], stragglers[0]["cause"]) == ([rank], cause)
    assert stragglers[0]["step"] <= 15
    slow = CASES[name].get("slow")
    lines = metric_lines(runs[name], "ranks")[1:]
    # In the middle of the run: another process on the machine may have the core of either rank in some of its intervals.
    assert statistics.median(line["seconds"][0] / line["seconds"][1] for line in lines) == pytest.approx(1, rel=0.25)
    assert statistics.median(line["busy"][rank] / line["busy"][1 - rank] for line in lines) > 1.2
    if slow and name != "disk":
        calls = 1 if name == "optimizer" else ACCUMULATION
        assert stragglers[0]["seconds"] == pytest.approx(slow["seconds"] * calls, rel=0.6)


def test_sick_gpus_are_named_in_the_run_and_in_its_report(runs: dict[str, Path]) -> None:
    heat = "is slowed down by heat: 93 C, SM clock 750 of 1980 MHz"
    errors = "has 2 uncorrected ECC errors since its driver was loaded; has 4 lanes of PCIe, 16 are possible"
    lines = sorted(metric_lines(runs["gpu"], "gpu"), key=lambda line: line["rank"])  # a reading ends when it may
    assert [(line["rank"], line["bus_id"], line["problems"], line["evidence"]) for line in lines] == [
        (0, "0000:1b:00.0", ["ecc", "pcie_width"], errors),
        (1, "0000:1c:00.0", ["thermal"], heat),
    ]
    straggler = next(line for line in metric_lines(runs["gpu"], "straggler") if line["state"] == "named")
    assert straggler["evidence"].endswith(f" times the work: GPU 0000:1c:00.0 {heat}")
    record = read_run_record(runs["gpu"])
    assert "gpu" in [report.slowdown.name for report in diagnose_slowness(record).slowdowns]
    page = render_problems(record)
    assert f"GPU 0000:1b:00.0 of rank 0 on {lines[0]['host']} {errors}" in page
    assert f"GPU 0000:1c:00.0 of rank 1 on {lines[0]['host']} {heat}" in page
    assert "likely by its GPU" in page
    assert all(not metric_lines(runs[name], "gpu") for name in CASES if name != "gpu")


def test_waiting_for_a_slow_rank_counts_as_communication(runs: dict[str, Path]) -> None:
    """Rank 0 waits in its collectives for rank 1, which draws its data slowly."""
    lines = metric_lines(runs["data"], "step")[2:]
    assert statistics.median(line["seconds_communication"] for line in lines) >= SLOW * 0.6
    assert all(line["seconds_data"] < SLOW / 2 for line in lines)
    assert all(0 <= line["communication_share"] <= 1 for line in lines)


def test_page_faults_of_loading_are_not_those_of_the_first_steps(runs: dict[str, Path]) -> None:
    faults = json.loads((runs["even"] / "outcome.json").read_text())["faults"]
    assert faults
    assert max(faults) < LOADED_PAGES / STEPS
