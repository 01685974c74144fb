# SPDX-License-Identifier: Apache-2.0
"""Logs that mislead: jobs that end well after errors, errors that come back, words of others. Needs nothing; seconds."""

from __future__ import annotations

import gzip
import io
import tarfile
import time

import pytest

from harness.diagnosis import diagnose
from harness.diagnosis.reader.log_reader import MAX_LINE_BYTES
from harness.diagnosis.rules.line_matcher import all_rules
from harness.views.redaction import Redactor
from tests.support.tracebacks import diagnose_text

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB\n"
)
TRACEBACK = 'Traceback (most recent call last):\n  File "/data/{}", line 3, in {}\n    {}\n'
IN_STEP = TRACEBACK.format("train.py", "step", "loss.backward()")
TRAINED = "{'train_runtime': 512.3, 'train_samples_per_second': 12.1, 'train_loss': 1.91, 'epoch': 1.0}\n"
PORT_TAKEN = "OSError: [Errno 98] Address already in use\n"


def steps(count: int) -> str:
    return "".join(f"{{'loss': {2.5 - i * 0.01:.4f}, 'learning_rate': 1e-05}}\n" for i in range(count))


@pytest.mark.parametrize(
    "text",
    [
        IN_STEP + OOM + "Decreasing batch size to: 4\n" + steps(2),
        IN_STEP + OOM + "Currently training with a batch size of: 4\n" + steps(2),
        "sample 12: Killed\nKilled\n" + steps(2) + TRAINED,
        "Answer: Segmentation fault (core dumped)\n" + steps(2) + TRAINED,
        "n1:10:20 [0] NCCL WARN socketStartConnect: Connect to 10.0.0.2<4242> failed : Connection refused\n"
        + steps(2)
        + TRAINED,
        steps(2) + TRAINED + "[rank1]:[W301 10:00:00.1 TCPStore.cpp:106] [c10d] sendBytes failed: Broken pipe\n",
        "tests/test_mem.py::test_oom PASSED\nRuntimeError: CUDA out of memory. Tried\n===== 3 passed in 2.1s =====\n",
        steps(2)
        + "Exception ignored in atexit callback: <f>\n"
        + IN_STEP
        + "BrokenPipeError: [Errno 32] Broken pipe\n",
        "RuntimeError: Distributed package doesn't have NCCL built in\nfalling back to gloo\n" + steps(2) + TRAINED,
        "*** 2. Merging slices .....\n    No AutoEP layers found, skipping\n*** Done!\n",
    ],
    ids=range(10),
)
def test_a_job_that_ended_well_has_survived_its_errors(text):
    assert diagnose_text(text).state in ("no failure seen", "completed")


@pytest.mark.parametrize(
    "text",
    [
        IN_STEP + OOM + steps(50) + IN_STEP + OOM,
        IN_STEP + OOM + "Decreasing batch size to: 4\n" + steps(50) + IN_STEP + OOM,
        IN_STEP + OOM + "Decreasing batch size to: 4\n" + IN_STEP + OOM,
        steps(9) + TRAINED + IN_STEP + OOM,
        TRACEBACK.format("train.py", "<module>", "main()") + OOM + TRAINED,
        IN_STEP + OOM + TRAINED + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n",
    ],
    ids=range(6),
)
def test_an_error_that_comes_back_or_ends_the_job_is_named(text):
    assert (diagnose_text(text).state, diagnose_text(text).cause) == ("failed", "LG001")


def test_the_line_that_is_named_is_that_of_the_last_failure():
    text = IN_STEP + OOM + steps(50) + IN_STEP + OOM
    assert diagnose_text(text).line == text.count("\n")


@pytest.mark.parametrize(
    "text",
    [
        IN_STEP + OOM + "100%|##########| 10/10 [00:10<00:00, 1.0it/s]\nDone.\n",
        IN_STEP + OOM + steps(2) + TRACEBACK.format("own.py", "f", "assert x") + "AssertionError: my check\n",
        TRACEBACK.format("own.py", "check", "raise AssertionError(text)")
        + "AssertionError: no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 3\n",
        TRACEBACK.format("serve.py", "serve", "sock.bind(address)") + PORT_TAKEN,
    ],
    ids=range(4),
)
def test_what_has_another_reading_is_not_certain(text):
    assert diagnose_text(text).confidence != "certain"


@pytest.mark.parametrize(
    ("frame", "message", "cause"),
    [
        ('zero/partitioned_param_coordinator.py", line 7, in record_parameters\n    q.popleft()',
         "IndexError: pop from an empty deque", "LG101"),
        ('zero/stage3.py", line 525, in defragment\n    assert len(set(t.dtype for t in tensors)) == 1',
         "AssertionError", "LG301"),
        ('zero/stage_1_and_2.py", line 9, in independent_gradient_partition_epilogue\n    n = grad.numel()',
         "AttributeError: 'NoneType' object has no attribute 'numel'", "LG105"),
        ('zenflow/zenflow_stage_1_and_2.py", line 300, in step\n    g.narrow(0, 0, 4)',
         "RuntimeError: narrow() cannot be applied to a 0-dim tensor.", "LG113"),
    ],
)  # fmt: skip
def test_a_rank_that_says_the_same_without_frames_has_no_other_error(frame, message, cause):
    traceback = TRACEBACK.format("train.py", "main", "step()") + f'  File "/x/deepspeed/runtime/{frame}\n{message}\n'
    named = "".join(f"[rank0]: {line}\n" for line in traceback.splitlines())
    for first, is_contested in ((message, False), ("ValueError: the tokenizer has no end", True)):
        diagnosis = diagnose_text(f"[rank2]: {first}\n{named}")
        notes = [note for note in diagnosis.notes if "may have come first" in note]
        assert (diagnosis.cause, bool(notes)) == (cause, is_contested)


def test_the_port_of_the_rendezvous_is_still_the_cause():
    frame = TRACEBACK.format("site-packages/torch/distributed/rendezvous.py", "_create_c10d_store", "TCPStore(host)")
    diagnosis = diagnose_text(frame + PORT_TAKEN)
    assert (diagnosis.cause, diagnosis.is_named) == ("LG066", True)


def test_a_host_that_is_known_is_a_prefix_of_all_its_lines():
    """A name without a digit is a host only where a traceback begins."""
    lines = (*IN_STEP.splitlines(), "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding")
    diagnosis = diagnose_text("".join(f"alpha: {line}\n" for line in lines))
    assert (diagnosis.cause, diagnosis.host) == ("LG033", "alpha")


def test_the_agent_names_a_rank_that_was_killed():
    line = (
        "E0301 10:00:00.1 12 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 1"
    )
    assert (diagnose_text(line).cause, diagnose_text(line).rank) == ("LG003", 1)


@pytest.mark.parametrize(
    "data",
    [
        bytes(300_000) + (IN_STEP + OOM).encode() * 2,
        (IN_STEP + OOM).encode() + bytes(300_000),
        (steps(9) + IN_STEP + OOM).encode("utf-16-le"),
        (steps(9) + IN_STEP + OOM).encode("utf-16-be"),
        "".join(f"\x1b[3{i % 8}m{c}" if c != "\n" else c for i, c in enumerate(IN_STEP + OOM)).encode(),
    ],
    ids=["hole before", "hole after", "UTF-16", "UTF-16 BE", "colours"],
)
def test_holes_encodings_and_colours(data):
    assert (diagnose_text(data).state, diagnose_text(data).cause) == ("failed", "LG001")


def test_nulls_alone_are_no_text_and_have_an_end():
    assert diagnose_text(bytes(100_000)).state == "not text"
    assert diagnose_text(gzip.compress(bytes(100_000))).state == "not text"


def test_an_archive_that_is_cut_in_its_first_log_is_no_empty_log():
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        member = tarfile.TarInfo("job.log")
        member.size = 2000
        archive.addfile(member, io.BytesIO(b"x" * 2000))
    diagnosis = diagnose_text(target.getvalue()[:700])
    assert (diagnosis.state, "damaged or cut" in diagnosis.title) == ("not text", True)


def test_a_log_that_is_cut_in_a_traceback_is_that_of_a_failed_job():
    diagnosis = diagnose_text(steps(9) + IN_STEP)
    assert (diagnosis.state, diagnosis.cause) == ("failed", "")
    assert diagnosis.where == "/data/train.py:3 in step"
    assert diagnose_text(IN_STEP + "ValueError: no\n" + steps(50)).state == "no failure seen"


def test_many_long_lines_are_bounded_and_the_end_is_found():
    line = b"sample: error: failed to load RuntimeError: size mismatch for x (((((0.0.0. " * 45 + b"\n"
    diagnosis = diagnose([io.BytesIO(line * 2000 + b"[rank3]: " + OOM.encode())])
    assert (diagnosis.cause, diagnosis.rank) == ("LG001", 3)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("s3 wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtn"),
        ("https://hooks.slack.com/services/T000AAA/B000BBB/XXXXhidden", "XXXXhidden"),
        ("https://x.blob.core.windows.net/c?sv=2020&sig=AbC%2Fdef123%3D", "AbC"),
        ("AccountKey=abcdefghijklmnop1234567890==;", "abcdefgh"),
        ("https://b.s3.amazonaws.com/k?X-Amz-Signature=0a1b2c3d4e5f", "0a1b2c"),
        ("-----BEGIN PRIVATE KEY----- MIIEvQIBADANBgkqh", "MIIEvQ"),
        ("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7", "AAAAB3"),
        ("sk_live_abcdefghijklmnop1234", "abcdefgh"),
        ("npm_abcdefghijklmnopqrstuvwxyz0123456789", "abcdefgh"),
        ("SK0123456789abcdef0123456789abcdef", "01234567"),
        ("dapi0123456789abcdef0123456789abcdef", "01234567"),
        ("r8_abcdefghijklmnopqrstuvwxyz0123456789A", "abcdefgh"),
        ("https://discord.com/api/webhooks/1234/abcDEFhidden", "abcDEF"),
        ("123456789:AAabcdefghijklmnopqrstuvwxyz0123456", "AAabcd"),
        ("SG.abcdefghijklmnopqrstuv.wxyz0123456789", "abcdefgh"),
        ("mysql -phunter2 ; sshpass -p hunter2 ssh x", "hunter2"),
        ("s3://bobs-bucket/models/x", "bobs-bucket"),
        ("git@github.com:corp/plans.git", "plans"),
    ],
)
def test_secrets_of_services_are_redacted(text, secret):
    assert secret not in Redactor().redact(f"ValueError: bad {text} end")


@pytest.mark.parametrize(
    "text", ["AutoTP: no signature: (Tensor, int)", "SeqNum=51, OpType=ALLREDUCE", "AAAA is no key"]
)
def test_words_of_errors_stay(text):
    assert Redactor().redact(text) == text


def test_an_error_of_a_log_that_is_no_text_does_not_hide_that_of_the_next_one():
    text = (IN_STEP + OOM).encode()
    diagnosis = diagnose([io.BytesIO(text * 3 + b"\0a" * 2500), io.BytesIO(text)])
    assert (diagnosis.cause, diagnosis.line) == ("LG001", 4)


def _search_seconds(pattern, line):
    """CPU time of one search; a collection of garbage may be part of it."""
    start = time.process_time()
    pattern.search(line)
    return time.process_time() - start


@pytest.mark.parametrize("fill", ["a ", "0.", "'a', ", "rank 1 "])
def test_no_rule_takes_long_on_a_long_line(fill):
    slow = []
    for rule in all_rules():
        words = (rule.literals or ("",))[0] + fill * 4
        line = (words * (MAX_LINE_BYTES // len(words) + 1))[:MAX_LINE_BYTES]
        slow += [rule.pattern.pattern] if all(_search_seconds(rule.pattern, line) > 0.25 for _ in range(3)) else []
    assert not slow


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise ValueError(text)", "ValueError: no_sync context manager reentry is unsupported"),
        ("assert ok, text", "AssertionError: no_sync context manager is incompatible with gradient partitioning logic"),
        ("x = table[key]", "RuntimeError: tracing error at step 3: module has been executed twice"),
        ("assert not queue", "AssertionError: {'ds_id': 3, 'status': 'INFLIGHT'}"),
    ],
)
def test_own_code_whose_text_resembles_a_message_of_deepspeed(code, error):
    own = diagnose_text(steps(3) + IN_STEP + '  File "/data/own.py", line 3, in fetch\n' + f"    {code}\n{error}\n")
    assert (own.state, own.cause) == ("failed", "")
    frame = '  File "/opt/site-packages/deepspeed/runtime/engine.py", line 3, in step\n    self.fetch()\n'
    assert diagnose_text(steps(3) + IN_STEP + frame + error + "\n").cause in ("LG071", "LG101", "LG115")
