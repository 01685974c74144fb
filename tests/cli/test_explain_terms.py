# SPDX-License-Identifier: Apache-2.0
"""`harness explain TERM`: the field's words, and FSDP's strategies beside their ZeRO settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app
from harness.cli.command_list import COMMANDS
from harness.cli.demo import DemoName
from harness.entry_file import read_entries
from harness.views import key_pages
from harness.views.key_pages import render_term

TERMS = sorted(read_entries(Path(key_pages.__file__).with_name("assets") / "terms.txt"))


@pytest.mark.parametrize("term", TERMS)
def test_a_term_names_a_command_that_exists(term: str) -> None:
    page = render_term(term)
    assert page is not None
    words = page.rpartition("Shown by: ")[2].split()
    assert words[1] in COMMANDS
    assert words[1] != "demo" or words[2] in {each.value for each in DemoName}


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("FULL_SHARD", "`zero.stage: 3`"),
        ("SHARD_GRAD_OP", "`zero.stage: 2`"),
        ("NO_SHARD", "`zero.stage: 0`"),
        ("HYBRID_SHARD", "zero_hpz_partition_size"),
        ("FSDP2", "no FSDP back end"),
        ("MFU", "without\nrecomputation"),
        ("All-Gather", "(N - 1) / N"),
        ("bubble", "(p - 1) / (m + p - 1)"),
        ("ZeRO", "stage 2 the gradients as well"),
        ("pipeline parallelism", "activations and their gradients alone"),
        ("mixed precision", "16 bytes a parameter"),
        ("loss scaling", "bf16 has the range of fp32"),
        ("gradient checkpointing", "about a third more work"),
        ("context parallelism", "planned by `harness degrees --context N`, and not launched"),
    ],
)
def test_words_of_the_field_are_explained(word: str, text: str) -> None:
    result = CliRunner().invoke(build_app(["explain", word]), ["explain", word], catch_exceptions=False)
    assert result.exit_code == 0
    assert " ".join(text.split()) in " ".join(result.stdout.split())
