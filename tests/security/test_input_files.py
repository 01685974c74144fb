# SPDX-License-Identifier: Apache-2.0
"""Files that a check reads: specs, and what specs name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.security.attempts import Attempt, attempt_param
from tests.security.command_runner import SPEC, make_pipe, run_command


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, text: str | bytes) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def write_nested_aliases() -> None:
    rows = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 13)]
    write("x.yaml", "\n".join(rows))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        attempt_param(
            Attempt("I1", "YAML with 30,000 opening brackets", "SIGSEGV in the parser, no output", "SP002, exit 1"),
            "x.yaml",
            "a: " + "[" * 30_000,
            "nested deeper",
        ),
        attempt_param(
            Attempt("I2", "YAML of a million `{{`", "SIGSEGV in the parser, no output", "SP002, exit 1"),
            "x.yaml",
            "{{" * 1_000_000,
            "nested deeper",
        ),
        attempt_param(
            Attempt("I3", "a JSON with 100,000 opening braces", "refused", "refused: SP002"),
            "x.json",
            '{"a":' * 100_000,
            "nested",
        ),
        attempt_param(
            Attempt("I4", "a YAML number of a million digits", "a bounded error", "SP002"),
            "x.yaml",
            "a: " + "9" * 1_000_000,
            "a number of 1000000 digits",
        ),
        attempt_param(
            Attempt("I5", "a JSON number of a million digits", "a bounded error", "SP002"),
            "x.json",
            '{"train_batch_size": ' + "9" * 1_000_000 + "}",
            "a number of 1000000 digits",
        ),
        attempt_param(
            Attempt("I6", "merge keys that square a map", "SP002", "SP002: merge keys are not read"),
            "x.yaml",
            "b: &b {" + ",".join(f"k{n}: 1" for n in range(3000)) + "}\nc: {<<: *b}\n",
            "merge keys",
        ),
        attempt_param(
            Attempt("I7", "`!!python/object/apply:os.system`", "SP002, nothing ran", "SP002, nothing runs"),
            "x.yaml",
            SPEC + "zz: !!python/object/apply:os.system ['touch ran']\n",
            "is not supported",
        ),
        attempt_param(
            Attempt("I8", "40,000 times the same key in YAML", "2.3 s and a JSON of 25 MB", "it stops after 1,000"),
            "x.yaml",
            SPEC + "zz: 1\n" * 40_000,
            "more than 1,000 keys are written twice",
        ),
        attempt_param(
            Attempt("I9", "40,000 times the same key in JSON", "2 s and a JSON of 25 MB", "it stops after 1,000"),
            "x.json",
            "{" + '"zz": 1,' * 40_000 + '"a": 1}',
            "more than 1,000 keys are written twice",
        ),
        attempt_param(
            Attempt("I10", "45,000 unknown keys", "more than 25 s", "1,000 are named, the others counted"),
            "x.yaml",
            SPEC + "".join(f"zz{n}: 1\n" for n in range(45_000)),
            "more of SP",
        ),
        attempt_param(
            Attempt("I11", "a spec of 12 MB", "read", "SP001: larger than the limit"),
            "x.yaml",
            SPEC + "# x\n" * 3_000_000,
            "is larger than 8,000,000 bytes",
        ),
        attempt_param(
            Attempt("I12", "a spec in UTF-16", "SP001", "SP001, one sentence"),
            "x.yaml",
            SPEC.encode("utf-16"),
            "SP001",
        ),
        attempt_param(
            Attempt("I13", "NUL bytes in a spec", "SP001", "SP001: not a text file"),
            "x.yaml",
            SPEC + "a: \0\n",
            "is not a text file",
        ),
        attempt_param(
            Attempt(
                "I120", "a YAML of 4 MB with 350,000 keys", "3.9 s: they were counted late", "SP002, counted early"
            ),
            "x.yaml",
            SPEC + "scheduler:\n" * 350_000,
            "more than 200,000 keys and values",
        ),
        attempt_param(
            Attempt("I14", "a `deepspeed:` file that is the spec itself", "one finding", "one finding, no loop"),
            "x.yaml",
            SPEC + "deepspeed: x.yaml\n",
            "x.yaml",
        ),
    ],
)
def test_hostile_texts(name: str, content: str | bytes, words: str) -> None:
    write(name, content)
    answer = run_command("validate-config", name).assert_unharmed()
    assert answer.code == 1
    assert words in answer.text
    assert len(answer.text) < 100_000
    assert not Path("ran").exists()


@Attempt("I15", "aliases that expand to 10^12 values", "SP002 in 0.3 s", "SP002 in bounded time")
def test_nested_aliases() -> None:
    write_nested_aliases()
    answer = run_command("validate-config", "x.yaml").assert_unharmed()
    assert answer.code == 1
    assert "SP002" in answer.text


@Attempt("I16", "a file that kills the parser, among good ones", "no result for any file", "each file has its result")
def test_one_bad_file_among_good_ones() -> None:
    write("good.yaml", SPEC)
    write("bad.yaml", "model: " + "[" * 30_000)
    answer = run_command("validate-config", "good.yaml", "bad.yaml", "--format", "json").assert_unharmed()
    files = {Path(f["file"]).name: f for f in json.loads(answer.stdout)["files"]}
    assert files["good.yaml"]["ok"]
    assert files["bad.yaml"]["findings"]


@pytest.mark.parametrize(
    ("command", "make"),
    [
        attempt_param(
            Attempt("I17", "a pipe as a spec", "SP001", "SP001 at once"), ("validate-config", "x.yaml"), "pipe"
        ),
        attempt_param(
            Attempt("I18", "`/dev/zero` as a spec", "refused", "SP001 at once"),
            ("validate-config", "/dev/zero"),
            "",
        ),
        attempt_param(
            Attempt("I19", "`/proc/self/environ` as a spec", "refused, not quoted", "refused, not quoted"),
            ("validate-config", "/proc/self/environ"),
            "",
        ),
        attempt_param(
            Attempt("I20", "a link to `/dev/zero` as a spec for `plan`", "refused", "SP001 at once"),
            ("plan", "x.yaml"),
            "zero",
        ),
        attempt_param(
            Attempt("I21", "a pipe for `adopt`", "SP001", "refused at once"),
            ("adopt", "x.yaml"),
            "pipe",
        ),
    ],
)
def test_no_regular_file(command: tuple[str, ...], make: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_READER", "marmalade")
    if make == "pipe":
        make_pipe(Path("x.yaml"))
    elif make == "zero":
        Path("x.yaml").symlink_to("/dev/zero")
    answer = run_command(*command).assert_unharmed()
    assert answer.code in (1, 2)
    assert "error" in answer.text
    assert "marmalade" not in answer.text


@pytest.mark.parametrize(
    ("make", "key"),
    [
        attempt_param(Attempt("I22", "`launch.hostfile` is a pipe", "a hang", "HO001 at once"), "pipe", "hostfile"),
        attempt_param(
            Attempt("I23", "`launch.hostfile` is `/dev/zero`", "MemoryError at 6 GB", "HO001 at once"),
            "/dev/zero",
            "hostfile",
        ),
        attempt_param(
            Attempt("I24", "`config.json` of the model is a pipe", "a hang", "a finding at once"), "pipe", "config.json"
        ),
        attempt_param(
            Attempt("I25", "`config.json` links to `/dev/zero`", "MemoryError at 8 GB", "a finding at once"),
            "/dev/zero",
            "config.json",
        ),
        attempt_param(
            Attempt("I26", "`tokenizer.json` is a sparse file of 1 TB", "not read", "not read"),
            "sparse",
            "tokenizer.json",
        ),
        attempt_param(
            Attempt("I27", "`tokenizer_config.json` links to `/dev/zero`", "not read", "not read"),
            "/dev/zero",
            "tokenizer_config.json",
        ),
    ],
)
def test_files_that_a_spec_names(make: str, key: str) -> None:
    name = Path("m") / key
    write("m/config.json", '{"model_type": "llama"}')
    name.unlink(missing_ok=True)
    if make == "pipe":
        make_pipe(name)
    elif make == "sparse":
        with name.open("wb") as file:
            file.truncate(1 << 40)
    else:
        name.symlink_to(make)
    spec = SPEC.replace(SPEC.splitlines()[0], "model: {name_or_path: ./m}") if key != "hostfile" else SPEC
    write("x.yaml", spec + ("launch: {hostfile: m/hostfile}\n" if key == "hostfile" else "launch: {num_gpus: 1}\n"))
    for command in ("validate-config", "plan"):
        answer = run_command(command, "x.yaml").assert_unharmed()
        assert answer.code in (0, 1)


PRIVATE_LINES = "[http]\n\textraheader = AUTHORIZATION: basic bWFybWFsYWRl\nroot:x:0:0:root:/root:/bin/bash\n"


@pytest.mark.parametrize(
    "key",
    [
        attempt_param(
            Attempt(
                "I28", "`launch.hostfile: /etc/passwd`, or a `.git/config`", "every line is quoted", "no line is quoted"
            ),
            "launch: {hostfile: secret}",
        ),
        attempt_param(
            Attempt("I29", "`deepspeed: .git/config`", "no line is quoted", "no line is quoted"),
            "deepspeed: secret",
        ),
        attempt_param(
            Attempt("I30", "a model folder whose `config.json` is a secret", "not quoted", "not quoted"),
            "model: {name_or_path: ./m}",
        ),
        attempt_param(
            Attempt("I31", "`data.chat_template` names a secret", "not quoted", "not quoted"),
            "data: {train: x.jsonl, chat_template: secret, max_length: 64}",
        ),
    ],
)
def test_named_files_are_not_quoted(key: str) -> None:
    write("secret", PRIVATE_LINES)
    write("m/config.json", PRIVATE_LINES)
    section = key.split(":", maxsplit=1)[0]
    lines = [line for line in SPEC.splitlines() if not line.startswith(f"{section}:")]
    write("x.yaml", "\n".join([*lines, key]) + "\n")
    for form in ("text", "json", "github", "sarif"):
        answer = run_command("validate-config", "x.yaml", "--format", form).assert_unharmed()
        assert "bWFybWFsYWRl" not in answer.text
        assert "root:x:0" not in answer.text


@Attempt("I32", "a hostfile with 440,000 wrong lines", "3.3 s and 440,498 findings", "it stops after 1,000 findings")
def test_endless_hostfile() -> None:
    write("hosts", "node1 slots=2ts=2\n" * 200_000)
    write("x.yaml", SPEC + "launch: {hostfile: hosts}\n")
    answer = run_command("validate-config", "x.yaml", "--format", "json").assert_unharmed()
    (file,) = json.loads(answer.stdout)["files"]
    assert len(file["findings"]) <= 1_001


@Attempt("I33", "a hostfile of 30 MB", "5.5 s and 450 MB", "HO001: larger than the limit")
def test_large_hostfile() -> None:
    write("hosts", "".join(f"host{n} slots=8\n" for n in range(1_000_000)))
    write("x.yaml", SPEC + "launch: {hostfile: hosts}\n")
    answer = run_command("validate-config", "x.yaml").assert_unharmed()
    assert "larger than" in answer.text


@Attempt("I34", "20,000 files in `data.train`", "17 s: a thread for each of 768 of them", "1,000 are looked up")
def test_many_data_files() -> None:
    write("x.yaml", SPEC.replace("builtin:python-docs", "[" + ",".join(f"d{n}.txt" for n in range(20_000)) + "]"))
    run_command("validate-config", "x.yaml", "--format", "json").assert_unharmed()


@Attempt("I35", "a folder with a pipe, devices, a loop of links", "they are passed over", "they are passed over")
def test_folder_of_odd_files() -> None:
    write("good.yaml", SPEC)
    make_pipe(Path("pipe.yaml"))
    Path("loop.yaml").symlink_to("loop.yaml")
    Path("up").symlink_to("..")
    Path("zero.yaml").symlink_to("/dev/zero")
    Path("environ.yaml").symlink_to("/proc/self/environ")
    answer = run_command("validate-config", ".", "--format", "json").assert_unharmed()
    assert [Path(f["file"]).name for f in json.loads(answer.stdout)["files"]] == ["good.yaml"]


@Attempt("I36", "`SLURM_JOB_NODELIST=node[1-99999999]`", "HO026 at once", "HO026 at once")
def test_endless_node_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-99999999]")
    write("x.yaml", SPEC)
    answer = run_command("launch", "--dry-run", "--slurm", "x.yaml").assert_unharmed()
    assert "HO026" in answer.text


@Attempt("I37", "`--hosts host[1-9999999]:8`", "HO025 at once", "HO025 at once")
def test_endless_hosts_option() -> None:
    write("x.yaml", SPEC)
    answer = run_command("validate-config", "x.yaml", "--hosts", "host[1-9999999]:8").assert_unharmed()
    assert answer.code != 0


@Attempt("I38", "a spec on stdin that never ends", "a hang, and all memory", "SP001 at the limit")
def test_endless_stdin() -> None:
    command = [sys.executable, "-m", "harness", "validate-config", "-"]
    with Path("/dev/zero").open("rb") as endless:
        done = subprocess.run(command, stdin=endless, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode in (1, 2)
    assert "SP001" in done.stdout
