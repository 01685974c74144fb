# SPDX-License-Identifier: Apache-2.0
"""The rules of the grader, one by one, on diagnoses that are made up here."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from harness.diagnosis import Diagnosis
from tests.logs.__main__ import main, read_baseline, render_changes
from tests.logs.grading import LogCase, answer_text, digest_cases, find_cases, grade_answer, read_case

MESSAGE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
DIAGNOSIS = Diagnosis(
    "failed",
    "certain",
    "LG001",
    "the GPU ran out of memory",
    MESSAGE,
    "use a smaller micro-batch",
    rank=3,
    host="node-1",
)
UNKNOWN = Diagnosis("failed", title=f"an exception that is not in the catalogue: {MESSAGE}", message=MESSAGE)


@pytest.fixture
def case(tmp_path):
    return LogCase("a-1", tmp_path, (tmp_path / "job.log",), "memory", about="GPU", must=("GPU.*memory", "micro-batch"))


def test_right(case):
    answer = grade_answer(case, DIAGNOSIS)
    assert (answer.grade, answer.failed_conditions) == ("right", ())


def test_patterns_take_no_notice_of_case(case):
    assert grade_answer(replace(case, must=("gpu RAN OUT",)), DIAGNOSIS).grade == "right"


def test_every_must_has_to_match(case):
    answer = grade_answer(replace(case, must=("GPU", "NVMe")), DIAGNOSIS)
    assert (answer.grade, answer.failed_conditions) == ("half", ("does not say `NVMe`",))


@pytest.mark.parametrize(("confidence", "grade"), [("certain", "wrong and certain"), ("likely", "wrong")])
@pytest.mark.parametrize(
    "change", [{"must_not": ("smaller",)}, {"about": "NCCL", "must": ("NCCL",)}, {"accept": ("LG002",)}]
)
def test_wrong(case, change, confidence, grade):
    assert grade_answer(replace(case, **change), replace(DIAGNOSIS, confidence=confidence)).grade == grade


def test_an_accepted_id_alone_is_not_right(case):
    assert grade_answer(replace(case, accept=("LG001", "LG002")), DIAGNOSIS).grade == "right"
    assert grade_answer(replace(case, accept=("LG001",), must=("NVMe",)), DIAGNOSIS).grade == "half"


@pytest.mark.parametrize("change", [{"rank": 2}, {"host": "node-2"}])
def test_another_rank_or_host_is_half(case, change):
    assert grade_answer(replace(case, **change), DIAGNOSIS).grade == "half"
    assert grade_answer(replace(case, rank=3, host="node-1"), DIAGNOSIS).grade == "right"


@pytest.mark.parametrize("diagnosis", [UNKNOWN, Diagnosis("no failure seen"), Diagnosis("completed", "certain")])
def test_no_cause_is_unknown(case, diagnosis):
    assert grade_answer(case, diagnosis).grade == "unknown"


def test_another_state_is_not_right(case):
    silent = replace(case, state="no failure seen", must=())
    assert grade_answer(silent, Diagnosis("no failure seen")).grade == "right"
    assert grade_answer(silent, DIAGNOSIS).grade == "half"


def test_quoted_text_is_no_answer():
    assert "Tried to allocate" not in answer_text(UNKNOWN)
    assert "Tried to allocate" not in answer_text(replace(DIAGNOSIS, title=f"it said: {MESSAGE}"))


def test_what_is_printed_is_the_answer_and_the_page_is_not():
    text = answer_text(replace(DIAGNOSIS, notes=("rank 3 was loading a model",)))
    assert "was loading a model" in text
    assert "use a smaller micro-batch" in text
    assert "What to change" not in text


EXPECTED = {
    "thread": "https://github.com/o/r/issues/1",
    "cause": "the GPU is full",
    "about": "GPU|memory",
    "must": ["GPU.*memory"],
    "area": "memory",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "cases" / "r-1").mkdir(parents=True)
    (tmp_path / "cases" / "r-1" / "job.log").write_text(f"[rank0]: {MESSAGE}\n")
    (tmp_path / "cases" / "r-1" / "expected.json").write_text(json.dumps(EXPECTED))
    return tmp_path / "cases"


def test_a_case_of_several_logs(folder):
    (folder / "r-1" / "job.log").rename(folder / "r-1" / "rank_0.log")
    (folder / "r-1" / "rank_1.log").write_text("step 4\n")
    (case,) = find_cases(folder)
    assert [log.name for log in case.logs] == ["rank_0.log", "rank_1.log"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"area": "weather"}, "`area` is `weather`"), ({"must": ["("]}, "`(`: "), ({"about": None}, "`about` is missing")],
)
def test_a_case_that_cannot_be_graded(folder, change, problem):
    values = {key: value for key, value in (EXPECTED | change).items() if value is not None}
    (folder / "r-1" / "expected.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=f"r-1: {re.escape(problem)}"):
        read_case(folder / "r-1")


def test_a_case_without_a_log(folder):
    (folder / "r-1" / "job.log").unlink()
    with pytest.raises(ValueError, match="r-1: has no log"):
        find_cases(folder)


def test_the_digest_is_of_names_and_bytes(folder, tmp_path):
    before = digest_cases(find_cases(folder))
    folder.rename(tmp_path / "elsewhere")
    assert digest_cases(find_cases(tmp_path / "elsewhere")) == before
    with (tmp_path / "elsewhere" / "r-1" / "job.log").open("a") as log:
        log.write("x\n")
    assert digest_cases(find_cases(tmp_path / "elsewhere")) != before


def test_the_score(folder, capsys):
    assert main(["--score", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^r-1 +memory +right +LG001 +certain +0$", printed, re.MULTILINE)
    assert re.search(r"^all +1 +0 +0 +0 +0 +1$", printed, re.MULTILINE)
    assert "right: 1 of 1 (100 %)\nwrong and certain: 0\ncertain: 1 of 1 right\n" in printed
    assert re.search(r"^sha256 of the inputs: [0-9a-f]{64}$", printed, re.MULTILINE)


def test_the_failures(folder, capsys):
    (folder / "r-1" / "expected.json").write_text(json.dumps(EXPECTED | {"about": "NCCL", "must": ["InfiniBand"]}))
    main(["--score", str(folder), "--failures"])
    printed = capsys.readouterr().out
    assert "r-1 (memory): wrong and certain, LG001, certain" in printed
    assert "fails does not say `InfiniBand`" in printed
    assert "fails is not about `NCCL`" in printed


def test_a_folder_without_cases(tmp_path, capsys):
    assert main(["--score", str(tmp_path)]) == 2
    assert "expected.json" in capsys.readouterr().err


def test_the_changes_since_a_baseline(folder, tmp_path, capsys):
    main(["--score", str(folder)])
    saved = tmp_path / "score.txt"
    saved.write_text(capsys.readouterr().out)
    main(["--score", str(folder), "--baseline", str(saved)])
    assert "no change from the baseline" in capsys.readouterr().out
    assert read_baseline(saved) == {"r-1": ("right", "LG001")}
    (case,) = find_cases(folder)
    worse = grade_answer(case, UNKNOWN)
    assert render_changes([worse], read_baseline(saved)) == "worse   r-1: right LG001 -> unknown -"
    assert render_changes([worse], {"x-2": ("half", "LG002")}) == "new     r-1: unknown -\ngone    x-2"
