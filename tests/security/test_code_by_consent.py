# SPDX-License-Identifier: Apache-2.0
"""Code that a spec may choose, and the lines of a launch that name it. Seconds; no torch."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from harness.launching.setup.code_trust import verify_code_allowed
from harness.launching.setup.environment import ignored_env_files, launcher_environment
from harness.spec.run_spec import RunSpec
from tests.security.attempts import Attempt, attempt_param, read_attempts
from tests.security.code_table import CODE_PATHS, render_table
from tests.security.command_runner import SPEC, run_command


def check(folder: Path, name: str, value: str, *more: str) -> str:
    """The output of `validate-config` on a spec that sets this variable; JSON is YAML."""
    file = folder / "spec.yaml"
    file.write_text(f"{SPEC}launch: {{env: {json.dumps({name: value})}}}\n")
    answer = run_command("validate-config", file, *more).assert_unharmed()
    assert (answer.code == 0) is ("SE0" not in answer.text), answer.text
    return answer.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        attempt_param(Attempt("C1", "`PYTHON_EXEC` in `launch.env`", "accepted", "SE008"), "PYTHON_EXEC", "/x"),
        attempt_param(
            Attempt("C2", "`MPLBACKEND: module://evil` in `launch.env`", "accepted", "SE008"),
            "MPLBACKEND",
            "module://evil",
        ),
        attempt_param(Attempt("C3", "`NUMBA_CACHE_DIR` with pickles", "accepted", "SE008"), "NUMBA_CACHE_DIR", "/x"),
        attempt_param(
            Attempt("C4", "`UCC_COMPONENT_PATH` with a library", "accepted", "SE008"), "UCC_COMPONENT_PATH", "/x"
        ),
        attempt_param(
            Attempt("C5", "`KRB5_CONFIG` that names a plug-in of ssh", "accepted", "SE008"), "KRB5_CONFIG", "/x"
        ),
        attempt_param(Attempt("C6", "`PERL5OPT: -Mevil`", "accepted", "SE008"), "PERL5OPT", "-Mevil"),
        attempt_param(
            Attempt("C7", "`NODE_OPTIONS: --require`", "accepted", "SE008"), "NODE_OPTIONS", "--require=/x.js"
        ),
        attempt_param(
            Attempt("C8", "`JAVA_TOOL_OPTIONS: -javaagent`", "accepted", "SE008"), "JAVA_TOOL_OPTIONS", "-javaagent:/x"
        ),
        attempt_param(
            Attempt("C9", "`XDG_CONFIG_HOME` with a configuration of git", "accepted", "SE008"), "XDG_CONFIG_HOME", "/x"
        ),
        attempt_param(
            Attempt("C10", "`WANDB__EXECUTABLE` in `launch.env`", "accepted", "SE008"), "WANDB__EXECUTABLE", "/x"
        ),
        attempt_param(Attempt("C11", "`CONDA_EXE`, which torch starts", "accepted", "SE008"), "CONDA_EXE", "/x"),
        attempt_param(Attempt("C12", "`SSH_SK_HELPER` in `launch.env`", "accepted", "SE008"), "SSH_SK_HELPER", "/x"),
        attempt_param(
            Attempt("C13", "`I_MPI_HYDRA_BOOTSTRAP_EXEC`, started on every host", "accepted", "SE008"),
            "I_MPI_HYDRA_BOOTSTRAP_EXEC",
            "/x",
        ),
        attempt_param(
            Attempt("C14", "`TORCHINDUCTOR_CUTLASS_DIR`, a folder of modules", "accepted", "SE008"),
            "TORCHINDUCTOR_CUTLASS_DIR",
            "/x",
        ),
        attempt_param(
            Attempt("C15", "`TORCHINDUCTOR_CPP_MARCH` with a plug-in of gcc", "accepted", "SE008"),
            "TORCHINDUCTOR_CPP_MARCH",
            "native -fplugin=/x.so",
        ),
        attempt_param(
            Attempt("C16", "`GIT_COMMON_DIR` with hooks and a configuration", "accepted", "SE008"),
            "GIT_COMMON_DIR",
            "/x",
        ),
    ],
)
def test_variable(tmp_path: Path, name: str, value: str) -> None:
    assert "SE008" in check(tmp_path, name, value)


@Attempt("C17", "`BASH_FUNC_ls%%`, a function of bash, in `launch.env`", "SE005", "SE005")
def test_bash_function(tmp_path: Path) -> None:
    assert "SE005" in check(tmp_path, "BASH_FUNC_ls%%", "() { touch ran; }")


@Attempt("C18", "`ignore: [SE008]` in the spec itself", "does not count", "does not count")
def test_own_ignore(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(f"{SPEC}launch: {{env: {{PYTHONPATH: ./evil}}}}\nignore: [SE008]\n")
    answer = run_command("validate-config", file)
    assert answer.code == 1
    assert "SE008" in answer.text


@Attempt("C19", "`HARNESS_ALLOWED_CODE` in `launch.env`", "MD034", "MD034")
def test_own_consent(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(f"{SPEC}launch: {{env: {{HARNESS_ALLOWED_CODE: 0f3c}}}}\n")
    answer = run_command("validate-config", file)
    assert answer.code == 1
    assert "MD034" in answer.text


@Attempt(
    "C20",
    "`attn_implementation: org/kernels`, code of the Hub that `transformers` would load",
    "refused: not one of its values",
    "refused: not one of its values",
)
def test_hub_kernel(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("model: {", "model: {attn_implementation: evil/kernels, "))
    answer = run_command("validate-config", file)
    assert answer.code == 1
    assert "attn_implementation" in answer.text


def spec_with_code(folder: Path) -> RunSpec:
    (folder / "mine.py").write_text("x = 1\n")
    (folder / "m").mkdir()
    (folder / "m" / "modeling_m.py").write_text("y = 1\n")
    return RunSpec.model_validate(
        {
            "plugins": {"file": "mine.py"},
            "model": {"name_or_path": "./m", "trust_remote_code": True},
            "launch": {"env": {"PYTHONPATH": "./lib", "NCCL_DEBUG": "INFO"}},
        }
    )


@Attempt(
    "C21",
    "code among much else of a spec, allowed by `--allow-local-code` unseen",
    "the option named nothing of what it allowed",
    "each variable, and each file with its sha256, is named; settings are not",
)
def test_named(tmp_path: Path) -> None:
    found = verify_code_allowed(spec_with_code(tmp_path), tmp_path, allow_local_code=True)
    plugin, model = (hashlib.sha256(text).hexdigest() for text in (b"x = 1\n", b"y = 1\n"))
    assert found.sentences == (
        f"`plugins.file`: `mine.py`, sha256 {plugin}",
        f"`model.trust_remote_code`: `./m/modeling_m.py`, sha256 {model}",
        "`launch.env.PYTHONPATH`: Python imports modules from there",
    )


@Attempt(
    "C43",
    "a spec with `model.trust_remote_code: true` and a model folder of its own, at `launch` and `data`",
    "its Python files ran, after a warning",
    "MD157: they run with `--allow-local-code` alone",
)
def test_model_code_needs_consent(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text('{"model_type": "evil", "auto_map": {"AutoConfig": "evil.C"}}')
    (tmp_path / "m/evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    file = tmp_path / "spec.yaml"
    model = f"model: {{name_or_path: {tmp_path}/m, tokenizer: bytes, trust_remote_code: true, random_init: true}}"
    file.write_text(SPEC.replace(SPEC.splitlines()[0], model) + "launch: {num_gpus: 1}\n")
    for command in (("launch", "--dry-run"), ("data",)):
        answer = run_command(*command, file)
        assert answer.code == 1
        assert "MD157" in answer.text
    assert not (tmp_path / "ran").exists()


@Attempt(
    "C22",
    "a pipe called `modeling.py` in a model folder whose code is allowed",
    "files of the folder were not named",
    "named without a digest, and nothing waits",
)
def test_pipe_in_model_folder(tmp_path: Path) -> None:
    spec = spec_with_code(tmp_path)
    os.mkfifo(tmp_path / "m" / "a.py")
    found = verify_code_allowed(spec, tmp_path, allow_local_code=True)
    assert "`model.trust_remote_code`: `./m/a.py`, which cannot be read" in found.sentences


@Attempt(
    "C42",
    "a `.deepspeed_env` in the current folder, which DeepSpeed sends to every host",
    "not read: DS_ENV_FILE names the run's own file",
    "not read, also where the shell has another DS_ENV_FILE, and a note names it",
)
def test_deepspeed_env(tmp_path: Path) -> None:
    (tmp_path / ".deepspeed_env").write_text("LD_PRELOAD=/x\n")
    own = tmp_path / "run" / "deepspeed.env"
    environ = launcher_environment({"DS_ENV_FILE": "/evil", "PATH": "/bin"}, [], own)
    assert environ["DS_ENV_FILE"] == str(own)
    assert tmp_path / ".deepspeed_env" in ignored_env_files(tmp_path)


def test_table_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "security-code-table.md"
    assert page.read_text(encoding="utf-8") == render_table(), (
        "run `python -m tests.security.code_table > docs/security-code-table.md`"
    )


def test_each_way_is_held() -> None:
    attempts = {attempt.id for attempt, _ in read_attempts()}
    for way in CODE_PATHS:
        for name in way.held_by:
            assert name in attempts or run_command("explain", name).code == 0, (way.what, name)
