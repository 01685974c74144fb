# SPDX-License-Identifier: Apache-2.0
"""The program of `benchmarks/gpu_acceptance.py`, and what its checks say of figures that only a GPU has."""

from __future__ import annotations

import copy
import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_acceptance
from benchmarks.gpu_checks import rank_processes
from benchmarks.gpu_checks.check import Ending, Start, Task
from benchmarks.gpu_checks.check_list import CHECKS, find_check
from benchmarks.gpu_checks.check_runner import Outcome, Session, render_table, run_checks
from benchmarks.gpu_checks.checks import host_syncs, kills
from benchmarks.gpu_checks.checks.wire_probe import choose_wire
from benchmarks.gpu_checks.simulated_figures import find_simulated, make_cases
from harness.hostinfo import machine
from tests.support.fake_gpu import CPU_BUILD, NO_DRIVER, ONE_H200, ROCM, made_up_gpu

GB = 10**9
ON_GPU: dict[str, dict[str, Any]] = {
    "device": {
        "kinds": [{"weights": ["cuda"], "buffers": ["cuda"], "engine": ["cuda"]}] * 2,
        "allocated_bytes": GB,
        "losses": [5.7, 5.6],
    },
    "ops": {"failed": {}, "found": ["cpu_adam"], "wanted": ["cpu_adam"]},
    "weights-cpu-1": {
        "cases": {"bf16": True},
        "steps": 6,
        "fewest_delays": 12,
        "delays": 12,
        "delay_ms": 20.0,
        "delayed_seconds": 0.3,
    },
    "rows": {"micro_batches": 60, "wrong": [], "pinned": True},
    "gathers": {"waited": 5, "ahead": 95, "waited_share": 0.05},
    "memory-leaf": {
        "planned": {"forward": 10 * GB, "backward": 11 * GB},
        "measured": {"forward": 9 * GB, "backward": 10 * GB},
        "planned_allocated_most": 13 * GB,
        "planned_reserved_most": 19 * GB,
        "reserved": 14 * GB,
        "gathered_elements": 10,
        "gathered_in_two_steps": 20,
        "always_there": 0,
        "simulated": {"forward": 9 * GB, "backward": 10 * GB, "gathered_elements": 20},
        "layers_as_one": True,
        "waited_share": 0.1,
    },
    "attention": {"shapes": {"a": {"mask_bytes_per_pair": 1.0, "error": 0.01, "causal": {"tflops": 400.0}}}},
    "loss": {"widths": {"a": {"whole": {"error": 0.01, "gb": 9.0}, "chunks of 512": {"error": 0.011, "gb": 2.0}}}},
    "syncs": {"harness": {}, "others": {"stage3.py:1": 3}, "steps": 3},
    "watch": {
        "steps": 201,
        "findings": [],
        "witnessed": [1, 2, 3, 200],
        "extra_syncs": {"1": [3, 40], "200": [3, 40]},
        "percent": 0.5,
    },
    "telemetry": {
        "clock": "device",
        "lines": 200,
        "expected_lines": 200,
        "rank_lines": 100,
        "parts_off": 0.01,
        "wall_share": 0.98,
        "mfu": [0.4],
        "communication_share": 0.1,
    },
    "activations": {name: {"losses": [5.0, 4.0], "peak_bytes": peak} for name, peak in (("kept", 9), ("offloaded", 7))},
    "recompute": {
        name: {"losses": [5.0, 4.0], "seconds": 1.0, "peak_bytes": peak}
        for name, peak in (("kept", 9), ("every-2", 8), ("attention", 7), ("all", 6), ("tiles", 5))
    },
    "qlora": {
        name: {"losses": [5.0, 4.0], "peak_bytes": peak, "frozen_bytes": size, "planned_bytes": size}
        for name, peak, size in (("lora", 9, 8), ("qlora", 5, 3))
    },
    "saves": {
        name: {"is_whole": True, "gb": 5.0, "on_disk_gb": 5.0, "sha256": "a", "copy_seconds": stall}
        for name, stall in (("in_line", 5.0), ("background", 2.0))
    },
    "kills": {
        "ended": {
            "sigterm": {
                "codes": [0, 0],
                "states": ["stopped", "stopped"],
                "errors": ["", ""],
                "checkpoint": "step-00000003",
                "seconds": 9.0,
                "memory_left": 0,
            },
            "sigkill": {
                "codes": [3, -9],
                "states": ["failed", "running"],
                "errors": ["closed", ""],
                "checkpoint": "step-00000002",
                "seconds": 9.0,
                "memory_left": 0,
            },
            "oom": {
                "codes": [3, 3],
                "states": ["failed", "failed"],
                "errors": ["closed", "CUDA out of memory"],
                "checkpoint": "step-00000002",
                "seconds": 9.0,
                "memory_left": 0,
            },
        },
        "finish_codes": [0, 0],
        "output": "",
        "sha256": {name: ["a", "b"] for name in ("untouched", "sigterm", "sigkill", "oom")},
    },
    "packing": {
        "has_varlen_kernel": True,
        "shapes": {
            "a": {
                "length": 65_536,
                "one call": {"ms": 90.0, "gb": 2.0, "error": 0.01},
                "by document": {"ms": 110.0, "gb": 3.0, "error": 0.01},
            }
        },
    },
    "copies": {
        f"{kind}_{way}_gb_per_second": rate
        for kind, rate in (("pinned", 50.0), ("native", 49.0), ("pageable", 10.0))
        for way in ("to_device", "to_host")
    },
    "host-rates": {
        "host_memory_gb_per_second": 200.0,
        "cpu_adam_gb_per_second": 150.0,
        "disk_read_gb_per_second": 5.0,
        "disk_write_gb_per_second": 2.0,
    },
    "real-size": {
        "ratio": 1.02,
        "harness": {
            "losses": [5.1, 5.0],
            "step_seconds": 4.0,
            "gpu_allocated_bytes": 20 * GB,
            "host_peak_bytes": 50 * GB,
        },
        "bare": {"losses": [5.1, 5.0]},
        "planned": {
            "step_seconds_range": [2.0, 8.0],
            "gpu_allocated_bytes_range": [15 * GB, 30 * GB],
            "host_peak_bytes": 60 * GB,
        },
    },
}
"""Of each subject, figures as a GPU should have them."""
BROKEN: list[tuple[str, Sequence[str], Any, str]] = [
    ("device", ("allocated_bytes",), 0, "the allocator of the GPU gave 0 bytes"),
    ("device", ("kinds",), [{"weights": ["cpu"]}], "weights of rank 0 are on ['cpu']"),
    ("device", ("losses",), [float("nan")], "losses are"),
    ("ops", ("failed",), {"fused_adam": "no nvcc"}, "fused_adam cannot be compiled: no nvcc"),
    ("ops", ("found",), [], "cpu_adam is not there"),
    ("weights-cpu-1", ("cases",), {"bf16": False}, "weights differ from plain DeepSpeed's: bf16"),
    ("weights-cpu-1", ("cases",), {}, "no case was trained"),
    ("weights-cpu-1", ("fewest_delays",), 2, "held streams back 2 times"),
    ("weights-cpu-1", ("delayed_seconds",), 0.01, "less than their delays"),
    ("rows", ("wrong",), [3], "rows of micro-batches [3]"),
    ("rows", ("pinned",), False, "not in pinned memory"),
    ("rows", ("micro_batches",), 2, "too few"),
    ("gathers", ("waited_share",), 0.87, "87% of the elements"),
    ("gathers", (), {"waited": 0, "ahead": 0, "waited_share": 0.0}, "nothing was gathered"),
    ("memory-leaf", ("measured", "backward"), 13 * GB, "backward allocates"),
    ("memory-leaf", ("measured", "forward"), GB, "forward allocates"),
    ("memory-leaf", ("measured", "forward"), 14 * GB, "the end of the plan's range"),
    ("memory-leaf", ("simulated", "backward"), 8 * GB, "backward allocates 10,000,000,000 bytes at most, simulated"),
    ("memory-leaf", ("simulated", "forward"), 11 * GB, "forward allocates 9,000,000,000 bytes at most, simulated"),
    ("memory-leaf", ("simulated", "gathered_elements"), 30, "two steps gather 20 elements, simulated are 30"),
    ("memory-leaf", ("reserved",), 20 * GB, "are reserved"),
    ("memory-leaf", ("gathered_elements",), 0, "nothing was gathered"),
    ("memory-leaf", ("waited_share",), 0.9, "90% of the elements"),
    ("attention", ("shapes", "a", "mask_bytes_per_pair"), 10.8, "10.8 bytes a pair"),
    ("attention", ("shapes", "a", "error"), 1.0, "off that of each document"),
    ("attention", ("shapes", "a", "causal", "tflops"), 9000.0, "more than a GPU has"),
    ("attention", ("shapes",), {}, "no shape was measured"),
    ("packing", ("shapes", "a", "one call", "error"), 0.5, "0.5 off attention of each document"),
    ("packing", ("shapes", "a", "by document", "gb"), 9.0, "as much as a mask"),
    ("packing", ("shapes", "a"), {"length": 64}, "torch's own kernel was not run"),
    ("packing", ("shapes",), {}, "no shape was measured"),
    ("loss", ("widths", "a", "chunks of 512", "error"), 0.1, "gradients are 0.1 off"),
    ("loss", ("widths", "a", "chunks of 512", "gb"), 10.0, "10 GB in chunks"),
    ("loss", ("widths",), {}, "no width was measured"),
    ("syncs", ("harness",), {"step.py:70": 3}, "step.py:70 waits for the device 3 times"),
    ("syncs", ("others",), {}, "nothing was watched"),
    ("syncs", ("steps",), 0, "0 steps were watched"),
    ("watch", ("findings",), ["AT028: other gradient"], "the watch says: AT028: other gradient"),
    ("watch", ("witnessed",), [], "the gradient was recomputed at steps []"),
    ("watch", ("extra_syncs",), {"7": [3, 4]}, "steps 7 wait for the device more often"),
    ("watch", ("percent",), 3.0, "the watch takes 3.0 %"),
    ("telemetry", ("clock",), "host", "the clock is `host`"),
    ("telemetry", ("lines",), 100, "100 lines for 200 steps"),
    ("telemetry", ("rank_lines",), 0, "no look at all ranks"),
    ("telemetry", ("parts_off",), 0.2, "20% off the step"),
    ("telemetry", ("wall_share",), 0.6, "60% of the time"),
    ("telemetry", ("mfu",), [1.4], "MFU is [1.4]"),
    ("telemetry", ("communication_share",), None, "the share of communication is None"),
    ("activations", ("offloaded", "losses"), [5.0, 4.1], "losses are [5.0, 4.1]"),
    ("activations", ("offloaded", "peak_bytes"), 9, "the peak is 9 bytes"),
    ("recompute", ("attention", "losses"), [5.0, 4.2], "losses of `attention` are [5.0, 4.2]"),
    ("recompute", ("tiles", "peak_bytes"), 6, "the peak of `tiles` is 6 bytes"),
    ("qlora", ("qlora", "losses"), [5.0, 4.2], "losses are [5.0, 4.2]"),
    ("qlora", ("qlora", "frozen_bytes"), 4, "`qlora` holds 4 bytes of frozen weights, and 3 are planned"),
    ("qlora", ("qlora", "peak_bytes"), 9, "the peak is 9 bytes"),
    ("saves", ("background", "is_whole"), False, "is not whole"),
    ("saves", ("in_line", "on_disk_gb"), 1.0, "1 GB are on the disk"),
    ("saves", ("background", "copy_seconds"), 6.0, "copies for 6.00 s"),
    ("saves", ("background", "sha256"), "b", "other tensors than one in line"),
    ("kills", ("ended", "sigterm", "codes"), [0, 3], "did not stop in order"),
    ("kills", ("ended", "sigkill", "codes"), [0, -9], "a rank ended well without its peer"),
    ("kills", ("ended", "sigkill", "codes"), [3, 3], "sigkill: codes [3, 3]"),
    ("kills", ("ended", "oom", "errors"), ["", "killed"], "oom: the ranks say"),
    ("kills", ("ended", "sigkill", "checkpoint"), None, "the newest checkpoint is None"),
    ("kills", ("ended", "oom", "seconds"), 100.0, "ended after 100 s"),
    ("kills", ("ended", "oom", "memory_left"), 30 * GB, "are left on the GPU"),
    ("kills", ("sha256", "sigkill"), ["a", "c"], "sigkill resumed to other weights"),
    ("kills", ("finish_codes",), [1, 1], "runs were not resumed"),
    ("copies", ("pinned_to_host_gb_per_second",), 0.2, "is not the rate of a bus"),
    ("copies", ("pageable_to_device_gb_per_second",), 90.0, "pinned memory is slower"),
    ("copies", ("native_to_host_gb_per_second",), 20.0, "DeepSpeed's pinned memory is slower to host"),
    ("copies", ("memlock_limit",), 65536, "may lock 65,536 bytes"),
    ("host-rates", ("cpu_adam_gb_per_second",), 0.1, "cpu adam: 0.1 GB/s"),
    ("host-rates", ("disk_read_gb_per_second",), 0.0, "disk read"),
    ("real-size", ("ratio",), 1.3, "1.30 times as long"),
    ("real-size", ("harness", "losses"), [float("nan")], "losses are"),
    ("real-size", ("harness", "step_seconds"), 9.0, "2.00 to 8.00 s are planned"),
    ("real-size", ("harness", "gpu_allocated_bytes"), 31 * GB, "more than the plan's range"),
    ("real-size", ("harness", "host_peak_bytes"), 80 * GB, "bytes on the host"),
]


@pytest.mark.parametrize(
    ("codes", "figures", "wire"),
    [([0, 0], {"sum": 3.0}, "nccl"), ([1, 1], {}, "gloo"), ([0, 0], {"sum": 1.0}, "gloo")],
)
def test_the_wire_is_tried_out(codes: list[int], figures: dict[str, Any], wire: str) -> None:
    assert choose_wire(end_with(codes, figures)) == wire


def test_each_subject_has_figures() -> None:
    assert {find_check(name).module for name in ON_GPU} == {check.module for check in CHECKS}


@pytest.mark.parametrize("name", ON_GPU)
def test_figures_of_a_gpu_pass(name: str) -> None:
    assert find_check(name).judge(ON_GPU[name], rehearse=False) == []


@pytest.mark.parametrize(("name", "keys", "value", "why"), BROKEN)
def test_one_wrong_figure_fails(name: str, keys: Sequence[str], value: Any, why: str) -> None:
    figures = copy.deepcopy(ON_GPU[name])
    if not keys:
        figures |= value
    else:
        place = figures
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value
    assert why in "; ".join(find_check(name).judge(figures, rehearse=False))


def end_with(codes: Sequence[int], figures: dict[str, Any], output: str = "") -> Callable[[Task], Ending]:
    return lambda _: Ending(codes, figures, output, 0.1)


@pytest.fixture(autouse=True)
def enough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "host_memory", lambda: machine.HostMemory(128 << 30, 100 << 30))


def run(names: Sequence[str], start: Callable[[Task], Ending], seconds: float = 600) -> list[Outcome]:
    session = Session(start, False, time.monotonic() + seconds)
    return list(run_checks([find_check(name) for name in names], session))


def test_a_failed_check_stops_no_other() -> None:
    outcomes = run(["rows", "copies"], end_with([0], ON_GPU["copies"]))
    assert [outcome.state for outcome in outcomes] == ["FAIL", "PASS"]
    assert "KeyError" in outcomes[0].why


def test_a_rank_that_ends_badly_fails_with_its_output() -> None:
    (outcome,) = run(["copies"], end_with([0, -11], ON_GPU["copies"], "a traceback"))
    assert outcome.state == "FAIL"
    assert "exit codes [0, -11]" in outcome.why
    assert "a traceback" in outcome.why


def test_no_check_starts_that_does_not_fit() -> None:
    outcomes = run(["real-size", "copies"], end_with([0], ON_GPU["copies"]), seconds=100)
    assert [outcome.state for outcome in outcomes] == ["SKIP", "PASS"]
    assert "240 s" in outcomes[0].why


@pytest.mark.parametrize(("gib", "states"), [(40, ["SKIP", "PASS"]), (80, ["FAIL", "PASS"])])
def test_no_check_starts_without_its_memory(gib: int, states: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would end a rank, or all that runs there."""
    monkeypatch.setattr(machine, "host_memory", lambda: machine.HostMemory(100 << 30, gib << 30))
    outcomes = run(["real-size", "copies"], end_with([0], ON_GPU["copies"]))
    assert [outcome.state for outcome in outcomes] == states
    assert (outcomes[0].why == "needs 56 GiB of host memory, 40 are available") is (gib == 40)


def test_all_starts_of_a_check_share_its_seconds() -> None:
    limits = []
    start = Start(Task("kills", "", False, seconds=2.0), lambda task: limits.append(task.seconds) or time.sleep(0.1))  # type: ignore[func-returns-value, return-value]
    start()
    start("finish")
    assert limits[1] < limits[0] <= 2.0


def test_figures_of_each_memory_check_are_simulated(tmp_path: Path) -> None:
    """After a change of what is rendered: `python -m benchmarks.gpu_checks.simulated_figures --write`."""
    for name, rehearse, spec, ranks in make_cases(tmp_path):
        figures = find_simulated(spec, ranks)
        assert figures is not None, name
        assert (figures["check"], figures["rehearsal"]) == (name, rehearse)


def test_a_gpu_without_simulated_figures_is_compared_with_the_plan() -> None:
    """As with another release of DeepSpeed; a rehearsal fails."""
    figures = ON_GPU["memory-leaf"] | {"simulated": None}
    check = find_check("memory-leaf")
    assert check.judge(figures, rehearse=False) == []
    assert "no simulation" in "; ".join(check.judge(figures, rehearse=True))
    low = figures | {"planned": {"forward": 7 * GB, "backward": 7 * GB}}
    assert "are planned" in "; ".join(check.judge(low, rehearse=False))
    assert check.judge(low | {"simulated": ON_GPU["memory-leaf"]["simulated"]}, rehearse=False) == []


def test_each_part_fits_into_nine_minutes() -> None:
    for part in gpu_acceptance.PARTS:
        assert sum(check.needs for check in CHECKS if check.part == part) < 60 * gpu_acceptance.MINUTES


@pytest.mark.parametrize(
    ("only", "first", "expected"),
    [(None, "saves", ["saves", "kills"]), (["loss", "rows"], None, ["loss"]), (["loss"], "saves", [])],
)
def test_checks_are_chosen(only: list[str] | None, first: str | None, expected: list[str]) -> None:
    assert [check.name for check in gpu_acceptance.choose_checks(2, only, first)] == expected


def test_exit_code_lines_and_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_acceptance, "start_ranks", end_with([0], ON_GPU["copies"]))
    monkeypatch.setattr(gpu_acceptance, "find_device_problem", lambda: "")
    output = tmp_path / "out"
    assert gpu_acceptance.main(["--part", "3", "--only", "copies", "--output", str(output)]) == 0
    assert gpu_acceptance.main(["--part", "1", "--only", "rows", "--output", str(output)]) == 1
    lines = [json.loads(line) for line in (output / "part-3.jsonl").read_text().splitlines()]
    assert [list(line) for line in lines] == [["check", "state", "seconds", "figures"]] * 2
    assert {"nvidia_smi", "versions", "git_revision", "seed"} <= set(lines[0]["figures"])
    assert capsys.readouterr().out.splitlines()[0] == (output / "part-3.jsonl").read_text().splitlines()[0]
    assert (output / "part-1.txt").read_text().startswith("FAIL  rows")
    assert "part 3: 1 passed, " in (output / "part-3.txt").read_text()
    assert len(list(output.iterdir())) == 4
    assert gpu_acceptance.main(["--part", "3", "--minutes", "0", "--output", str(output)]) == 1
    assert "part 3: 5 skipped, " in (output / "part-3.txt").read_text()


@pytest.mark.parametrize(
    ("torch", "environ", "why"),
    [
        (ONE_H200, {}, ""),
        (ONE_H200, {"DS_ACCELERATOR": "cpu"}, "DS_ACCELERATOR is `cpu`"),
        (CPU_BUILD, {}, "torch 2.13.0 is a CPU build: install a build of torch for CUDA 12, which driver 570.1 runs"),
        (NO_DRIVER, {}, "driver 570.1 is older than CUDA 13.0 of torch 2.13.0 needs (580)"),
        (NO_DRIVER, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES is empty"),
        (ROCM, {}, "can use 1 AMD GPU"),
    ],
)
def test_no_check_starts_without_a_gpu(
    torch: str,
    environ: dict[str, str],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The reason is said at once, in the first line and in the table, and no later part is tried."""
    driver = "580.65.06" if environ or not why else "570.1"
    made = made_up_gpu(tmp_path / "made", torch, driver=driver)
    for name in ("DS_ACCELERATOR", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"PATH": made["PATH"], "PYTHONPATH": made["PYTHONPATH"], **environ}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gpu_acceptance, "start_ranks", end_with([0], ON_GPU["copies"]))
    code = gpu_acceptance.main(["--only", "copies", "--only", "rows", "--output", str(tmp_path / "out")])
    assert code == 1  # `rows` fails with these figures
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    if not why:
        assert [line["check"] for line in lines] == ["facts", "rows", "facts", "copies"]
        return
    assert [(line["check"], line["state"]) for line in lines] == [("facts", "FAIL")]
    assert why in lines[0]["figures"]["why"]
    assert why in (tmp_path / "out" / "part-1.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--part", "2", "--only", "rows"], "part 2 has none of these checks: it has ops-2, attention, "),
        (["--part", "1", "--from", "kills"], "part 1 has none of these checks"),
        (["--rehearse", "--wire", "nccl"], "needs a GPU"),
        (["--output", __file__], "--output: "),
        (["--shared"], "CUDA does not survive a fork"),
    ],
)
def test_arguments_that_make_no_sense(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu_acceptance.main(arguments)
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


def test_an_interrupt_ends_the_ranks(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(ranks: list[Any], _deadline: float) -> int:
        started.extend(ranks)
        raise KeyboardInterrupt

    started: list[Any] = []
    monkeypatch.setattr(rank_processes, "_wait_for_ranks", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rank_processes.start_ranks(Task("rows", str(program), False, 2, "hang", seconds=60))
    assert [rank.wait(10) for rank in started] == [-9, -9]


def test_a_table_has_the_reason() -> None:
    table = render_table([Outcome("a", "PASS", 1.0, {"gb": 2.0}), Outcome("long", "FAIL", 2.0, {}, "x\nbecause")])
    assert table.splitlines() == ["PASS  a        1.0 s  gb 2", "FAIL  long     2.0 s  because"]


PROGRAM = """
import json, os, pathlib, sys, time
task = json.loads(sys.argv[-1])
rank = os.environ["RANK"]
if task["mode"] == "hang" or (task["mode"] == "fail" and rank == "0"):
    time.sleep(60)
if task["mode"] == "fail":
    sys.exit("broken")
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CUBLAS_WORKSPACE_CONFIG")
pathlib.Path(task["folder"], f"figures-{rank}.json").write_text(json.dumps({n: os.environ.get(n) for n in names}))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    monkeypatch.setattr(rank_processes, "PROGRAM", file)
    monkeypatch.setattr(rank_processes, "GRACE_SECONDS", 0.2)
    return tmp_path


def test_two_ranks_share_the_first_gpu(program: Path) -> None:
    ending = rank_processes.start_ranks(Task("rows", str(program), False, 2))
    assert list(ending.codes) == [0, 0]
    expected = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert ending.figures == expected
    assert json.loads((program / "figures-1.json").read_text())["LOCAL_RANK"] == "0"


@pytest.mark.parametrize(("mode", "codes", "output"), [("fail", [-9, 1], "broken"), ("hang", [-9, -9], "")])
def test_ranks_are_ended(mode: str, codes: list[int], output: str, program: Path) -> None:
    """Soon after one has failed, and when the time is up."""
    began = time.monotonic()
    ending = rank_processes.start_ranks(
        Task("rows", str(program), False, 2, mode, seconds=1.5 if mode == "hang" else 60)
    )
    assert list(ending.codes) == codes
    assert output in ending.output
    assert ending.figures == {}
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(("visible", "expected"), [("", 1 << 20), ("3,1", 3 << 20), ("GPU-7", 7 << 20)])
def test_memory_is_that_of_the_gpu_of_the_ranks(
    visible: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may use the first GPU of a host."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\ncase "$*" in *"-i 3") echo 3;; *"-i GPU-7") echo 7;; *) echo 1; echo 2;; esac\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert kills._used_gpu_memory() == expected


def test_a_wait_is_counted_at_the_line_that_torch_warns_of() -> None:
    # torch warns from C++, so that the frames of `warnings` lie above the line: an H100 counted 53 waits of `warnings.py`.
    watch = host_syncs.SyncWatch()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = watch._note_warning
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)

    assert [line.split(":")[0] for line in watch.ours] == ["test_gpu_checks.py"]
