# SPDX-License-Identifier: Apache-2.0
"""Attacks by whoever may change anything in a run's `checkpoints/`, on a resume with a real engine.

`tests/training/jobs/hostile_checkpoints.py` has the attacks. One rank runs them all, in ten seconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.errors import UserError
from harness.runtime.checkpoint import safe_load
from tests.security.attempts import Attempt, attempt_param
from tests.security.test_object_gather import Call
from tests.support.training.forked_ranks import share_ranks

pytestmark = pytest.mark.training
JOB = Path(__file__).parents[1] / "training/jobs/hostile_checkpoints.py"
NO_CODE = ("CK111", "CK120")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the job has run."""
    place = tmp_path_factory.mktemp("hostile")
    share_ranks().run(JOB, str(place), ranks=1, timeout=120)
    return place


ATTACKS = [
    attempt_param(
        Attempt(
            "K50",
            "A file of `checkpoints/universal` calls `os.mkdir`, and the run resumes in another layout",
            "the folder was made: DeepSpeed unpickled the file",
            "refused by CK111 or CK120, nothing runs",
        ),
        "K50",
        NO_CODE,
    ),
    attempt_param(
        Attempt(
            "K51",
            "A folder in `checkpoints/universal` is a link to a folder of the reader",
            "its files were loaded",
            "the conversion is written again, and the link is not followed",
        ),
        "K51",
        ("loaded",),
    ),
    attempt_param(
        Attempt(
            "K53",
            "Adam's `exp_avg` in a shard has 7 elements, for thousands of weights",
            "the first step ended by SIGSEGV: kernels in C++ read and wrote beyond it",
            "CK120",
        ),
        "K53",
        ("CK120",),
    ),
    attempt_param(
        Attempt(
            "K54",
            "A tensor of a shard has 2^40 elements in 16 bytes, by a stride of 0",
            "4 TiB were requested, then a traceback",
            "CK120 where the file is read",
        ),
        "K54",
        ("CK120",),
    ),
    attempt_param(
        Attempt("K55", "The betas of a shard's optimizer are a text", "a traceback", "CK120 before the first step"),
        "K55",
        ("CK120",),
    ),
    attempt_param(
        Attempt(
            "K56",
            "A shard's optimizer has counted 2^60 steps, which a resume replays",
            "a replay without an end",
            "CK120 before the replay",
        ),
        "K56",
        ("CK120",),
    ),
    attempt_param(
        Attempt("K57", "A shard lacks the schedule", "a traceback: AttributeError", "CK120, in words"),
        "K57",
        ("CK120",),
    ),
    attempt_param(
        Attempt("K58", "A shard of optimizer states calls `os.mkdir`", "refused, nothing ran", "refused, nothing runs"),
        "K58",
        NO_CODE,
    ),
    attempt_param(
        Attempt(
            "K60",
            "A state in `checkpoints/universal` has 3 elements, for a weight of 32",
            "it was taken; kernels in C++ wrote beyond it, and the rank ended by SIGABRT a step later",
            "CK120 before anything is loaded",
        ),
        "K60",
        ("CK120",),
    ),
    attempt_param(
        Attempt("K61", "`groups.json` of `checkpoints/universal` is a list", "a traceback: TypeError", "CK120"),
        "K61",
        ("CK120",),
    ),
]


@pytest.mark.parametrize(("name", "expected"), ATTACKS)
def test_resume(folder: Path, name: str, expected: tuple[str, ...]) -> None:
    outcomes: dict[str, Any] = json.loads((folder / "outcomes.json").read_text())
    assert outcomes["sound"] == ["loaded", ""]
    assert outcomes[name][0] in expected, outcomes[name]
    assert not (folder / "marker").exists()


@Attempt(
    "K52",
    "`checkpoints/universal` is a link to a folder of the reader, and the run converts its checkpoint",
    "the folder of that step behind the link was removed, and the conversion written there",
    "the link is removed, and not followed",
)
def test_link_in_place_of_the_conversion(folder: Path) -> None:
    assert json.loads((folder / "outcomes.json").read_text())["K52"][0] == "loaded"
    private = folder / "private"
    assert [path.name for path in private.iterdir()] == ["step-00000003"]
    assert not (private / "step-00000003/universal.json").exists()


@Attempt(
    "K59",
    "A shard of 300 bytes encodes a text again and again, twice as long each time",
    "torch's safe loader did it: any memory",
    "CK120 before it is unpickled",
)
def test_encoded_again_and_again(tmp_path: Path) -> None:
    import _codecs

    content: object = b"a" * 8
    for _ in range(5):
        content = Call(_codecs.encode, content, "hex")
    torch.save({"a": content}, tmp_path / "shard.pt")
    with pytest.raises(UserError) as refused:
        safe_load.load_file(tmp_path / "shard.pt")
    assert "`encode`" in refused.value.findings[0].notes[0]


@Attempt(
    "K62",
    "A shard is a file of 1 TB, which costs no disk where it is sparse",
    "it was read into memory",
    "CK120 where the host has less memory than the file has bytes",
)
def test_larger_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"a": torch.zeros(1000)}, tmp_path / "shard.pt")
    assert len(safe_load.load_file(tmp_path / "shard.pt")["a"]) == 1000
    monkeypatch.setattr(safe_load, "available_host_bytes", lambda: 2000)
    with pytest.raises(UserError) as refused:
        safe_load.load_file(tmp_path / "shard.pt")
    assert refused.value.findings[0].gate == "CK120"
    assert len(safe_load.load_file(tmp_path / "shard.pt", mmap=True)["a"]) == 1000
