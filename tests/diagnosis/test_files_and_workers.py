# SPDX-License-Identifier: Apache-2.0
"""Files that another rank removed, names that are too long, objects that workers cannot get, and what frames say of the
phase. Needs nothing; a second.
"""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text

BUILT = (
    "[2026-11-28 10:00:00,000] [INFO] [logging.py:107:log_dist] [Rank 0] DeepSpeed info: version=0.18.9, git-hash=x\n"
)


def traceback(error: str, *frames: tuple[str, str, str]) -> str:
    lines = ["Traceback (most recent call last):"]
    for file, function, code in frames:
        lines += [f'  File "{file}", line 7, in {function}', f"    {code}"]
    return "\n".join(f"[rank1]: {line}" for line in [*lines, error]) + "\n"


START = ("/job/train.py", "<module>", "main()")
GONE = "FileNotFoundError: [Errno 2] No such file or directory: '/out/step-40'"


@pytest.mark.parametrize(
    "frame",
    [
        ("/usr/lib/python3.11/shutil.py", "_rmtree_safe_fd", "onerror(os.lstat, fullname, sys.exc_info())"),
        ("/job/clean.py", "drop_old", "os.rename(part, whole)"),
        ("/job/clean.py", "drop_old", "shutil.move(part, whole)"),
        ("/usr/lib/python3.11/pathlib.py", "unlink", "os.unlink(self)"),
    ],
)
def test_a_file_that_is_gone_when_it_is_removed_was_removed_by_another_rank(frame):
    diagnosis = diagnose_text(traceback(GONE, START, frame))
    assert (diagnosis.cause, diagnosis.confidence) == ("LG236", "likely")
    assert "another rank" in diagnosis.title
    assert decide_action(diagnosis).action == "retry"


def test_a_file_that_is_gone_when_it_is_read_is_missing():
    assert diagnose_text(traceback(GONE, START, ("/job/data.py", "read", "open(path)"))).cause == "LG054"


@pytest.mark.parametrize(
    "error",
    [
        "AttributeError: Can't get local object 'Tagger.fit.<locals>.collate'",
        "AttributeError: Can't pickle local object 'Tagger.fit.<locals>.collate'",
        "TypeError: cannot pickle 'Tagger.fit.<locals>.collate' object",
        "TypeError: can't pickle Tagger.fit.<locals>.collate objects",
    ],
)
def test_workers_that_cannot_get_an_object_name_it(error):
    diagnosis = diagnose_text(traceback(error, START, ("/lib/multiprocessing/reduction.py", "dump", "dump(obj)")))
    assert diagnosis.cause == "LG216"
    assert "Tagger.fit.<locals>.collate" in diagnosis.title
    assert decide_action(diagnosis).changes["dataloader_num_workers"] == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"deepspeed_aio:   open for write  failed on /nvme/rank3/{'_'.join(map(str, range(99)))}.swp", "too long"),
        ("deepspeed_aio: open for read failed on /nvme/rank3/5.swp error = 36", "longer than"),
        ("deepspeed_aio: open for read failed on /nvme/rank3/5.swp error = 5", "Input/output error"),
        ("deepspeed_aio: fstat for read failed on /nvme/rank3/5.swp error = 116", "Stale file handle"),
        ("deepspeed_aio: open for read failed on /nvme/rank3/5.swp error = 9999", "read or write a swap file"),
    ],
)
def test_a_refused_swap_file_says_why(line, words):
    title = diagnose_text(line + "\n").title
    assert words in title or ("too long" in words and "longer than" in title)
    assert "{" not in title


def test_a_whole_traceback_without_the_engine_is_from_after_it():
    own = ("/job/loop.py", "roll_out", "policy.act(batch)")
    assert diagnose_text(BUILT + traceback("ValueError: no such action", START, own)).phase is None
    cut = diagnose_text(BUILT + traceback("ValueError: no such action", own))
    assert cut.phase is not None
    assert cut.phase.name == "engine"


WRITER = ("/x/deepspeed/io/fast_file_writer.py", "_unaligned_drain", "os.write(self._aio_fd, tail)")
PLAIN = ("/x/deepspeed/runtime/checkpoint_engine/torch_checkpoint_engine.py", "save", "torch.save(state_dict, path)")


@pytest.mark.parametrize(("frame", "words"), [(WRITER, "0.19.1"), (PLAIN, "free space")])
def test_a_full_disk_knows_the_writer_of_the_checkpoint(frame, words):
    diagnosis = diagnose_text(BUILT + traceback("OSError: [Errno 28] No space left on device", START, frame))
    assert (diagnosis.cause, diagnosis.phase.name) == ("LG050", "saving")
    assert words in diagnosis.change


MESH = "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error"


def test_a_network_that_never_worked_needs_a_name_and_one_that_did_another_try():
    group = ("/x/torch/distributed/distributed_c10d.py", "new_group", "ProcessGroupGloo(store)")
    never = decide_action(diagnose_text(traceback(MESH, START, group)))
    assert (never.action, never.may_pass) == ("change and retry", True)
    steps = "{'loss': 1.2, 'grad_norm': 0.4, 'epoch': 0.1}\n 10%|█         | 10/100 [00:10<01:30, 1.00it/s]\n"
    text = "***** Running training *****\n" + steps + traceback(MESH, START, group)
    later = decide_action(diagnose_text(text))
    assert later.action == "retry"
