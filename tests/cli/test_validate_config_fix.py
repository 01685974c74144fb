# SPDX-License-Identifier: Apache-2.0
"""`harness validate-config --fix`: the files get better or stay as they are. Needs nothing; under a minute."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from harness.check import autofix
from harness.check.autofix import can_fix
from harness.check.check_file import CheckedFile
from harness.cli.app import build_app
from harness.errors import ExitCode
from harness.findings import Finding, Fix, Report
from harness.gates.registry import all_gates
from harness.spec.parse.source_parser import parse
from tests.support.gate_examples import example_of
from tests.support.gate_examples import judge as judge_example

GOOD = """\
# the model
model: {name_or_path: x}
data: {train: y}
train: {max_steps: 1, per_device_train_batch_size: 2}
"""
BAD = GOOD + "deepspeed:\n  communication_data_type: float32   # of gradients\nzero: {stage: 1}\n"
NOT_READ = GOOD + "zero:\n  stage: 1\n  offload_param:\n    device: cpu\n  offload_optimizer: {device: cpu}\n"
JSON = '{\n    "train_batch_size": 8, "bf16": {"enabled": false},\n    "zero_optimization": {"stage": "2", "offload_optimizer": {"device": "cpu"}}\n}\n'


def run(*arguments, stdin=None):
    return CliRunner().invoke(build_app(list(arguments)), list(arguments), input=stdin)


def test_it_shows_a_diff_writes_and_says_what_is_left(write):
    file = write("a.yaml", BAD + "ignore: {PP001: x}\n")
    Path(file).chmod(0o640)
    result = run("validate-config", file, "--fix")
    assert result.exit_code == 0
    name = file.lstrip("/")
    assert result.stdout.startswith(f"--- a/{name}\n+++ b/{name}\n@@ ")
    assert (
        "-  communication_data_type: float32   # of gradients\n+  communication_data_type: fp32   # of gradients\n"
        in result.stdout
    )
    assert "warning[GT002]" in result.stdout
    assert "\nFixed 1 finding. Found 1 warning. " in result.stdout
    assert Path(file).read_text() == BAD.replace("float32", "fp32") + "ignore: {PP001: x}\n"
    assert Path(file).stat().st_mode & 0o777 == 0o640
    again = run("validate-config", file, "--fix").stdout
    assert "Fixed" not in again
    assert "---" not in again


@pytest.mark.parametrize("options", [["--diff"], ["--fix", "--dry-run"], ["--dry-run"]])
def test_a_dry_run_only_shows(options, write):
    file = write("a.yaml", BAD)
    result = run("validate-config", file, *options)
    assert result.exit_code == 1, "the file on the disk is as bad as before"
    assert "+  communication_data_type: fp32   # of gradients\n" in result.stdout
    assert result.stdout.endswith("`--fix` would fix 1, nothing was written\n")
    assert Path(file).read_text() == BAD


def test_the_diff_is_one_that_patch_takes(write, tmp_path):
    write("sub/a.yaml", BAD.rstrip("\n"))
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        diff = run("validate-config", "sub/a.yaml", "--diff").stdout.partition("error[")[0]
        subprocess.run(["git", "apply", "--unsafe-paths", "-"], input=diff, text=True, check=True)
    finally:
        os.chdir(here)
    assert (tmp_path / "sub/a.yaml").read_text() == BAD.rstrip("\n").replace("float32", "fp32")


def test_a_json_is_mended_in_its_own_words(write):
    file = write("ds.json", JSON)
    assert run("validate-config", file, "--fix").exit_code == 0
    assert Path(file).read_text() == JSON.replace('"stage": "2"', '"stage": 2')


def test_standard_input_goes_to_standard_output():
    result = run("validate-config", "-", "--fix", stdin=BAD)
    assert result.exit_code == 0
    assert result.stdout == BAD.replace("float32", "fp32")
    assert "Fixed 1 finding" in result.stderr
    untouched = run("validate-config", "-", "--fix", stdin=GOOD)
    assert untouched.stdout == GOOD


def test_unsafe_fixes_only_when_asked_for(write):
    text = GOOD.replace("max_steps: 1", "max_steps: 1, global_batch_size: 7")
    file = write("a.yaml", text)
    plain = run("validate-config", file, "--world-size", "2", "--fix")
    assert plain.exit_code == 1
    assert Path(file).read_text() == text
    assert ". 1 [!] can be fixed with `--fix --unsafe-fixes`, which changes the run\n" in plain.stdout
    assert run("validate-config", file, "--world-size", "2", "--fix", "--unsafe-fixes").exit_code == 0
    assert Path(file).read_text() != text


NVME = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.0}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/n"}},
}
LORA = GOOD.replace("name_or_path: x", "name_or_path: llama-3.1-8b, random_init: true, lora: {r: 8}")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("a.json", json.dumps(NVME), ("memory of a host", "NVMe of a host", "-> 0 B", "planned for Llama-3.1-70B, 8 ranks, a")),
        ("a.yaml", LORA, ("memory of a rank", "planned for 8 ranks, which")),
    ],
)  # fmt: skip
def test_an_unsafe_fix_that_changes_the_memory_says_so_and_not_ok(file, text, words, write):
    for option, old in (("--diff", text), ("--fix", "")):
        path = write(file, text)
        result = run("validate-config", path, option, "--unsafe-fixes")
        assert "warning[SP041]: the fixes change the memory that the run needs: " in result.stdout
        assert [word for word in words if word not in result.stdout] == []
        assert "OK" not in result.stdout
        assert (Path(path).read_text() == text) == bool(old)


def test_an_unsafe_fix_that_leaves_the_memory_says_nothing_of_it(write):
    text = json.dumps(
        {**NVME, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}, "bf16": {"enabled": False}}
    )
    text = text.replace('"gradient_clipping": 1.0, ', "")
    result = run("validate-config", write("a.json", text), "--fix", "--unsafe-fixes")
    assert "Fixed 1 finding. OK" in result.stdout


def test_a_misspelt_key_is_renamed_unless_the_file_has_the_right_one(write):
    text = GOOD.replace("data: {train: y}", "data: {train: y, max_lenght: 64}  # rows\n").replace("model:", "modle:")
    file = write("a.yaml", text)
    safe = run("validate-config", file, "--fix")
    assert (safe.exit_code, Path(file).read_text()) == (1, text)
    assert ". 3 [!] can be fixed with `--fix --unsafe-fixes`" in safe.stdout
    assert run("validate-config", file, "--fix", "--unsafe-fixes").exit_code == 0
    assert Path(file).read_text() == text.replace("max_lenght", "max_length").replace("modle", "model")
    for other in ("max_length: 32", "max_lengt: 32"):
        file = write("b.yaml", GOOD.replace("train: y", f"train: y, max_lenght: 64, {other}"))
        both = run("validate-config", file, "--fix", "--unsafe-fixes")
        assert both.exit_code == 1, "one value or the other: the user decides"
        assert "resolved by another fix" not in both.stdout
    foreign = write("c.yaml", GOOD.replace("train: {", "train: {lr: 1, "))
    assert "unsafe-fixes" not in run("validate-config", foreign).stdout, (
        "another program's value may mean another thing"
    )


@pytest.mark.parametrize("text", ["a: [1\n", "\ta: 1\n", "", "- 1\n", b"\xff\xfe", "a: 1\na: 2\n"])
def test_a_file_with_wrong_syntax_is_never_touched(text, write):
    file = write("a.yaml", text)
    before = Path(file).read_bytes()
    result = run("validate-config", file, "--fix", "--unsafe-fixes")
    assert result.exit_code == 1
    assert Path(file).read_bytes() == before


def test_line_ends_and_byte_order_mark_stay(write):
    text = "\ufeff" + BAD.replace("\n", "\r\n")
    file = write("a.yaml", text.encode())
    assert run("validate-config", file, "--fix").exit_code == 0
    assert Path(file).read_bytes() == text.replace("float32", "fp32").encode()
    mixed = write("b.yaml", BAD.replace("\n", "\r\n", 1))
    result = run("validate-config", mixed, "--fix")
    assert result.exit_code == 1
    assert "the file was not changed: its line ends are mixed" in result.stderr


def test_what_cannot_be_written_is_told_and_left(write, tmp_path, monkeypatch):
    file = write("a.yaml", BAD)
    monkeypatch.setattr("tempfile.mkstemp", lambda **_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    result = run("validate-config", file, "--fix")
    assert result.exit_code == 1
    assert "the file was not changed: no space left on device" in result.stderr
    assert "Fixed" not in result.stdout
    assert Path(file).read_text() == BAD
    assert [p.name for p in tmp_path.iterdir()] == ["a.yaml"]


def test_a_file_that_changed_meanwhile_is_left(write):
    file = write("a.yaml", BAD)
    original = autofix.read_original(file)
    Path(file).write_text(GOOD)
    assert autofix.write_fixed(file, original, "x: 1\n") == "it was changed at the same time"
    assert Path(file).read_text() == GOOD


def test_keys_of_the_command_line_are_not_fixed_in_the_file(write):
    file = write("a.yaml", BAD)
    result = run("validate-config", file, "--fix", "--set", "deepspeed.communication_data_type=float32")
    assert result.exit_code == 1
    assert "PR007: `deepspeed.communication_data_type` is set on the command line" in result.stderr
    assert Path(file).read_text() == BAD


def test_a_fix_does_not_break_what_is_left_out(write):
    text = NOT_READ + "parallel: {pipeline_parallel_size: 2}\n"
    assert "PP001" in run("validate-config", write("a.yaml", text.replace("stage: 1", "stage: 3"))).stdout
    file = write("a.yaml", text)
    result = run("validate-config", file, "--fix", "--unsafe-fixes", "--select", "OF001")
    assert "not fixed in" in result.stderr
    assert "OF001: it would cause an error: PP001" in result.stderr
    assert "stage: 1" in Path(file).read_text()


def test_several_files_with_one_diff_each(write):
    files = [write("a.yaml", BAD), write("b.json", JSON), write("c.yaml", GOOD)]
    result = run("validate-config", *files, "--fix")
    assert result.exit_code == 0
    assert result.stdout.count("+++ ") == 2
    assert "Fixed 2 findings. OK in 3 files" in result.stdout
    body = json.loads(run("validate-config", write("d.yaml", BAD), "--fix", "--format", "json").stdout)
    assert body["totals"]["fixed"] == 1
    assert [f["gate"] for f in body["files"][0]["fixed"]] == ["PR007"]


INFINITY = """\
{
    "train_micro_batch_size_per_gpu": 1,
    "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000},
    "zero_optimization": {
        "stage": 3,
        "stage3_prefetch_bucket_size": 5e7,
        "stage3_param_persitance_threshold": 1e5,
        "offload_param": {"device": "nvme", "nvme_path": "/data/params", "buffer_count": 5, "max_in_cpu": 0},
        "offload_optimizer": {
            "device": "nvme",
            "nvme_path": "/data/optimizer",
            "buffer_count": 4
        }
    },
    "aio": {"block_size": 1048576, "queue_depth": 8, "thread_count": 1}
}
"""


def test_states_on_nvme_stay_there(write):
    for change in (str, lambda text: text.replace("persitance", "persistence")):
        file = write("ds.json", change(INFINITY))
        run("validate-config", file, "--fix")
        after = Path(file).read_text()
        assert after == change(INFINITY).replace("thread_count", "intra_op_parallelism")
    told = run("validate-config", file).stdout
    assert "[CK003]" in told
    assert "[OF031]" in told
    moved = run("validate-config", file, "--fix", "--unsafe-fixes").stdout
    assert '+            "device": "cpu"' in moved, "who asks for it gets it"


@pytest.mark.parametrize(
    "lines",
    [
        "zero: {stage: 2, offload_param: {device: cpu}, offload_optimizer: {device: cpu}}\n",
        "zero: {stage: 2, offload_optimizer: {device: nvme, nvme_path: /data/optimizer}}\n",
        "zero: {stage: 3, offload_param: {device: cpu}}\n",
        "zero: {stage: 2, offload_optimizer: {device: cpu, ratio: 0.5}}\n",
        "zero: {stage: 3, sub_group_size: 0}\n",
        "checkpoint: {save_at_end: false}\n",
        "checkpoint: {save_steps: 500}\n",
    ],
)
def test_a_written_value_that_works_is_left(lines, write):
    file = write("a.yaml", GOOD + lines)
    result = run("validate-config", file, "--fix")
    assert Path(file).read_text() == GOOD + lines
    assert "can be fixed with `--fix --unsafe-fixes`" in result.stdout


def judge(*rules):
    """A check of plain texts: each rule is (id, words that are wrong, what the fix sets)."""

    def check(text: str) -> CheckedFile:
        found = [
            Finding(id_, "error", f"{wrong} is wrong", "a", fix=Fix("x", sets, safe=True))
            for id_, wrong, sets in rules
            if wrong in text
        ]
        return CheckedFile(Report("a.yaml", tuple(found)), parse(text, "a.yaml"), object(), 0)  # type: ignore[arg-type]

    return check


def test_fixes_that_contradict_each_other_end_and_are_told_once():
    check = judge(("AA001", "a: 1", {"a": 2}), ("BB001", "a: 2", {"a": 1}))
    fixed = autofix.apply_fixes("a.yaml", "a: 1\n", check, unsafe=False)
    assert not fixed.changed
    assert [(f.gate, why) for f, why in fixed.refused] == [("AA001", "BB001 would then require the current `a`")]


def test_a_fix_that_would_bring_another_error_is_not_kept():
    check = judge(("AA001", "a: 1", {"a": 2, "b": 3}), ("BB001", "b: 3", {}))
    fixed = autofix.apply_fixes("a.yaml", "a: 1\n", check, unsafe=False)
    assert not fixed.changed
    assert "would cause an error: BB001" in fixed.refused[0].reason


def test_a_fix_that_helps_nothing_is_not_kept():
    fixed = autofix.apply_fixes("a.yaml", "a: 1\n", judge(("AA001", "a: ", {"a": 2})), unsafe=False)
    assert not fixed.changed
    assert "the finding would still be there" in fixed.refused[0].reason


@pytest.mark.parametrize("gate", all_gates(), ids=lambda gate: gate.id)
def test_the_fix_of_every_example_is_written_into_its_text(gate, write):
    example = example_of(gate, "Example")
    bare = example.text.rstrip("\n")
    text = f"{bare}\n" if example.kind == "json" else f"# first\nname: example\n{bare}\n# last\n"
    name = "a.json" if example.kind == "json" else "a.yaml"

    def check(changed: str) -> CheckedFile:
        judged = judge_example(
            gate, "Example", write, example=example._replace(text=changed), launching="a launch" in gate.needs
        )
        return CheckedFile(
            judged.report, judged.source, judged.run, ExitCode.OK if judged.report.ok else ExitCode.FINDINGS
        )

    if not any(f.gate == gate.id and can_fix(f, unsafe=True) for f in check(text).report.findings):
        assert "hosts" in gate.needs or gate.page.instead is not None
        return  # the fix is in the hostfile, which is another file, or is the user's to know
    fixed = autofix.apply_fixes(name, text, check, unsafe=True)
    assert gate.id not in {f.gate for f in fixed.checked.report.findings}, fixed.refused
    assert fixed.changed
    assert yaml.safe_load(fixed.after) is not None
    if example.kind != "json":
        assert fixed.after.startswith("# first\n")
        assert fixed.after.endswith("# last\n")
    texts = [fixed.after]  # a fix can bring up a finding, which the next call fixes
    for _ in range(3):
        texts.append(autofix.apply_fixes(name, texts[-1], check, unsafe=True).after)
    assert texts[-1] == texts[-2]
