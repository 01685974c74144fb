# SPDX-License-Identifier: Apache-2.0
"""`harness.watch` and `HarnessCallback` inside installations of other programs: the files of docs/engine-checks.md.

    python benchmarks/watch_programs.py trl=/envs/trl/bin/python axolotl=... [--stages 2 3] [--write]

Programs: accelerate, trl, axolotl, llamafactory, ms-swift, each with the interpreter that has it. Two gloo ranks train
a tiny model for 50 steps at each ZeRO stage. A correct training must end with no difference, and one whose optimizer
steps twice must be stopped. `--write` puts the table into `benchmarks/results/watch-programs-DATE.md`. With
HARNESS_NIGHTLY=1 and the variable WATCH_PROGRAMS (the same arguments)
`tests/training/engine_watch/test_watch_programs.py` runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "tests" / "training" / "jobs" / "run_program.py"
PAGE = ROOT / "docs" / "engine-checks.md"
RANKS, STEPS, LIMIT_S, FAULT = 2, 50, 900, "stepped-twice"
sys.path.insert(0, str(ROOT))

from harness.hostinfo.torch_extensions import VARIABLE, torch_extensions_dir  # noqa: E402
from harness.launching.hosts.local_host import find_free_port  # noqa: E402
from tests.support.markdown_blocks import read_blocks  # noqa: E402

_TRAIN = {"output_dir": "out", "gradient_accumulation_steps": 2, "learning_rate": 1e-3, "weight_decay": 0.01}
_TRAIN |= {"max_steps": STEPS, "deepspeed": "ds_config.json"}
_AXOLOTL = {
    **_TRAIN,
    "base_model": "model",
    "datasets": [{"path": "text.jsonl", "type": "completion", "ds_type": "json"}],
    "sequence_len": 32,
    "micro_batch_size": 2,
    "optimizer": "adamw_torch",
    "lr_scheduler": "cosine",
    "bf16": False,
    "save_strategy": "no",
    "plugins": ["harness_plugin.HarnessPlugin"],
}
_FACTORY = {
    **_TRAIN,
    "model_name_or_path": "model",
    "stage": "pt",
    "do_train": True,
    "finetuning_type": "full",
    "dataset": "rows",
    "dataset_dir": ".",
    "cutoff_len": 32,
    "per_device_train_batch_size": 2,
    "save_strategy": "no",
    "report_to": "none",
}
_SWIFT = {
    **_TRAIN,
    "model": "model",
    "model_type": "llama",
    "template": "llama3_2",
    "tuner_type": "full",
    "torch_dtype": "float32",
    "fp16": False,
    "dataset": "messages.jsonl",
    "max_length": 512,  # the bytes of the template, too
    "per_device_train_batch_size": 2,
    "save_strategy": "no",
    "report_to": "none",
    "external_plugins": "swift_plugin.py",
    "callbacks": "harness",
}
COMMANDS = {
    "accelerate": ["train_accelerate.py"],
    "trl": ["train_trl.py"],
    "axolotl": ["-m", "axolotl.cli.train", "axolotl.yaml"],
    "llamafactory": ["train_factory.py", "factory.yaml"],
    "ms-swift": ["-m", "swift.cli.sft", *(part for key, value in _SWIFT.items() for part in (f"--{key}", str(value)))],
}


class Outcome(NamedTuple):
    """How a training ended: exit codes, steps that the watch saw, checks that hold and that differ, the last lines."""

    codes: list[int]
    steps: int
    holds: int
    differs: list[str]
    text: str


def write_files(folder: Path, stage: int) -> None:
    """The files of the page with this stage, a tiny model, and data in the form of each program."""
    for block in read_blocks(PAGE):
        if block.file and block.language in ("python", "json"):
            text = block.text.replace('"stage": 2', f'"stage": {stage}').replace("range(5)", f"range({STEPS})")
            (folder / block.file).write_text(text, encoding="utf-8")
    texts = [f"row {number} of a small corpus" for number in range(64)]
    messages = [{"messages": [{"role": "user", "content": t}, {"role": "assistant", "content": t}]} for t in texts]
    for name, rows in (("text.jsonl", [{"text": text} for text in texts]), ("messages.jsonl", messages)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    info = {"rows": {"file_name": "text.jsonl", "columns": {"prompt": "text"}}}
    for name, values in (("dataset_info.json", info), ("axolotl.yaml", _AXOLOTL), ("factory.yaml", _FACTORY)):
        (folder / name).write_text(json.dumps(values), encoding="utf-8")  # YAML, too
    _write_model(folder / "model")


def _write_model(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bytes_ = pre_tokenizers.ByteLevel.alphabet()
    tokens = ["<pad>", "<s>", "</s>", *sorted(bytes_)]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, vocab_size=len(tokens), **sizes, **ids)).save_pretrained(folder)


def train(program: str, python: str, stage: int, fault: str = "none") -> Outcome:
    """Train with the program in this interpreter, on two ranks."""
    with tempfile.TemporaryDirectory(prefix="watch-program-") as scratch:
        folder, port = Path(scratch), str(find_free_port())
        write_files(folder, stage)
        if (
            program == "ms-swift"
        ):  # 4.6 reads the groups of the optimizer, which accelerate's stand-in for DeepSpeed's lacks
            config = json.loads((folder / "ds_config.json").read_text(encoding="utf-8"))
            del config["optimizer"]
            (folder / "ds_config.json").write_text(json.dumps(config), encoding="utf-8")
        logs = [folder / f"{rank}.log" for rank in range(RANKS)]
        ranks = []
        for rank, log in enumerate(logs):
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            environment |= {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
            environment |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "CUDA_VISIBLE_DEVICES": "",
                "HF_HUB_OFFLINE": "1",
            }
            environment |= {"DS_ACCELERATOR": "cpu", "AXOLOTL_DO_NOT_TRACK": "1"}
            environment |= {VARIABLE: str(torch_extensions_dir())}
            command = [python, "-W", "ignore", str(JOB), fault, *COMMANDS[program]]
            with log.open("w") as stream:
                process = subprocess.Popen(
                    command, cwd=folder, env=environment, stdout=stream, stderr=subprocess.STDOUT
                )
                ranks.append(process)
        try:
            codes = [process.wait(LIMIT_S) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        text = logs[0].read_text(errors="replace")
        files = [*folder.glob("engine_checks.json"), *folder.glob("out/**/engine_checks.json")]
        values = json.loads(files[0].read_text(encoding="utf-8")) if files else {}
        states = [claim["state"] for claim in values.get("claims", ())]
        differs = [claim["id"] for claim in values.get("claims", ()) if claim["state"] == "differs"]
        lines = [line for line in text.splitlines() if "harness" in line or "Error" in line] or text.splitlines()
        return Outcome(codes, values.get("steps", 0), states.count("holds"), differs, "\n".join(lines[-4:])[:600])


def judge(outcome: Outcome, fault: str) -> str:
    """`passed`, or what was not as it should be."""
    if fault == "none":
        is_right = not any(outcome.codes) and outcome.steps >= STEPS and outcome.holds and not outcome.differs
    else:
        is_right = all(outcome.codes) and outcome.differs and 0 < outcome.steps <= 3
    return "passed" if is_right else f"FAILED: {outcome}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", metavar="PROGRAM=PYTHON", help=f"of {', '.join(COMMANDS)}")
    parser.add_argument("--stages", nargs="+", type=int, default=[2, 3])
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows, has_failed = [], False
    for text in arguments.programs:
        program, _, python = text.partition("=")
        versions = find_versions(python, program)
        for stage in arguments.stages:
            for fault in ("none", FAULT):
                outcome = train(program, python, stage, fault)
                verdict = judge(outcome, fault)
                has_failed = has_failed or verdict != "passed"
                print(f"{program} {versions} ZeRO-{stage} {fault}: {verdict}", flush=True)
                cells = [program, versions, str(stage), fault, str(outcome.steps), str(outcome.holds)]
                rows.append(f"| {' | '.join([*cells, ' '.join(outcome.differs), verdict.partition(':')[0]])} |")
    if arguments.write:
        today = datetime.now(UTC).date().isoformat()
        head = "| Program | Releases | ZeRO | Fault | Steps | Hold | Differ | Verdict |\n" + "| --- " * 8 + "|\n"
        title = f"# `HarnessCallback` in other programs, {today}\n\n`python benchmarks/watch_programs.py`\n\n"
        file = ROOT / "benchmarks" / "results" / f"watch-programs-{today}.md"
        file.write_text(title + head + "\n".join(rows) + "\n", encoding="utf-8")
    return int(has_failed)


def find_versions(python: str, program: str) -> str:
    """The releases of the program, transformers and DeepSpeed in this interpreter."""
    code = "import sys, importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
    command = [python, "-c", code, *dict.fromkeys([program, "transformers", "deepspeed", "accelerate"])]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
