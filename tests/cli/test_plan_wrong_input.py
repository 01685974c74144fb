# SPDX-License-Identifier: Apache-2.0
"""`harness plan` with what has no effect: one sentence, a hint, exit code 2, nothing on stdout. Seconds."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from harness.cli.app import main
from harness.errors import ExitCode

SPEC = """\
name: small
model: {name_or_path: meta-llama/Llama-3.1-8B}
data: {train: "builtin:python-docs", max_length: 2048}
train: {max_steps: 10, per_device_train_batch_size: 1, gradient_checkpointing: true}
precision: {bf16: true}
zero: {stage: 3}
cluster: {gpu: H100, gpus_per_node: 8, host_memory: 1TB}
"""
RUN = "--model llama-3.1-8b --gpus 8 --gpu H100 "
KIND = "--model llama-3.1-8b --cheapest "
# the arguments; words of the sentence; words of the hint
CASES = (
    ("--model llama-3.1-8b --gpus 0 --gpu H100", "`--gpus 0` is not a number from 1", "a number from 1 to"),
    ("--model llama-3.1-8b --gpus -4 --gpu H100", "`--gpus -4` is not a number from 1", "a number from 1 to"),
    ("--model llama-3.1-8b --gpus 10000000 --gpu H100", "is not a number from 1 to 1,000,000", "`--gpus`"),
    ("--model llama-3.1-8b --gpus 1e3 --gpu H100", "'--gpus'", "Try"),
    ("--model llama-3.1-8b --gpus eight --gpu H100", "'--gpus'", "Try"),
    ("--model llama-3.1-8b --gpus 12 --gpu H100", "12 GPUs do not fill hosts of 8", "`--gpus-per-node`"),
    (RUN + "--gpus-per-node 0", "`--gpus-per-node 0` is not a number", "a number from 1 to"),
    ("--model llama-3.1-8b --gpus 8 --gpu H10", "GPU kind `H10` is not known", "choose one of the known kinds"),
    ("--model llama-3.1-8b --gpus 8 --gpu ''", "the value of `--gpu` is empty", "Try"),
    ("--model llama-3.1-8x --gpus 8 --gpu H100", "did you mean `llama-3.1-8b`", "a model of the catalogue"),
    ("--model empty --gpus 8 --gpu H100", "`empty/config.json` cannot be read", "name a folder"),
    ("--model llama-3.1-8b --gpus 8", "a plan needs a spec", "harness size --model"),
    ("--gpus 8 --gpu H100", "a plan needs a spec", "harness size --model"),
    (RUN + "--host-memory lots", "`lots` is not a size", "`2TB`"),
    (RUN + "--host-memory 0", "`--host-memory`: `0` is zero", "`2TB`"),
    (RUN + "--nvme 8*3TB", "`8*3TB` is not a size", "`8x3.5TB`"),
    (RUN + "--max-length 0", "`--max-length 0` is not a number", "a number from 1 to"),
    (RUN + "--batch-tokens nan", "`nan` is not a number above 0", "`70e9`"),
    (RUN + "--batch-tokens 1e30", "`1e30` is not a number above 0", "`70e9`"),
    (RUN + "--tokens inf", "`inf` is not a number above 0", "`70e9`"),
    (RUN + "--tokens -5", "`-5` is not a number above 0", "`70e9`"),
    (RUN + "--price nan --tokens 1e9", "`--price nan` is no price", "`2.5`"),
    (RUN + "--price -1", "`--price -1` is no price", "`2.5`"),
    (RUN + "--price 1e30", "`--price 1e30` is no price", "`2.5`"),
    (RUN + "--price 2 --price 3", "`--price` is given twice: 2 and 3", "`KIND=X`"),
    (RUN + "--price H100=2", "only `--cheapest` does", "add `--cheapest`"),
    (RUN + "--zero-stage 4", "`--zero-stage 4` is not a stage", "0, 1, 2 or 3"),
    (RUN + "--deadline 48 --tokens 1e9", "`--deadline 48` is no length of time", "`48h`"),
    (RUN + "--deadline 1e30h --tokens 1e9", "`--deadline 1e30h` is no length of time", "`48h`"),
    (RUN + "--measured fast", "`--measured`", "such as `70e9`"),
    (RUN + "--deadline 48h", "`--deadline` needs the tokens", "`--tokens 2e9`"),
    (RUN + "--format xml", "Invalid value for '--format': 'xml' is not one of", "Try"),
    (
        RUN + "--write no-folder/run.yaml",
        "`--write no-folder/run.yaml`: there is no such folder",
        "a folder that exists",
    ),
    (RUN + "--plot empty", "`--plot empty` is a folder", "name a file in it"),
    (RUN + "--longest --cheapest", "cannot be combined", "ask one"),
    (RUN + "--longest --min-gpus", "cannot be combined", "ask one"),
    (RUN + "--longest --deadline 3h", "`--deadline` has no effect with `--longest`", "leave `--deadline` out"),
    ("--model llama-3.1-8b --gpus 8 --gpu cpu --longest", "needs the memory of the GPU", "`cluster.gpu`"),
    ("--cheapest", "`--cheapest` needs a spec or `--model`", "harness size --model"),
    (KIND + "--price 2", "`--price` names none", "`--price KIND=X`"),
    (KIND + "--price H10=2", "names an unknown kind of GPU", "choose one of V100-16GB"),
    (KIND + "--price H100=cheap", "`--price H100=cheap` is no price", "`2.5`"),
    (KIND + "--price-file old.yaml", "is of 2020-01-01, which is more than a year ago", "`--price KIND=X`"),
    (KIND + "--price-file no-file.yaml", "`no-file.yaml` cannot be read", "a file of prices"),
    (KIND + "--price-file small.yaml", "`small.yaml` has no `date` or no `prices`", "`date: 2026-11-01`"),
    (KIND + "--gpus 12 --gpu H100", "12 GPUs do not fill hosts of 8", "a multiple of 8"),
    (KIND + "--gpu V100", "there is no price of V100-32GB", "`--price V100-32GB=X`"),
    (KIND + "--tokens 0", "`0` is not a number above 0", "`70e9`"),
    ("--largest-model", "`--largest-model` needs a cluster", "`--gpus`"),
    ("--largest-model " + RUN, "`--model` names one", "leave `--model` out"),
    ("small.yaml --model llama-3.1-8b", "a spec and `--model` are both given", "leave the spec out"),
    ("small.yaml --gpus 4", "a spec and `--gpus` are both given", "--set cluster.gpus_per_node=4"),
    ("small.yaml --gpu A100", "a spec and `--gpu` are both given", "--set cluster.gpu=A100"),
    ("small.yaml --zero-stage 2", "a spec and `--zero-stage` are both given", "--set zero.stage=2"),
    ("small.yaml --min-gpus", "a spec and `--min-gpus` are both given", "leave the spec out"),
    ("small.yaml --params 7e9", "a spec and `--params` are both given", "leave `--params` out"),
    ("small.yaml --write run.yaml", "there is nothing to write", "add `--search`"),
    (RUN + "--epochs 3", "`--epochs` needs the tokens", "`--tokens 2e9`"),
    (RUN + "--tokens 1e9 --epochs 0", "`--epochs 0` is no number of epochs", "give one above 0"),
    (
        RUN + "--precision fp8",
        "`harness launch` trains in no FP8, which GPUs before Ada do not have",
        "ask `harness degrees`",
    ),
    ("small.yaml --trace step.json", "`--trace` needs `--simulate`", "add `--simulate`"),
    ("small.yaml --simulate --trace empty", "`--trace empty` is a folder", "name a file in it"),
    (
        "small.yaml --simulate --trace no-folder/step.json",
        "`--trace no-folder/step.json`: there is no such folder",
        "a folder that exists",
    ),
    (
        "small.yaml --simulate --trace step.json --set parallel.pipeline_parallel_size=2 --set zero.stage=1"
        " --set train.gradient_accumulation_steps=8",
        "there is no step to trace",
        "leave `--trace` out",
    ),
    ("small.yaml --world-size 0", "'--world-size'", "Try"),
    ("small.yaml --hostfile no-hosts", "hostfile `no-hosts` cannot be read", "an existing hostfile"),
    ("no-file.yaml", "`no-file.yaml` cannot be read", "check the path"),
    ("empty", "`empty` is a directory, not a file", "name the file inside it"),
    ("--params 0", "`--params`: `0` is not a number above 0", "`70e9`"),
    ("--params 7x", "`7x` is not a number above 0", "`70e9`"),
    ("--params 1e30", "`1e30` is not a number above 0", "`70e9`"),
    ("--params 7e9 --tokens 1e9", "`--tokens` has no effect for a bare count", "`--model`"),
    ("--params 7e9 --gpus 0", "`--gpus 0` is not a number", "a number from 1 to"),
    ("--params 7e9 --gpu H10", "GPU kind `H10` is not known", "choose one of the known kinds"),
    ("--params 7e9 --zero-stage 7", "`--zero-stage 7` is not a stage", "0, 1, 2 or 3"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "empty").mkdir()
    (tmp_path / "small.yaml").write_text(SPEC, encoding="utf-8")
    (tmp_path / "old.yaml").write_text("date: 2020-01-01\nprices: {H100-80GB: 2}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


@pytest.mark.parametrize(("arguments", "sentence", "hint"), CASES, ids=[case[0] for case in CASES])
def test_one_sentence_a_hint_and_one_exit_code(
    arguments: str,
    sentence: str,
    hint: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["harness", "plan", *shlex.split(arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (ExitCode.USAGE, ""), err
    errors = [line for line in err.splitlines() if line.lower().startswith(("error", "error:"))]
    assert len(errors) == 1, err
    assert sentence in err
    hints = [line for line in err.splitlines() if line.startswith(("help:", "Try "))]
    assert len(hints) == 1, err
    assert hint in hints[0]
    assert "Traceback" not in err
    assert not [file for file in folder.iterdir() if file.name not in ("empty", "small.yaml", "old.yaml")]
