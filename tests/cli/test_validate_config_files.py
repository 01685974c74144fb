# SPDX-License-Identifier: Apache-2.0
"""`harness validate-config`: which files, which findings, who reads them. Needs nothing; seconds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app

SPEC = """\
model: {name_or_path: x}
data: {train: y}
train: {max_steps: 1, per_device_train_batch_size: 2}
zero: {stage: 2}
"""
OFFLOAD = SPEC.replace("stage: 2", "stage: 2, offload_param: {device: cpu}")
JSON = '{"train_batch_size": 8, "zero_optimisation": {"stage": 2}}'


def run(*arguments, stdin=None):
    return CliRunner().invoke(build_app(list(arguments)), list(arguments), input=stdin)


def check(*arguments, stdin=None):
    result = run("validate-config", *arguments, "--format", "json", stdin=stdin)
    body = json.loads(result.stdout)
    assert body["exit_code"] == result.exit_code
    return result.exit_code, body


@pytest.fixture
def tree(write, tmp_path) -> Path:
    write("a.yaml", SPEC)
    write("sub/ds.json", JSON)
    write("sub/broken.json", '{"zero_optimization": {"stage": 2}')
    write("sub/typo.yaml", SPEC.replace("train:", "trian:"))
    write("sub/accelerate.yml", "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}\n")
    for name, text in {
        "package.json": '{"name": "x", "version": "1", "dependencies": {}}',
        "config.json": '{"model_type": "llama", "hidden_size": 64, "torch_dtype": "bfloat16"}',
        "trainer_state.json": '{"train_batch_size": 8, "log_history": [], "max_steps": 1, "epoch": 1, "global_step": 2}',
        "axolotl.yml": "base_model: x\ndatasets: []\ndeepspeed: zero3.json\nbf16: auto\nmicro_batch_size: 2\nnum_epochs: 1\n",
        "ci.yaml": "name: ci\non: push\njobs: {}\n",
        "list.json": "[1, 2]",
        "empty.yaml": "",
        "junk.json": b"\xff\xfe\x00",
    }.items():
        write(f"other/{name}", text)
    for folder in (".git", "node_modules", ".venv", "env"):
        write(f"{folder}/hidden.yaml", SPEC)
    write("env/pyvenv.cfg", "")
    write("notes.txt", SPEC)
    return tmp_path


def test_a_folder_gives_what_looks_like_ours_and_counts_the_rest(tree):
    code, body = check(str(tree))
    names = {os.path.relpath(r["file"], tree) for r in body["files"]}
    assert names == {"a.yaml", "sub/ds.json", "sub/broken.json", "sub/typo.yaml", "sub/accelerate.yml"}
    assert {Path(p).name for p in body["passed_over"]} == {p.name for p in (tree / "other").iterdir()}
    assert code == 1
    text = run("validate-config", str(tree)).stdout
    assert "8 other files skipped" in text
    assert re.search(r"^1 error, 1 warning +\S+sub/ds.json$", text, re.MULTILINE), text


def test_a_file_named_twice_or_in_a_named_folder_is_checked_once(tree):
    here = str(tree / "a.yaml")
    (tree / "link.yaml").symlink_to("a.yaml")
    _, body = check(here, str(tree / "." / "a.yaml"), str(tree / "link.yaml"), str(tree))
    assert [r["file"] for r in body["files"]].count(here) == 1
    assert len(body["files"]) == 5


def test_a_file_that_is_named_is_checked_whatever_it_looks_like(tree):
    assert check(str(tree / "other" / "ci.yaml"))[0] == 1


def test_a_folder_without_anything_is_wrong_usage(tmp_path):
    code, body = check(str(tmp_path))
    assert code == 2
    assert body["findings"][0]["gate"] == "SP001"
    assert "no run spec and no DeepSpeed configuration below" in run("validate-config", str(tmp_path)).stdout


def test_a_folder_that_cannot_be_read_is_told(tree, monkeypatch):
    scandir = os.scandir

    def refusing(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    code, body = check(str(tree))
    assert code == 2
    assert f"folder `{tree}/sub` cannot be read: permission denied" in body["findings"][0]["message"]


@pytest.mark.parametrize(
    ("options", "gates", "code"),
    [
        (["--select", "OF"], {"OF001"}, 1),
        (["--select", "of001,PR"], {"OF001"}, 1),
        (["--select", "parameter-offload-below-stage-3"], {"OF001"}, 1),
        (["--select", "PP"], set(), 0),
        (["--ignore", "OF001"], set(), 0),
        (["--ignore", "OF", "--select", "OF001"], {"OF001"}, 1),
        (["--select", "OF", "--ignore", "OF001"], set(), 0),
        (["--ignore", "PP", "--ignore", "SP"], {"OF001"}, 1),
    ],
)
def test_select_and_ignore(options, gates, code, write):
    found, body = check(write("a.yaml", OFFLOAD), *options)
    assert {f["gate"] for f in body["files"][0]["findings"]} == gates
    assert found == code
    assert body["totals"]["left_out"] == len(body["files"][0]["left_out"])
    if not gates:
        assert [f["gate"] for f in body["files"][0]["left_out"]] == ["OF001"]
        assert (
            "1 finding left out by --select or --ignore"
            in run("validate-config", str(write("a.yaml", OFFLOAD)), *options).stdout
        )


def test_counts_are_of_what_is_selected(write):
    _, everything = check(write("a.yaml", SPEC))
    _, few = check(write("a.yaml", SPEC), "--select", "OF,BT")
    assert 0 < few["files"][0]["gates_checked"] < everything["files"][0]["gates_checked"]
    assert {s["gate"][:2] for s in few["files"][0]["gates_skipped"]} <= {"OF", "BT"}


def test_a_file_that_cannot_be_read_is_never_good(write):
    typo = write("typo.yaml", SPEC.replace("max_steps", "max_stepz"))
    for options in (["--ignore", "SP005"], ["--ignore", "SP"], ["--select", "ZR"]):
        code, body = check(typo, *options)
        assert code == 1
        assert body["files"][0]["findings"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--select", "ZQ"], "`--select ZQ` names no finding"),
        (["--ignore", "OF999"], "did you mean"),
        (["--select", "paramter-offload-below-stage-3"], "did you mean `OF001`?"),
        (["--select", ","], "names no finding"),
        (["--unsafe-fixes"], "fixes nothing by itself"),
        (["--stdin-filename", "x.json"], "is not read"),
        (["--deepspeed-version", "0.19.8 or so"], "is not a version"),
        (["--deepspeed-version", "0.19.8x"], "is not a version"),
        (["--deepspeed-version", "1"], "is not a version"),
    ],
)
def test_wrong_usage_comes_in_the_format_that_was_asked_for(options, said, write):
    file = write("a.yaml", SPEC)
    code, body = check(file, *options)
    assert code == 2
    assert body["files"] == []
    finding = body["findings"][0]
    assert said in finding["message"] + finding["fix"]["title"]
    sarif = json.loads(run("validate-config", file, *options, "--format", "sarif").stdout)
    assert sarif["runs"][0]["invocations"][0]["executionSuccessful"] is False
    assert sarif["runs"][0]["invocations"][0]["toolConfigurationNotifications"][0]["level"] == "error"
    github = run("validate-config", file, *options, "--format", "github")
    assert github.exit_code == 2
    assert github.stdout.startswith("::error title=SP011::")
    text = run("validate-config", file, *options)
    assert text.exception.code == 2  # `main` prints it, see the test of whole processes
    assert said in " ".join(f"{f.message} {f.fix.title}" for f in text.exception.findings)


@pytest.mark.parametrize(
    ("version", "said"),
    [("0.14.4", True), ("0.14.5", False), ("v0.19.8+cu128", False), ("0.20.0", True), ("0.19.9rc1", True)],
)
def test_a_release_that_nobody_looked_at_is_told_once(version, said, write):
    code, body = check(write("a.yaml", SPEC), write("b.yaml", SPEC), "--deepspeed-version", version)
    assert code == 0
    assert [f["gate"] for f in body["findings"]] == ["EN020"] * said
    assert body["deepspeed_version"] == version.removeprefix("v")
    assert body["deepspeed_version_origin"] == "requested"


def test_strict_counts_warnings(write):
    file = write("a.yaml", SPEC + "ignore: {PP001: never}\n")
    assert check(file)[0] == 0
    assert check(file, "--strict")[0] == 1
    assert check(file, "--strict", "--ignore", "GT002")[0] == 0


def test_standard_input_goes_by_a_name(write):
    code, body = check("-", "--stdin-filename", "conf/ds.json", stdin=JSON)
    assert code == 1
    assert body["files"][0]["file"] == "conf/ds.json"
    assert body["files"][0]["findings"][0]["place"]["file"] == "conf/ds.json"
    assert check("-", "--stdin-filename", "ds.yaml", stdin=SPEC)[0] == 0
    assert check("-", "--stdin-filename", "ds.yaml", stdin=b"\xff\xfe")[0] == 1


def test_who_reads_a_json_is_told(write):
    file = write("ds.json", '{"train_batch_size": "auto", "zero_optimization": {"stage": 2}}')
    for consumer in ("hf", "accelerate", "deepspeed"):
        assert check(file, "--consumer", consumer)[1]["files"][0]["consumer"] == consumer
    assert check(write("a.yaml", SPEC))[1]["files"][0]["consumer"] is None


def test_many_files_end_with_a_line_for_each_bad_one(write):
    refused = SPEC + "deepspeed: {steps_per_print: 0}\n"
    files = [write("good.yaml", SPEC), write("bad.yaml", refused), write("warn.yaml", SPEC + "ignore: {PP001: x}\n")]
    lines = run("validate-config", *files).stdout.splitlines()
    assert lines[-4:-2] == [f"1 error    {files[1]}", f"1 warning  {files[2]}"]
    assert lines[-1].startswith("Found 1 error, 1 warning in 3 files. ")
    assert lines[-1].endswith(". 1 [*] can be fixed with `--fix`")


DEEP = {
    "brackets": "train: " + "[" * 30_000,
    "closed": "train: " + "[" * 30_000 + "]" * 30_000,
    "braces": "zero: " + "{{" * 1_000_000,
    "blocks": "train:\n  " + "- " * 30_000 + "x",
    "keys": "train: " + "{? [" * 15_000,
    "questions": "? " * 30_000 + "x",
    "anchors": "zero: " + "&a [" * 30_000,
    "itself": "zero: &a [*a]",
    "lines": "\n".join(" " * i + "train:" for i in range(2000)),
}


def test_nesting_is_bounded_before_the_parser_calls_itself(write, tmp_path):
    """In a process of its own: libyaml would end it by a segmentation fault, and with it what is said of the others."""
    for name, text in DEEP.items():
        write(f"{name}.yaml", f"# per_device_train_batch_size\n{text}\n")
    write("good.yaml", SPEC)
    command = [sys.executable, "-m", "harness", "validate-config", ".", "--format", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, (done.returncode, done.stderr)
    found = {Path(r["file"]).stem: r["findings"] for r in json.loads(done.stdout)["files"]}
    assert [f["gate"] for f in found.pop("good")] == []
    assert found.keys() == DEEP.keys()
    for name, findings in found.items():
        (finding,) = findings
        assert (finding["gate"], finding["message"]) == ("SP002", "the file is nested deeper than 60 levels"), name
        assert finding["place"]["line"] >= 2, name
    setting = subprocess.run(
        [*command[:-3], "good.yaml", "--set", f"zero={DEEP['brackets'][7:]}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert setting.returncode == 2, setting.stderr
    assert "nested deeper than 60 levels" in setting.stdout


EVIL = "\x1b[31mX\n::error::pwn\x9b2J\u202e\u2028R"
QUOTED = r"\e[31mX\n::error::pwn\x9b2J\u202e\u2028R"  # in YAML
FREE = SPEC.replace("\ntrain:", f'\nlaunch: {{output_dir: "o{QUOTED}", num_gpus: 1, env: {{A: "v{QUOTED}"}}}}\ntrain:')


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """Files whose keys, values, names and lines would steer a terminal, or GitHub."""
    monkeypatch.chdir(tmp_path)
    files = {
        "keys.yaml": SPEC + f'"z{QUOTED}": 1\ndeepspeed: {{"k{QUOTED}": 1}}\nignore: {{"q{QUOTED}": x}}\n',
        "values.yaml": FREE,
        "let.yaml": FREE + "ignore: {SE005: x, SE006: x, SE007: x}\n",
        "line.yaml": SPEC + "# \x9b2J\u202e\nzero: {}\n",
        "ds.json": json.dumps({"train_batch_size": 1, "zero_optimization": {f"s{EVIL}": 1}, f"z{EVIL}": 1}),
        "fix.json": json.dumps({"train_batch_size": 1, "zero_optimisation": {"stage": f"1{EVIL}"}}, ensure_ascii=False),
        "axolotl.yaml": f'base_model: x\nmicro_batch_size: 1\n"foo{QUOTED}": "x{QUOTED}"\nnum_epochs: 1\n',
        f"n{EVIL}.yaml": SPEC.replace("train:", "trian:"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)


@pytest.mark.parametrize(
    "command",
    [
        "validate-config .",
        "validate-config . --format github",
        "validate-config . --diff --unsafe-fixes",
        "upgrade-check . --from 0.18.9 --to 0.19.8",
        "adopt axolotl.yaml",
        "adopt ds.json",
        "plan let.yaml",
        "render let.yaml --reasons",
        "launch let.yaml --dry-run",
    ],
)
def test_no_command_prints_what_would_steer_a_terminal_or_github(hostile, command):
    result = run(*command.split())
    said = result.stdout + result.stderr
    assert "pwn" in said or command.startswith(("plan", "render", "upgrade"))
    for line in said.split("\n"):
        assert line.replace("\t", "").isprintable(), line
        assert not line.startswith("::error::"), line


MANY = 20_000


@pytest.mark.parametrize("name", ["many.yaml", "many.json"])
def test_thousands_of_unknown_keys_are_counted_and_not_all_shown(write, name):
    keys = [f"k{i:05d}" for i in range(MANY)]
    text = SPEC + "".join(f"{key}: 1\n" for key in keys)
    if name.endswith("json"):
        text = json.dumps({"train_batch_size": 8, **dict.fromkeys(keys, 1)}, indent=0)
    file = write(name, text)
    start = time.process_time()
    said = run("validate-config", file).stdout
    assert time.process_time() - start < 4, "it was 10 s, and four times that for twice as many"
    severity = "warning" if name.endswith("json") else "error"  # DeepSpeed ignores them, a run spec does not
    assert said.count("[SP005]") == 50
    assert "... and 951 more of SP005" in said
    rest = (
        "the harness checked no others"
        if name.endswith("json")
        else f"{MANY - 1000:,} more keys from here on are wrong"
    )
    assert rest in json.dumps(check(file)[1])
    assert len(said) < 40_000
    assert check(file)[1]["totals"][f"{severity}s"] >= 1000
    assert run("validate-config", file, "--format", "github").stdout.count("title=SP005") == 50


HIDDEN = "zq7SECRET"


@pytest.mark.parametrize(
    ("name", "text", "quoted"),
    [
        ("passwd", f"root:x:0:0:{HIDDEN}:/bin/sh\nme:x:1:1::/bin/sh\n", False),
        ("token", f"{HIDDEN}\n", False),
        ("hosts", f"worker-0 slots=2\n{HIDDEN}\n", True),
    ],
)
def test_a_file_that_a_spec_calls_its_hostfile_is_not_quoted(write, name, text, quoted):
    there = write(name, text)
    file = write("spec.yaml", SPEC + f"launch: {{hostfile: {name}}}\n")
    result = run("validate-config", file)
    assert result.exit_code == 1
    assert "HO003" in result.stdout
    assert (HIDDEN in result.stdout) is quoted
    assert (HIDDEN in json.dumps(check(file)[1])) is quoted
    assert HIDDEN in run("validate-config", write("plain.yaml", SPEC), "--hostfile", there).stdout


def test_a_hostfile_that_no_file_can_be_costs_no_other_file_its_findings(write, tmp_path):
    write("bad.yaml", SPEC + 'launch: {hostfile: "a\\0b"}\n')
    write("worse.yaml", SPEC + "zerro: {}\n")
    result = run("validate-config", str(tmp_path))
    assert result.exit_code == 1
    assert {"HO001", "SP005"} <= set(re.findall(r"error\[(\w+)\]", result.stdout))


@pytest.mark.parametrize("target", ["pipe", "/dev/zero"])
def test_a_hostfile_that_never_ends_is_refused(write, tmp_path, target):
    os.mkfifo(tmp_path / "pipe")
    file = write("spec.yaml", SPEC + f"launch: {{hostfile: {target}}}\n")
    command = [sys.executable, "-m", "harness", "validate-config", file, "--format", "json"]
    for more in ([], ["--hostfile", target]):
        done = subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
        body = json.loads(done.stdout)
        assert [f["message"] for f in body["files"][0]["findings"]] == [
            f"hostfile `{target if more or target[0] == '/' else tmp_path / target}` cannot be read: not a regular file"
        ]


@pytest.mark.parametrize(
    "text", [f'{{"auths": {{"x": {{"auth": "{HIDDEN}"}}}}}}', f"root:x:{HIDDEN}\nme:{HIDDEN}\n", f"{HIDDEN} [\n"]
)
def test_a_file_that_a_configuration_names_and_that_is_none_is_not_quoted(write, text):
    other = write("other", text)
    accelerate = (
        f"distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {{deepspeed_config_file: {other}}}\n"
    )
    axolotl = f"base_model: x\nmicro_batch_size: 2\nsequence_len: 64\ndatasets: []\ndeepspeed: {other}\n"
    for name, words, commands in (("a.yaml", accelerate, ["validate-config", "adopt"]), ("b.yaml", axolotl, ["adopt"])):
        file = write(name, words)
        for command in commands:
            result = run(command, file)
            assert result.exit_code == 1, result.output
            assert HIDDEN not in result.stdout + result.stderr
            assert "it contains none of DeepSpeed's keys" in result.stdout + result.stderr
