# SPDX-License-Identifier: Apache-2.0
"""The output of `validate-config --fix`: marks before, a list of what was fixed after, numbers that add up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app

HURRIED = """\
{
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_step": 2,
  "gradient_clipping": 1.0,
  "optimizer": {"type": "adam_w", "params": {"learning_rate": 1e-4}},
  "fp16": {"enabled": "true"},
  "zero_optimization": {
    "stage": "2",
    "offload_optimizer": {"device": "cpu"},
    "stage3_gather_fp16_weights_on_model_save": true,
    "reduce_bucket_sise": 5e8
  },
  "steps_per_print": "100",
  "aio": {"thread_count": 1}
}
"""
SAFE = [(6, "SP006"), (8, "SP006"), (10, "SP014"), (10, "ZR002"), (14, "OF024"), (14, "SP014")]
UNSAFE = [(3, "SP005"), (5, "OP001"), (5, "OP005"), (11, "SP005")]


def run(*arguments, stdin=None):
    return CliRunner().invoke(build_app(list(arguments)), list(arguments), input=stdin)


def fixed_list(output: str) -> list[tuple[int, str]]:
    """The line and the id of each line of the list."""
    return [(int(line), id_) for line, id_ in re.findall(r"^ +(\d+)  ([A-Z]{2}\d{3})  `", output, re.MULTILINE)]


def heads(output: str) -> dict[str, str]:
    """The mark of each finding's first line, by its id."""
    return dict(re.findall(r"^\w+\[([A-Z]{2}\d{3})\]: .*?(\[[*!]\])?$", output, re.MULTILINE))


def test_each_finding_that_can_be_fixed_has_a_mark_and_the_last_line_counts_them(write):
    shown = run("validate-config", write("ds.json", HURRIED)).stdout
    assert shown.count("[*]\n") == len(SAFE)
    assert shown.count("[!]\n") == len(UNSAFE)
    assert heads(shown)["OP001"] == "[!]"
    assert heads(shown)["ZR002"] == "[*]"
    assert "  SP006  " not in shown
    last = shown.splitlines()[-1]
    assert last.endswith(
        f". {len(SAFE)} [*] can be fixed with `--fix`, {len(UNSAFE)} [!] with `--fix --unsafe-fixes`, "
        "which changes the run"
    )


def test_what_was_fixed_is_listed_and_is_what_was_marked(write):
    file = write("ds.json", HURRIED)
    shown = run("validate-config", file, "--fix").stdout
    assert fixed_list(shown) == SAFE
    assert f"Fixed in {file} (lines as they were before):\n   6  SP006  `fp16.enabled` set to true\n" in shown
    assert "  14  OF024  `aio` removed\n  14  SP014  `aio.thread_count`: resolved by another fix\n" in shown
    assert f"\nFixed {len(SAFE)} findings. Found " in shown
    assert shown.splitlines()[-1].endswith(
        f". {len(UNSAFE)} [!] can be fixed with `--fix --unsafe-fixes`, which changes the run"
    )
    assert "Fixed" not in run("validate-config", file, "--fix").stdout


def test_unsafe_fixes_are_listed_too_and_a_mistake_behind_another_is_one_of_its_own(write):
    file = write("ds.json", HURRIED)
    result = run("validate-config", file, "--fix", "--unsafe-fixes")
    assert fixed_list(result.stdout) == sorted([*SAFE, *UNSAFE])
    assert "`optimizer.params.learning_rate` removed, `optimizer.params.lr` set to 0.0001" in result.stdout
    assert result.stderr == ""
    after = json.loads(Path(file).read_text())
    assert after["optimizer"] == {"type": "AdamW", "params": {"lr": 1e-4}}
    assert after["zero_optimization"]["stage"] == 2
    assert after["steps_per_print"] == "100", "it takes a value that only the user knows"


def test_findings_that_come_up_after_a_fix_are_told_and_not_fixed(write):
    text = '{"train_batch_size": 8, "gradient_clipping": 1.0, "zero_optimisation": {"stage": 2, "sub_group_size": 7}'
    text += ', "bf16": {"enabled": false}}\n'
    file = write("ds.json", text)
    assert "ZR002" not in run("validate-config", file).stdout
    first = run("validate-config", file, "--fix", "--unsafe-fixes").stdout
    assert fixed_list(first) == [(1, "SP005")]
    assert '"sub_group_size": 7' in Path(file).read_text()
    assert "warning[ZR002]" in first
    assert "1 [*] can be fixed with another `--fix`" in first
    assert fixed_list(run("validate-config", file, "--fix").stdout) == [(1, "ZR002")]


def test_a_fix_that_is_refused_is_told_once_with_its_line(write):
    text = "model: {name_or_path: x}\ndata: {train: y}\ntrain: {max_steps: 1, per_device_train_batch_size: 2}\n"
    text += "zero: {stage: 1, offload_param: {device: cpu}}\nparallel: {pipeline_parallel_size: 2}\n"
    result = run("validate-config", write("a.yaml", text), "--fix", "--unsafe-fixes")
    told = [line for line in result.stderr.splitlines() if line.startswith("not fixed in ")]
    assert len(told) == len(set(told)) == 1
    assert told[0].endswith(", line 4: OF001: PP001 would then require the current `zero.stage`")
    assert "OF001" in heads(result.stdout)
    assert "can be fixed" not in result.stdout, "it was tried"


def test_a_diff_lists_what_would_be_fixed(write):
    shown = run("validate-config", write("ds.json", HURRIED), "--diff").stdout
    assert "\nWould be fixed in " in shown
    assert fixed_list(shown) == SAFE
    assert shown.splitlines()[-1].endswith(f"`--fix` would fix {len(SAFE)}, nothing was written")


def test_the_list_goes_to_standard_error_where_the_text_goes_to_standard_output():
    result = run("validate-config", "-", "--stdin-filename", "ds.json", "--fix", stdin=HURRIED)
    assert json.loads(result.stdout)["zero_optimization"]["stage"] == 2
    assert fixed_list(result.stderr) == SAFE
    assert fixed_list(result.stdout) == []


@pytest.mark.parametrize("stdin", [True, False])
def test_programs_get_the_same_list(stdin, write):
    name, more = ("-", ["--stdin-filename", "ds.json"]) if stdin else (write("ds.json", HURRIED), [])
    arguments = ("validate-config", name, *more, "--fix", "--format", "json")
    body = json.loads(run(*arguments, stdin=HURRIED if stdin else None).stdout)
    assert [(f["place"]["line"], f["gate"]) for f in body["files"][0]["fixed"]] == SAFE
    assert body["totals"]["fixed"] == len(SAFE)


def test_github_gets_a_notice_for_each(write):
    lines = run("validate-config", write("ds.json", HURRIED), "--fix", "--format", "github").stdout.splitlines()
    notices = [line for line in lines if "::fixed: " in line]
    assert [(int(re.search(r"line=(\d+)", n)[1]), re.search(r"title=(\w+)", n)[1]) for n in notices] == SAFE
    assert all(line.startswith("::notice ") for line in notices)


def test_the_summary_is_short_unless_it_is_asked_for_more(write):
    file = write("ds.json", '{"train_batch_size": 8, "gradient_clipping": 1.0, "bf16": {"enabled": false}}')
    short, long = (run("validate-config", file, *more).stdout.splitlines()[-1] for more in ([], ["-v"]))
    assert len(short) < 100
    assert re.fullmatch(r"OK\. \d+ gates checked against DeepSpeed .*, \d+ skipped \(`-v`\)", short)
    assert "HO007, HO008, HO009 (no --hostfile)" in long
    missing = run("validate-config", "no-such-file.yaml").stdout.splitlines()[-1]
    assert missing == "Found 1 error. No gate was checked"
