# SPDX-License-Identifier: Apache-2.0
"""Texts of an answer beside its cause: releases, keys, quoted lines, next steps. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.catalogue import load_releases
from harness.diagnosis.explanation import describe_releases
from tests.support.cluster_logs import ENABLE, TORCHRUN_TABLE
from tests.support.tracebacks import diagnose_text, traceback_text

PAIRS = (
    "ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:\n"
    "- ds gradient_accumulation_steps=4 vs hf gradient_accumulation_steps=8\n"
    "- ds train_micro_batch_size_per_gpu=1 vs hf per_device_train_batch_size=2\n"
    "The easiest method is to set these DeepSpeed config values to 'auto'.\n"
)
FRAME = ("/data/train.py", "main", "engine.backward(loss)")
SHAPES = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x512 and 1024x10)"
LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:13206"


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        (["0.14.5", "0.15.2"], "DeepSpeed up to 0.15.2 says this"),
        (["0.16.5", "0.19.8"], "DeepSpeed from 0.16.5 on says this"),
        (["0.17.2", "0.17.5"], "DeepSpeed 0.17.2 to 0.17.5 say this"),
        (["0.19.2", "0.19.2"], "only DeepSpeed 0.19.2 says this"),
        (["0.14.5", "0.19.8"], ""),
    ],
)
def test_releases_of_which_one_end_was_not_read(ends: list[str], text: str) -> None:
    pattern = next(pattern for pattern, found in load_releases().items() if found == ends)
    assert describe_releases("", pattern) == text


def test_the_title_of_a_mismatch_lists_the_keys() -> None:
    title = diagnose_text(PAIRS).title
    assert title.endswith(": `gradient_accumulation_steps` and `train_micro_batch_size_per_gpu`")
    one = diagnose_text("".join(line for line in PAIRS.splitlines(keepends=True) if "micro" not in line)).title
    assert one.endswith(": `gradient_accumulation_steps`")


def test_lines_of_torchrun_without_process_ids_and_rules() -> None:
    diagnosis = diagnose_text(TORCHRUN_TABLE.format(code=1, told=ENABLE))
    assert diagnosis.cause == "LG074"
    assert diagnosis.message.startswith(("torch/distributed/", "torch.distributed."))
    texts = [text for _, text in diagnosis.lines]
    assert not [text for text in texts if text.startswith(("4242 ", "==", "--", "error_file"))]


@pytest.mark.parametrize(
    "text",
    ["loaded\n", "step 3 loss: 0.5\n", "{'train_runtime': 12.5, 'train_loss': 1.0}\n", "[launch.py:1:main] process 3 spawned with command: x\n"],
)  # fmt: skip
def test_a_log_without_a_failure_has_one_next_step(text: str) -> None:
    diagnosis = diagnose_text(text)
    assert diagnosis.state == "no failure seen"
    assert [("dmesg" in note) or ("py-spy" in note) for note in diagnosis.notes] == [True]


def test_the_failed_rank_is_none_of_those_that_lost_connections() -> None:
    root = traceback_text([FRAME], SHAPES, 1)
    echoes = "".join(traceback_text([FRAME], LOST, rank) for rank in (0, 1, 2))
    assert "the lost connections and timeouts of 2 other ranks followed from it" in diagnose_text(root + echoes).notes
    assert not diagnose_text(root + traceback_text([FRAME], LOST, 1)).notes
