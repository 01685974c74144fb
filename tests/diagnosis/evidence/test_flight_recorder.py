# SPDX-License-Identifier: Apache-2.0
"""Dumps of torch's flight recorder name who is missing from which collective. Needs nothing; milliseconds.

The dumps have the form of `torch._C._distributed_c10d._dump_fr_trace` and `_dump_fr_trace_json` of torch 2.13 (version 2.10).
"""

from __future__ import annotations

import io
import json
import pickle
from typing import Any

import pytest

from harness.diagnosis import diagnose
from harness.diagnosis.evidence.flight_recorder import find_stuck_collectives, is_flight_dump, read_flight_dump
from harness.diagnosis.run_diagnosis import diagnose_run

WORLD = [0, 1, 2, 3]


def make_entry(number: int, operation: str = "all_reduce", **more: Any) -> dict[str, Any]:
    """One collective of the default group."""
    return {
        "frames": [
            {"name": operation, "filename": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 3245},
            {"name": "step", "filename": "/job/train.py", "line": 80 + number},
            {"name": "<module>", "filename": "/job/train.py", "line": 200},
        ],
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{operation}",
        "time_created_ns": 1795574380979789938 + number,
        "input_sizes": [[4, 3]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 3]],
        "output_dtypes": ["Float"],
        "state": "completed" if number < 7 else "started",
        "time_discovered_completed_ns": 1 if number < 7 else None,
        "retired": number < 7,
        "timeout_ms": 600000,
        "is_p2p": False,
        **more,
    }


def make_dump(entries: list[dict[str, Any]], ranks: list[int] = WORLD) -> dict[str, Any]:
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(ranks)}},
        "comm_lib_version": "2.27.5",
        "pg_status": {},
        "entries": entries,
    }


def make_files(behind: int = 2) -> dict[str, bytes]:
    """Dumps of 4 ranks; one called its last collective, #6, while the others wait in #7."""
    dumps = {r: make_dump([make_entry(n) for n in range(1, 7 if r == behind else 8)]) for r in WORLD}
    return {f"nccl_trace_rank_{r}": pickle.dumps(dump, protocol=2) for r, dump in dumps.items()}


def test_the_rank_that_never_joined(tmp_path):
    for name, data in make_files().items():
        (tmp_path / name).write_bytes(data)
    diagnosis = diagnose_run(tmp_path)
    assert (diagnosis.state, diagnosis.cause, diagnosis.rank) == ("failed", "LG240", 2)
    assert diagnosis.confidence == "likely"
    assert "rank 2 never joined all_reduce #7 of group `default_pg` (4x3); ranks 0, 1, 3 did" in diagnosis.message
    assert "the last collective of rank 2 was all_reduce at /job/train.py:86" in diagnosis.message


def test_a_dump_beside_a_log_that_knows_the_cause(tmp_path):
    for name, data in make_files().items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "job.log").write_text("[rank2]: OSError: [Errno 28] No space left on device\n")
    assert (diagnose_run(tmp_path).cause, diagnose_run(tmp_path).rank) == ("LG050", 2)


def test_a_dump_beside_a_log_that_only_shows_progress(tmp_path):
    """The log comes first, and its progress says nothing of the dump."""
    for name, data in make_files().items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "job.log").write_text("".join(f"{{'loss': 2.{i}}}\n" for i in range(60)))
    diagnosis = diagnose_run(tmp_path)
    assert (diagnosis.cause, diagnosis.rank) == ("LG240", 2)
    assert (diagnosis.file, diagnosis.line) == ("nccl_trace_rank_2", 1)


def test_json_is_the_same(tmp_path):
    streams = []
    for name, data in make_files(3).items():
        stream = io.BytesIO(json.dumps(pickle.loads(data), sort_keys=True).encode())  # noqa: S301
        stream.name = f"{name}.json"
        streams.append(stream)
    diagnosis = diagnose(streams)
    assert (diagnosis.cause, diagnosis.rank) == ("LG240", 3)


def read(dumps: dict[int, list[dict[str, Any]]]):
    return find_stuck_collectives(
        [read_flight_dump(pickle.dumps(make_dump(entries), 2), f"x_{rank}", 0) for rank, entries in dumps.items()]
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input_sizes": [[5, 3]]}, "their shapes differ: ranks 0, 1, 3: 4x3; rank 2: 5x3"),
        ({"input_dtypes": ["Half"]}, "their types differ: ranks 0, 1, 3: Float; rank 2: Half"),
        (
            {"profiling_name": "nccl:all_gather"},
            "their operations differ: ranks 0, 1, 3: all_reduce; rank 2: all_gather",
        ),
    ],
)
def test_ranks_that_disagree(change, words):
    dumps = {rank: [make_entry(6), make_entry(7, **(change if rank == 2 else {}))] for rank in WORLD}
    (stuck,) = read(dumps)
    assert (stuck.number, stuck.missing, stuck.disagreement) == (7, (), words)


def test_ranks_may_give_different_shapes_to_some_collectives():
    dumps = {r: [make_entry(7, "all_to_all", input_sizes=[[r, 3]])] for r in WORLD}
    assert read(dumps) == []


def test_a_rank_without_a_dump_is_named_and_not_called_missing():
    (stuck,) = read({rank: [make_entry(7)] for rank in (0, 1, 3)})
    assert (stuck.missing, stuck.without_dump, stuck.waiting) == ((), (2,), (0, 1, 3))


def test_nothing_is_stuck_where_all_has_ended():
    assert read({rank: [make_entry(5), make_entry(6)] for rank in WORLD}) == []


class Harmful:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return print, ("harm",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_no_code_of_a_pickle_is_run(protocol, capsys):
    data = pickle.dumps({"version": "2.10", "pg_config": {}, "entries": [Harmful()]}, protocol)
    with pytest.raises(ValueError, match=r"names `builtins\.print`|damaged"):
        read_flight_dump(data, "nccl_trace_rank_0", 0)
    assert capsys.readouterr().out == ""
    diagnosis = diagnose([io.BytesIO(data)])
    assert diagnosis.state in ("not text", "no failure seen")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("cut", [10, 100, 400])
def test_a_damaged_dump_is_one_line(cut):
    data = make_files()["nccl_trace_rank_0"]
    assert is_flight_dump(data[:1024])
    diagnosis = diagnose([io.BytesIO(data[:-cut])])
    assert diagnosis.state == "not text"
    assert "cannot be read" in diagnosis.title


@pytest.mark.parametrize("key", ["process_group", "input_sizes", "input_dtypes", "profiling_name", "ranks"])
def test_containers_that_hold_each_other_many_times_are_not_text(key):
    value: Any = ["a"]
    for _ in range(60):
        value = [value, value]
    dump = make_dump([make_entry(number) for number in range(1, 9)])
    if key == "ranks":
        dump["pg_config"]["0"]["ranks"] = value
    else:
        dump["entries"][-1][key] = [value, value]
    parsed = read_flight_dump(pickle.dumps(dump), "nccl_trace_rank_0", 0)
    assert parsed.rank == 0
    assert all(len(call.sizes) < 1000 for calls in parsed.collectives.values() for call in calls.values())


def test_frames_are_kept_of_calls_that_did_not_end():
    parsed = read_flight_dump(pickle.dumps(make_dump([make_entry(n) for n in range(1, 9)])), "nccl_trace_rank_0", 0)
    assert [number for number, call in parsed.collectives["0"].items() if call.frames] == [7, 8]


def test_a_folder_of_a_log_and_dumps_shows_the_last_lines_of_the_log(tmp_path):
    (tmp_path / "job.log").write_text("step 1 loss: 2.0\nLoading checkpoint shards: 33%|###   | 1/3\n")
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(make_dump([make_entry(1)])))
    diagnosis = diagnose_run(tmp_path)
    assert diagnosis.state == "no failure seen"
    assert "Loading checkpoint shards" in diagnosis.lines[-1][1]
