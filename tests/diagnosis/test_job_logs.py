# SPDX-License-Identifier: Apache-2.0
"""All logs of one job: found, merged by time, told apart by rank, host and attempt. Needs nothing; a second."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app
from harness.diagnosis import run_diagnosis
from harness.diagnosis.reader.log_files import find_logs, parse_log_name
from harness.diagnosis.run_diagnosis import diagnose_run
from harness.errors import UserError
from harness.verdicts import Verdict
from harness.views.log_diagnosis import diagnosis_as_dict, render_diagnosis
from harness.views.style import Style
from tests.support.cluster_logs import DMESG_OOM, ENABLE, MAPPING_OF_4, SPAWNED, STEPS, TORCHRUN_TABLE
from tests.support.tracebacks import diagnose_text

BOOM = (
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 88, in step\n'
    "    raise ValueError('boom')\n"
    "ValueError: boom\n"
)
LOST = "torch.distributed.DistBackendError: NCCL error: ncclRemoteError: Connection reset by peer\n"


def write_files(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.parametrize(
    ("name", "rank", "local", "host", "attempt"),
    [
        ("run_8f/attempt_1/3/stderr.log", None, 3, "", 1),
        ("gpu-node-17/attempt_0/0/error.json", None, 0, "gpu-node-17", 0),
        ("node-3/train.log", None, None, "node-3", 0),
        ("train.rank_12.log.gz", 12, None, "", 0),
        ("logs/worker-0.err", None, None, "worker-0", 0),
        ("rank7.out", 7, None, "", 0),
        ("slurm-812.out", None, None, "", 0),
        ("logs/launcher-2.log", None, None, "", 2),
        ("franks-notes.txt", None, None, "", 0),
        ("job.log.2", None, None, "", 0),
    ],
)
def test_what_the_name_of_a_log_says(name, rank, local, host, attempt):
    origin = parse_log_name(name)
    assert (origin.rank, origin.local_rank, origin.host, origin.attempt) == (rank, local, host, attempt)


def test_the_first_cause_by_time_its_log_and_its_line(tmp_path):
    write_files(
        tmp_path,
        {
            "a-node-1.log": "2026-03-01 10:16:30,000 [rank8]: OSError: [Errno 28] No space left on device\n",
            "b-node-2.log": "2026-03-01 10:00:00,000 fine\n2026-03-01 10:16:01,000 [rank16]: MemoryError: \n",
            "launcher.log": "W0301 10:16:40.000000 4242 api.py:908] Sending process 4301 closing signal SIGTERM\n",
            "notes.md": "MemoryError: no log\n",
        },
    )
    diagnosis = diagnose_run(tmp_path)
    assert (diagnosis.cause, diagnosis.rank, diagnosis.host) == ("LG004", 16, "b-node-2")
    assert (diagnosis.file, diagnosis.line) == ("b-node-2.log", 2)
    text = render_diagnosis(diagnosis, Style())
    assert "  b-node-2.log:2 | MemoryError:" in text
    assert "  a-node-1.log:1 | OSError: [Errno 28]" in text
    body = diagnosis_as_dict(diagnosis)
    assert (body["file"], body["line"]) == ("b-node-2.log", 2)
    assert body["lines"][0]["file"] == "b-node-2.log"


def test_the_folders_of_torchelastic(tmp_path):
    """Without a clock, the rank that the agent saw fail first comes first; the folder says which rank a log is of."""
    write_files(
        tmp_path,
        {
            "r/attempt_0/0/stderr.log": LOST,
            "r/attempt_0/1/stderr.log": BOOM.replace("boom", "came of the other"),
            "r/attempt_0/3/stderr.log": BOOM,
            "agent.log": TORCHRUN_TABLE.format(code=1, told=ENABLE).replace("rank      : 11", "rank      : 3"),
        },
    )
    diagnosis = diagnose_run(tmp_path)
    assert (diagnosis.message, diagnosis.rank) == ("ValueError: boom", 3)
    assert diagnosis.file == "r/attempt_0/3/stderr.log"
    assert diagnosis.where == "/job/train.py:88 in step"


def test_an_error_file_of_torchelastic():
    error = {"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": BOOM, "timestamp": "1772360187"}}}
    diagnosis = diagnose_text(json.dumps(error))
    assert (diagnosis.message, diagnosis.where) == ("ValueError: boom", "/job/train.py:88 in step")
    assert diagnose_text('{"message": [1, 2').state == "no failure seen"


def test_the_last_of_two_attempts(tmp_path):
    write_files(tmp_path, {"r/attempt_0/2/stderr.log": LOST + BOOM, "r/attempt_1/1/stderr.log": "MemoryError\n"})
    diagnosis = diagnose_run(tmp_path)
    assert (diagnosis.cause, diagnosis.rank) == ("LG004", 1)
    assert any("attempt 1 of the job had failed before" in note and "boom" in note for note in diagnosis.notes)


RESTARTS = {
    "torchelastic": "I0301 10:16:31.000000 4242 api.py:942] [default] Worker group FAILED. 2/3 attempts left; will restart "
    "worker group\n",
    "deepspeed": MAPPING_OF_4,
    "harness": "failed on rank 1 at step 24: boom; restarting in 5 s, 2 left\n",
}


@pytest.mark.parametrize("restart", RESTARTS)
def test_two_failures_in_one_log_with_a_restart_between(restart):
    text = MAPPING_OF_4 + "[rank1]: OSError: [Errno 28] No space left on device\n" + RESTARTS[restart] + STEPS[:50]
    text += "\n[rank2]: MemoryError: \n"
    diagnosis = diagnose_text(text)
    assert (diagnosis.cause, diagnosis.rank) == ("LG004", 2)
    assert any("attempt 1 of the job had failed before: a disk is full" in note for note in diagnosis.notes)


def test_a_failure_after_which_the_job_was_only_restarted():
    text = MAPPING_OF_4 + "[rank1]: OSError: [Errno 28] No space left on device\n" + MAPPING_OF_4
    assert diagnose_text(text).cause == "LG050"


def test_the_killed_process_is_a_rank(tmp_path):
    """The log names the pids of the ranks, `dmesg` that of the process that the kernel killed."""
    folder = write_files(
        tmp_path, {"job.log.gz": gzip.compress((MAPPING_OF_4 + SPAWNED + STEPS).encode()), "dmesg": DMESG_OOM}
    )
    diagnosis = diagnose_run(folder)
    assert (diagnosis.cause, diagnosis.rank, diagnosis.file) == ("LG002", 3, "dmesg")


def test_names_of_logs_in_a_folder(tmp_path):
    names = ["job.log.2", "job.log", "job.log.1.gz", "x/slurm-1.out", "x/train.e812", "nccl_trace_rank_0", "dmesg.txt"]
    write_files(tmp_path, dict.fromkeys([*names, "train.py", "model.safetensors", "README.md"], "text\n"))
    files = [file.relative_to(tmp_path).as_posix() for file in find_logs([str(tmp_path)]).files]
    assert sorted(files) == sorted(names)
    assert files.index("job.log.2") < files.index("job.log.1.gz") < files.index("job.log")


def test_several_names_are_logs_of_one_job(tmp_path):
    write_files(tmp_path, {"a/x.log": "fine\n", "b/y.log": f"[rank3]: {LOST}", "c/z.log": "[rank4]: MemoryError\n"})
    diagnosis = diagnose_run(tmp_path / "a", tmp_path / "b" / "y.log", tmp_path / "c")
    assert (diagnosis.cause, diagnosis.rank, diagnosis.file, diagnosis.num_lines) == ("LG004", 4, "c/z.log", 3)
    with pytest.raises(UserError, match="standard input"):
        find_logs(["-", str(tmp_path)])


def test_log_may_be_repeated_on_the_command_line(tmp_path):
    write_files(tmp_path, {"a.log": "fine\n", "b.log": "[rank4]: MemoryError\n"})
    result = CliRunner().invoke(
        build_app(["explain"]), ["explain", "--log", str(tmp_path / "a.log"), "--log", str(tmp_path / "b.log")]
    )
    assert "LG004" in result.output
    assert "b.log:1" in result.output


LAST_LINES = {
    "the training": STEPS,
    "the loading of a model": STEPS[:60] + "\nLoading checkpoint shards:  40%|####      | 6/15 [00:50<01:14]\n",
    "a save": STEPS
    + "[2026-03-01 10:00:00,000] [INFO] [logging.py:107:log_dist] [Rank 0] [Torch] Saving zero/mp_rank_00.pt\n",
}


@pytest.mark.parametrize("part", LAST_LINES)
def test_a_log_that_simply_stops(part):
    diagnosis = diagnose_text(LAST_LINES[part])
    assert (diagnosis.state, diagnosis.cause, diagnosis.rank) == ("no failure seen", "", None)
    assert f"the log ends in the middle of {part}" in diagnosis.notes[0]
    assert "SIGKILL" in diagnosis.notes[0]


@pytest.mark.parametrize("end", ["{'train_runtime': 812.5, 'train_loss': 2.1}\n", "Training completed.\n"])
def test_a_log_with_an_end_has_no_such_note(end):
    (note,) = diagnose_text(STEPS + end).notes
    assert note.startswith("if the job failed, ")


def test_a_wait_that_timed_out_names_no_rank_that_only_waited():
    line = (
        "[rank{r}]:[E301 10:16:22.1 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=51, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600023 ms\n"
    )
    diagnosis = diagnose_text(line.format(r=3))
    assert (diagnosis.cause, diagnosis.rank, diagnosis.host, diagnosis.confidence) == ("LG070", None, "", "likely")
    assert "rank 3 only waited, and the log does not show which rank is missing" in diagnosis.notes[0]
    assert diagnosis.notes[1] == "they waited in ALLREDUCE #51, 4096 elements"
    assert render_diagnosis(diagnosis, Style()).startswith("failed: ")


def test_a_traceback_that_other_lines_interrupt():
    bar = " 12%|#2        | 120/1000 [01:20<09:44,  1.50it/s]\r"
    text = "".join(f"{bar}{line}\n{{'loss': 2.1}}\n" for line in BOOM.splitlines())
    diagnosis = diagnose_text(text)
    assert (diagnosis.message, diagnosis.where) == ("ValueError: boom", "/job/train.py:88 in step")


def test_two_tracebacks_mixed_line_by_line():
    text = "".join(f"{line}\n{line}\n" for line in BOOM.splitlines()) + LOST
    diagnosis = diagnose_text(text)
    assert (diagnosis.message, diagnosis.where) == ("ValueError: boom", "/job/train.py:88 in step")


def test_numbers_of_lines_are_those_of_an_editor():
    text = "one\r\n 5%|# | 1/20\r 6%|# | 2/20\rend\n[rank4]: MemoryError\r\n"
    diagnosis = diagnose_text(text)
    assert (diagnosis.cause, diagnosis.line, diagnosis.num_lines) == ("LG004", 3, 3)


def watchdog(group: int, rank: int, enqueued: int) -> str:
    """The line of torch 2.5 and newer."""
    return (
        f"[rank{rank}]:[E301 10:16:22.2 ProcessGroupNCCL.cpp:2271] [PG ID {group} PG GUID {group} Rank {rank}] failure detected "
        f"by watchdog at work sequence id: {enqueued} PG status: last enqueued work: {enqueued}, last completed work: 3\n"
    )


def test_numbers_of_different_process_groups_are_not_compared():
    """Each group counts its own collectives: ranks 4 and 5 are of another group, and not behind."""
    text = "".join(watchdog(1, rank, 5124) for rank in range(4)) + watchdog(2, 4, 17) + watchdog(2, 5, 17)
    diagnosis = diagnose_text(text)
    assert (diagnosis.cause, diagnosis.rank) == ("LG070", None)
    behind = "".join(watchdog(1, rank, 5124 - (rank == 2)) for rank in range(4)) + watchdog(2, 4, 17)
    assert diagnose_text(behind).rank == 2


def test_clocks_with_and_without_a_date_are_not_compared(tmp_path):
    write_files(
        tmp_path,
        {
            "a.log": "2026-03-01 10:16:01,000 [rank8]: OSError: [Errno 28] No space left on device\n",
            "b.log": "10:16:30 [rank16]: MemoryError: \n",
        },
    )
    diagnosis = diagnose_run(tmp_path)
    assert (diagnosis.cause, diagnosis.confidence) == ("LG050", "likely")


def test_failures_from_before_the_job_are_left_out(tmp_path):
    """`dmesg` keeps what happened days ago."""
    old = "[Thu Feb 26 08:00:00 2026] NVRM: Xid (PCI:0000:4e:00): 79, pid=1, GPU has fallen off the bus.\n"
    job = (
        "[2026-03-01 10:00:00,000] [INFO] [Rank 0] step=1\n" + STEPS + "2026-03-01 10:16:40,000 [rank3]: MemoryError\n"
    )
    write_files(tmp_path, {"dmesg": old, "job.log": job})
    diagnosis = diagnose_run(tmp_path)
    assert (diagnosis.cause, diagnosis.rank) == ("LG004", 3)
    assert "1 failure from before the job was left out" in diagnosis.notes
    write_files(tmp_path, {"dmesg": old.replace("Thu Feb 26 08:00:00", "Sun Mar  1 10:10:00")})
    assert diagnose_run(tmp_path).cause == "LG016"


def test_the_tables_of_several_agents():
    """Each node's agent writes a table; the earliest failure is the first."""
    later = TORCHRUN_TABLE.format(code=1, told=ENABLE)
    first = (
        later.replace("10:16:29", "10:16:05")
        .replace("gpu-node-17", "gpu-node-18")
        .replace("rank      : 11", "rank      : 19")
    )
    diagnosis = diagnose_text(later + first)
    assert (diagnosis.cause, diagnosis.rank, diagnosis.host) == ("LG074", 19, "gpu-node-18")


def test_a_log_of_json_lines_that_begins_like_an_error_file_is_read_to_its_end():
    text = '{"message": "step 1", "level": "info"}\n' * 50_000 + "RuntimeError: CUDA error: out of memory\n"
    assert len(text) > 1 << 20
    assert diagnose_text(text).cause == "LG001"


def test_events_of_a_file_that_is_no_text_do_not_hide_those_of_a_log(tmp_path):
    oom = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    (tmp_path / "a.log").write_bytes(b"x" * 1024 + b"\n" + oom.encode() + b"\0x" * 50_000)
    (tmp_path / "b.log").write_text(oom)
    diagnosis = diagnose_run(tmp_path)
    assert (diagnosis.cause, diagnosis.rank, diagnosis.file) == ("LG001", 0, "b.log")


def test_an_error_that_returns_after_it_was_wrapped_is_an_event():
    wrapped = (
        "[rank0]: Traceback (most recent call last):\n[rank0]: CustomError: lost a shard\n"
        "[rank0]: During handling of the above exception, another exception occurred:\n"
        "[rank0]: Traceback (most recent call last):\n"
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    steps = "".join(f"{{'loss': 2.{number}}}\n" for number in range(30))
    diagnosis = diagnose_text(
        f"{wrapped}{steps}[rank0]: Traceback (most recent call last):\n[rank0]: CustomError: lost a shard\n"
    )
    assert (diagnosis.state, diagnosis.cause) == ("failed", "")
    assert "lost a shard" in diagnosis.message


@pytest.mark.parametrize("rank", ["\u00b2", "x", "-1"])
def test_a_rank_in_the_table_of_torchrun_that_is_no_number(rank):
    table = TORCHRUN_TABLE.replace("rank      : 1", f"rank      : {rank}").replace(
        "rank      : 0", f"rank      : {rank}"
    )
    assert rank in table
    assert diagnose_text(table).state == "failed"


def test_thousands_of_attempts():
    attempt = "RuntimeError: CUDA error: out of memory\n[INFO] restarting in 5 s, {} left\n"
    text = "".join(attempt.format(number) for number in range(5000, 0, -1))
    start = time.process_time()
    diagnosis = diagnose_text(text)
    assert time.process_time() - start < 10
    assert diagnosis.cause == "LG001"
    assert len(diagnosis.notes) < 12


def test_a_fault_of_the_diagnosis_does_not_hide_the_verdict(tmp_path, monkeypatch):
    def fail(*_names: object) -> None:
        raise TypeError("a fault of ours")

    monkeypatch.setattr(run_diagnosis, "diagnose_run", fail)
    assert run_diagnosis.diagnose_failure(tmp_path, Verdict("failed", 1)) is None
