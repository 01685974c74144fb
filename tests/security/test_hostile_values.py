# SPDX-License-Identifier: Apache-2.0
"""Files of a right size whose content is made to cost time or to end in an exception."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.file_io import read_regular
from tests.security.attempts import Attempt, attempt_param
from tests.security.command_runner import run_command


@Attempt("I39", "`launch.hostfile: /proc/kmsg`, a regular file that waits", "TypeError, exit 3", "an OSError at once")
def test_regular_file_that_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Waiting:
        def __enter__(self) -> Waiting:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def fileno(self) -> int:
            return empty.fileno()

        def read(self, _: int) -> None:
            return None

    monkeypatch.setattr("harness.file_io.open_regular", lambda *_, **__: Waiting())
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open() as empty, pytest.raises(BlockingIOError):
        read_regular(tmp_path / "kmsg", 1000)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        attempt_param(
            Attempt(
                "I134", "a number of 100,000 digits in hjson that ends as a text", "16 s and more", "SP019 at once"
            ),
            '{"steps_per_print": ' + "9" * 100_000 + "x\n}",
            "SP019",
        ),
        attempt_param(
            Attempt("I100", "90,000 unknown keys in a DeepSpeed JSON", "13 s and 90,000 findings", "1,000 are named"),
            '{"train_batch_size": 1,' + ",".join(f'"k{n}": 1' for n in range(20_000)) + "}",
            "more than 1,000 keys are wrong",
        ),
        attempt_param(
            Attempt("I101", "a DeepSpeed JSON of 400,000 keys", "more than 20 s", "SP002 after 50,000 values"),
            '{"train_batch_size": 1,' + ",".join(f'"k{n}": 1' for n in range(400_000)) + "}",
            "more than 50,000 values",
        ),
        attempt_param(
            Attempt("I102", "a DeepSpeed JSON of two million comments", "more than 20 s", "SP002 after 10,000"),
            "{" + "//\n" * 2_000_000,
            "more than 10,000 comments",
        ),
    ],
)
def test_endless_json(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(content)
    answer = run_command("validate-config", file).assert_unharmed()
    assert answer.code == 1
    assert words in answer.text


@pytest.mark.parametrize(
    "script",
    [
        attempt_param(
            Attempt(
                "I103",
                "a script for `adopt` whose variable doubles 60 times",
                "no end within 12 s",
                "it stays as it is",
            ),
            "A=xxxxxxxxxx\n" + "A=$A$A\n" * 60 + "llamafactory-cli train --stage $A\n",
        ),
        attempt_param(
            Attempt("I104", "an option of 400 digits for `adopt`", "OverflowError, exit 3", "it is a text"),
            "llamafactory-cli train --learning_rate " + "9" * 400 + "\n",
        ),
        attempt_param(
            Attempt("I105", "a quotient of 5,000 digits for `adopt`", "ValueError, exit 3", "it stays as it is"),
            "llamafactory-cli train --stage $((" + "9" * 5_000 + " / 2))\n",
        ),
        attempt_param(
            Attempt("I106", "`NPROC_PER_NODE` of 5,000 digits for `adopt`", "ValueError, exit 3", "no number of ranks"),
            "NPROC_PER_NODE=" + "9" * 5_000 + " llamafactory-cli train --stage sft\n",
        ),
    ],
)
def test_hostile_scripts(script: str, tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text("#!/bin/bash\n" + script)
    answer = run_command("adopt", file).assert_unharmed()
    assert answer.code in (0, 1)
    assert len(answer.text) < 1_000_000
