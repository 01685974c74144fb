# SPDX-License-Identifier: Apache-2.0
"""Numbers of a healthy log that look wrong, said as observations, and sound ones that are not. Needs nothing."""

from __future__ import annotations

import io

import pytest

from harness.diagnosis import diagnose
from tests.support.tracebacks import diagnose_text


def trainer(losses, norm=lambda i: 1.5 + i / 100, lr=lambda i: 1e-5 * (1 - i / 1000)):
    return [
        f"{{'loss': {loss}, 'grad_norm': {norm(i)}, 'learning_rate': {lr(i)}, 'epoch': {i / 10}}}"
        for i, loss in enumerate(losses)
    ]


def observations(lines):
    diagnosis = diagnose([io.BytesIO(("\n".join(lines) + "\n").encode())])
    assert diagnosis.state == "no failure seen"
    return [note for note in diagnosis.notes if note.startswith("observation")]


FALLING = [2.5 - i / 100 for i in range(60)]
RESUME = "Resuming training from out/checkpoint-30"
OVERLAP = ["[INFO] json = {", '    "zero_optimization": {', '        "overlap_comm": true', "    }", "}"]


def test_a_sound_log_has_none():
    assert observations(trainer(FALLING)) == []
    assert observations([*trainer(FALLING[:30]), RESUME, *trainer(FALLING[30:])]) == []
    assert observations([f"{i}/60 [00:10<00:10, 1.{i % 7}s/it] loss: 2.{i}" for i in range(60)]) == []
    assert observations([f"step={i}, loss: 2.{i} MemAllocated={30 + i % 3}.5GB" for i in range(10, 60)]) == []


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (trainer([*FALLING[:9], *[0.0] * 9]), "the loss is exactly 0 in 9 lines in a row, from line 10"),
        (trainer(FALLING, norm=lambda i: 0.0 if i > 9 else 1.5), "the gradient norm is exactly 0 in 50 lines"),
        ([*OVERLAP, *trainer([*FALLING[:9], *[0.0] * 9])], "compare with `overlap_comm: false`"),
        (trainer(FALLING, norm=lambda _: 1.0), "the gradient norm is 1 in all 60 lines"),
        ([*trainer(FALLING[:30]), RESUME, *trainer([4.5] * 9)], "the loss is 4.5 after the checkpoint was loaded"),
        (trainer(FALLING, norm=lambda i: 1.4142 if i > 9 else i), "the gradient norm is 1.4142 in the last 50 lines"),
        (trainer([9.1, *[0.0] * 6], norm=lambda _: 1.7320508), "the gradient norm is 1.73205 while the loss is 0"),
        (trainer(FALLING, lr=lambda _: 2e-5), "the learning rate is 2e-05 in all 60 lines"),
        (trainer(FALLING[:9], lr=lambda _: 0.0), "the learning rate is 0 in all 9 lines"),
        ([f"loss: 2.1, CurrSamplesPerSec={80 - i}.5" for i in range(60)], "the throughput falls to"),
        ([f"{i}/60 [00:10<00:10, {1 + i // 20}.0s/it] loss: 2.1" for i in range(60)], "the throughput falls to"),
        ([f"loss: 2.1 MemAllocated={30 + i / 10}GB" for i in range(40)], "memory grows with nearly every line"),
    ],
)
def test_what_looks_wrong_is_an_observation(lines, text):
    said = observations(lines)
    assert any(text in note for note in said), said


def test_another_rank_does_not_mix_with_the_first():
    lines = [f"[rank{i % 2}]: loss: {2.0 if i % 2 else 0.0}" for i in range(40)]
    assert any("exactly 0 in 20 lines" in note for note in observations(lines))


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': 2.08, 'grad_norm': nan, 'learning_rate': 1e-05}",
        " iteration 5426/ 250000 | learning rate: 2.9E-04 | loss scale: 1.0 | grad norm: nan | samples per second: 1.8 |",
        "step 7 loss=1.5 grad_norm=NaN",
        "{'loss': 1.1, 'grad_norm': 'nan', 'epoch': 0.1}",
    ],
)
def test_a_norm_that_is_nan_is_reported_and_never_certain(line):
    diagnosis = diagnose_text(f"step 1\n{line}\n")
    assert (diagnosis.cause, diagnosis.confidence) == ("LG229", "likely")
    assert diagnose_text(f"step 1\n{line}\n".replace("nan", "0.4").replace("NaN", "0.4")).state == "no failure seen"


@pytest.mark.parametrize(("count", "others", "is_seen"), [(3, 0, True), (2, 0, False), (3, 1, False), (5, 1, True)])
def test_a_short_quote_of_zeros_alone_is_observed(count, others, is_seen):
    rows = ["{'loss': 2.5}"] * others + ["{'loss': 0.0}"] * count
    notes = diagnose_text("\n".join(rows) + "\n").notes
    assert any("exactly 0" in note for note in notes) is is_seen
