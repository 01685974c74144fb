# SPDX-License-Identifier: Apache-2.0
"""Messages of the programs around DeepSpeed lead to a cause, and to a change that says what to do. Needs nothing; seconds.

`program_messages.tsv` has, for each family of messages, the cause, words of the answer (a pattern), and the lines as the
program prints them (" | " between lines). They were written after the sources of the releases named in the catalogue.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path

import pytest

from harness.diagnosis import diagnose
from harness.diagnosis.catalogue import CATALOGUE, CAUSE_FILES, MESSAGE_FILES, all_rows, causes_by_id, parse_rows
from harness.diagnosis.explanation import describe_cause
from harness.diagnosis.rules.line_matcher import ASSERTED, MULTIPLES, PACKAGE, REASON

ROWS = [line.split("\t") for line in (Path(__file__).parent / "program_messages.tsv").read_text().splitlines()]
TRACEBACK = 'Traceback (most recent call last):\n  File "/job/train.py", line 8, in <module>\n    main()\n'
MAX_ROWS = 2180
NO_FAILURES = [
    "Token indices sequence length is longer than the specified maximum sequence length for this model (9000 > 8192)",
    "Some weights of LlamaForSequenceClassification were not initialized from the model checkpoint at /m and are newly "
    "initialized: ['score.weight']",
    "Removed shared tensor {'lm_head.weight'} while saving. This should be OK, but check by verifying that you don't "
    "receive any warning while reloading",
    "stage3_gather_16bit_weights_on_model_save=false. Saving the full checkpoint instead, use zero_to_fp32.py to recover",
    "UserWarning: None of the inputs have requires_grad=True. Gradients will be None",
    "[W socket.cpp:426] Waiting in store based barrier to initialize process group for rank: 0, key: k (world_size=2)",
    "foo 1.0 requires transformers>=4.50, but you have transformers 4.40.0 which is incompatible.",
]


def diagnose_lines(lines: str, prefix: str = "", frames: str = ""):
    text = TRACEBACK.replace("    main()\n", f"    main()\n{frames}")
    body = text if re.match(r"[\w.]+(?:Error|Exception|Type)\b", lines) else ""
    text = "".join(f"{prefix}{line}\n" for line in [*body.splitlines(), *lines.split(" | ")])
    return diagnose([io.BytesIO(text.encode())])


@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "worker-3: [rank1]: "], ids=["bare", "torch", "pdsh"])
def test_every_message_has_its_cause_and_change(prefix):
    failures = []
    for id_, words, lines, *frames in ROWS:
        frame = f'  File "/x/site-packages/{frames[0]}", line 3, in f\n    g()\n' if frames else ""
        diagnosis = diagnose_lines(lines, prefix, frame)
        answer = f"{diagnosis.title} {diagnosis.change}"
        if diagnosis.cause != id_ or not re.search(words, answer) or re.search(r"[{]\w+[}]", answer):
            failures.append((id_, diagnosis.cause, diagnosis.confidence, lines[:70], answer[:200]))
    assert len(ROWS) > 110
    assert failures == []


@pytest.mark.parametrize("line", NO_FAILURES)
def test_a_warning_is_no_failure(line):
    diagnosis = diagnose([io.BytesIO(f"{line}\nstep 1\n".encode())])
    assert diagnosis.state == "no failure seen", diagnosis


REPORT = """\
LlamaForCausalLM LOAD REPORT from: /m/llama
Key                                        | Status  | Details
-------------------------------------------+---------+--------
{rows}
"""


@pytest.mark.parametrize(
    ("rows", "is_failure"),
    [
        ("model.layers.{0...31}.mlp.up_proj.weight | MISSING |", True),
        ("vision.embed | UNEXPECTED |\nmodel.layers.{0, 1, 2}.self_attn.q_proj.weight | MISSING |", True),
        ("score.weight | MISSING |", False),
        ("model.layers.{0...31}.self_attn.rotary_emb.inv_freq | UNEXPECTED |", False),
    ],
)
@pytest.mark.parametrize("end", ["", "[INFO] [launch.py:367:main] Process 812 exits successfully.\n"])
def test_layers_that_were_not_loaded_are_a_failure_that_the_job_survives(rows, is_failure, end):
    steps = "".join(f"{{'loss': 11.{i}, 'epoch': 0.1}}\n" for i in range(40))
    diagnosis = diagnose([io.BytesIO((REPORT.format(rows=rows) + steps + end).encode())])
    assert (diagnosis.cause == "LG204") is is_failure, diagnosis
    assert (diagnosis.state == "failed") is is_failure
    assert diagnosis.confidence != "certain" or not is_failure


def test_a_loss_that_recovers_is_no_failure():
    steps = "".join(f"step={i} loss=2.{i}\n" for i in range(9))
    assert diagnose([io.BytesIO(f"{steps}step=9 loss=nan\n".encode())]).cause == "LG229"
    assert diagnose([io.BytesIO(f"step=1 loss=nan\n{steps}".encode())]).state == "no failure seen"


def test_a_connection_that_is_tried_again_does_not_come_before_a_failure():
    warning = (
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [node0]:29500 (errno: 111 - refused)."
    )
    text = f"{warning}\n{TRACEBACK}torch.OutOfMemoryError: CUDA out of memory.\n"
    assert diagnose([io.BytesIO(text.encode())]).cause == "LG001"


def test_a_later_crash_comes_before_weights_that_were_not_loaded():
    text = REPORT.format(rows="model.layers.{0...31}.mlp.up_proj.weight | MISSING |") + TRACEBACK
    diagnosis = diagnose([io.BytesIO(f"{text}torch.OutOfMemoryError: CUDA out of memory.\n".encode())])
    assert diagnosis.cause == "LG001"


def test_a_rank_that_waited_is_not_said_to_have_failed():
    line = (
        "[rank5]:[E ProcessGroupNCCL.cpp:616] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, "
        "OpType=_ALLGATHER_BASE, NumelIn=2, NumelOut=2048, Timeout(ms)=600000) ran for 600001 milliseconds"
    )
    diagnosis = diagnose([io.BytesIO(line.encode())])
    assert diagnosis.cause == "LG070"
    assert diagnosis.confidence != "certain"
    assert "2048 elements" in diagnosis.title
    assert "only waited" in diagnosis.title
    assert diagnosis.rank is None


def test_rows_have_a_cause_a_change_and_known_fields():
    for row in all_rows():
        groups = re.compile(row.signature.pattern).groupindex
        assert row.signature.change or all(describe_cause(row.cause)), row
        for text in (row.signature.title, row.signature.change):
            assert not text.endswith("."), text
            assert set(re.findall(r"\{(\w+)\}", text)) <= {
                *groups,
                ASSERTED,
                *([REASON] if "errno" in groups else []),
                *([PACKAGE] if "module" in groups else []),
                *([MULTIPLES] if "batch" in groups else []),
            }, row
        assert not re.search(row.signature.pattern, ""), row


def test_kinds_and_patterns_take_the_place_of_rows():
    """A message that another row, a kind or a signature answers, or that a neighbour's pattern can take, needs none."""
    assert len(all_rows()) <= MAX_ROWS


def test_new_causes_are_used():
    used = Counter(row.cause for row in all_rows())
    assert [id_ for id_, cause in causes_by_id().items() if not cause.signatures and not used[id_]] == []


def test_every_file_of_the_catalogue_is_read():
    for folder, names in (("messages", MESSAGE_FILES), ("causes", CAUSE_FILES)):
        assert sorted(file.stem for file in (CATALOGUE / folder).iterdir()) == sorted(names)


@pytest.mark.parametrize(
    "text",
    [
        "    a pattern without a cause",
        "LG001\n        title: of no message",
        "LG001\n     a pattern at the wrong indentation",
        "LG001 Not-A-Name",
    ],
)
def test_a_line_of_another_form_is_refused(text: str):
    with pytest.raises(ValueError, match="neither a heading, a field nor a message"):
        list(parse_rows(text))
