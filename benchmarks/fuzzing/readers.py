# SPDX-License-Identifier: Apache-2.0
"""The readers: files that are changed, and the command of the harness that reads them, called in this process."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.fuzzing.case_runner import HANG_SECONDS
from benchmarks.fuzzing.mutations import MAX_BYTES, mutate

ROOT = Path(__file__).resolve().parents[2]
FROZEN = ROOT / "tests/frozen"
_SPEC = """\
model: {config: {model_type: llama, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, vocab_size: 259}}
data: {train: builtin:python-docs, max_length: 64}
train: {per_device_train_batch_size: 1, max_steps: 3}
zero: {stage: 3}
"""


PROBE_SECONDS = 30.0
"""Where `plan` asks `transformers` about a family that is not built in. Its import counts: 15 s where nothing is
compiled.
"""


@dataclass(frozen=True)
class Reader:
    """A kind of input. `seeds`: files that are right, by name in the scratch folder. `commands`: one is drawn, and
    called there after `prepare` has put the other files there; a name alone is a function of `CALLS`.
    """

    name: str
    seeds: Callable[[], Sequence[tuple[str, bytes]]]
    commands: Sequence[Sequence[str]]
    prepare: Callable[[Path], None] = lambda _: None
    max_bytes: int = MAX_BYTES
    hang_seconds: float = HANG_SECONDS


def _texts_of(*patterns: str) -> Sequence[bytes]:
    return [path.read_bytes() for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def _named(name: str, contents: Sequence[bytes]) -> Sequence[tuple[str, bytes]]:
    return [(name, content) for content in contents]


_ACCELERATE = b"""\
compute_environment: LOCAL_MACHINE
deepspeed_config:
  zero_stage: 3
  gradient_accumulation_steps: 4
  offload_optimizer_device: cpu
  zero3_init_flag: true
  deepspeed_hostfile: hosts
distributed_type: DEEPSPEED
main_process_ip: 10.0.0.1
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
_LLAMA_FACTORY = b"""\
model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
finetuning_type: full
deepspeed: ds.json
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-5
bf16: true
"""
_AXOLOTL = b"""\
base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
  - {path: data.jsonl, type: chat_template, field_messages: messages}
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 2
optimizer: adamw_torch
deepspeed: ds.json
bf16: auto
"""
_SCRIPT = b"""\
#!/bin/bash
export NCCL_DEBUG=INFO
llamafactory-cli train --stage sft --finetuning_type full --template llama3 --dataset identity \\
  --model_name_or_path meta-llama/Llama-3.1-8B --deepspeed ds.json --bf16 True \\
  --per_device_train_batch_size 2 --learning_rate 2e-5 --output_dir "out put"
"""
_HOSTS = b"node1 slots=8\nnode2 slots=8  # spare\n\nnode3 slots=4\n"
_NODES = b"node[01-03,07],login,gpu[1-4]-ib"


def _run_seeds() -> Sequence[tuple[str, bytes]]:
    run = _frozen_run()
    names = (
        "metrics.jsonl",
        "plan.json",
        "launch.json",
        "verdict.json",
        "findings.json",
        "engine_checks.json",
        "spec.yaml",
        "spec.resolved.json",
        "ds_config.json",
        "deepspeed.env",
        "launch.sh",
        "status/rank-00000.json",
        "logs/launcher.log",
        "checkpoints/evaluations.json",
        "checkpoints/latest",
        "data/meta.json",
        "data/sizes.json",
        "restarts.json",
    )
    attempts = {
        "format_version": 1,
        "attempts": [{"attempt": 1, "time": 1.0, "code": 1, "reason": "killed", "hosts": ["a"]}],
    }
    made = {"restarts.json": json.dumps(attempts).encode()}
    return [(f"run/{n}", made.get(n) or (run / n).read_bytes()) for n in names if n in made or (run / n).is_file()]


@cache
def _frozen_run() -> Path:
    return min(FROZEN.glob("*/runs/zero2-*"))


def _copy_run(folder: Path) -> None:
    if not (folder / "run").exists():
        shutil.copytree(_frozen_run(), folder / "run", ignore=shutil.ignore_patterns("*.pt", "*.npy"))


def _manifest_seeds() -> Sequence[tuple[str, bytes]]:
    folder = min((_frozen_run() / "checkpoints").glob("step-*"))
    return [
        (f"run/checkpoints/{folder.name}/manifest.json", (folder / "manifest.json").read_bytes()),
        ("run/checkpoints/latest", (folder.parent / "latest").read_bytes()),
        ("run/checkpoints/evaluations.json", (folder.parent / "evaluations.json").read_bytes()),
    ]


def _copy_checkpoints(folder: Path) -> None:
    if not (folder / "run").exists():
        shutil.copytree(_frozen_run(), folder / "run")


def _model_seeds() -> Sequence[tuple[str, bytes]]:
    folder = min((_frozen_run() / "checkpoints").glob("step-*/huggingface"))
    names = ("config.json", "tokenizer_config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja")
    seeds = [(f"m/{name}", (folder / name).read_bytes()) for name in names]
    index = {"metadata": {"total_size": 8}, "weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}
    return [*seeds, ("m/model.safetensors.index.json", json.dumps(index).encode())]


def _copy_model(folder: Path) -> None:
    model = folder / "m"
    model.mkdir(exist_ok=True)
    for name, content in _model_seeds():
        if not (folder / name).exists():
            (folder / name).write_bytes(content)
    spec = _SPEC.replace(_SPEC.splitlines()[0], "model: {name_or_path: ./m}") + "launch: {num_gpus: 2}\n"
    (folder / "spec.yaml").write_text(spec)


def _safetensors_seeds() -> Sequence[tuple[str, bytes]]:
    head = {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "__metadata__": {"format": "pt"}}
    head |= {"b": {"dtype": "BF16", "shape": [4], "data_offsets": [16, 24]}}
    text = json.dumps(head).encode()
    return [("m/model.safetensors", len(text).to_bytes(8, "little") + text + bytes(24))]


def _write_spec(folder: Path) -> None:
    (folder / "spec.yaml").write_text(_SPEC + "launch: {hostfile: hosts}\n")
    (folder / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}')


def _write_ssh(folder: Path) -> None:
    _write_spec(folder)
    (folder / "hosts").write_bytes(b"node1 slots=1\nnode2 slots=1\n")
    ssh = folder / "bin/ssh"
    ssh.parent.mkdir(exist_ok=True)
    ssh.write_text('#!/bin/sh\ncat >/dev/null\ncat "$HARNESS_FUZZED_ANSWER"\n')
    ssh.chmod(0o755)


def _answers() -> Sequence[tuple[str, bytes]]:
    facts = {
        "time": 1.8e9,
        "took": 0.01,
        "hostname": "node1",
        "machine": "m/net:[1]",
        "python": "3.11.7",
        "code": {"/h": "ab"},
        "packages": {"torch": "2.13.0", "deepspeed": "0.19.8"},
        "accelerators": [{"name": "NVIDIA H100"}],
        "cores": 2,
        "numa_nodes": 1,
        "memory": {"total": 10**11, "available": 10**10},
        "memlock": 8388608,
        "nofile": 20000,
        "shm": 10**9,
        "folders": {
            "launch.output_dir": {"path": "/r", "exists": True, "writable": True, "free": 10**12, "filesystem": "nfs"}
        },
        "marks": {},
        "compiler": "/usr/bin/c++",
        "own_addresses": ["10.0.0.1"],
        "ports": {"29500": "free"},
        "interfaces": [{"name": "eth0", "address": "10.0.0.1", "prefix": 24, "loopback": False}],
    }
    return [("answer", b"HARNESS-PROBE " + json.dumps(facts).encode() + b"\n")]


def _read_nodes(folder: Path) -> int:
    from harness.spec.host_selection import slurm_hosts

    text = (folder / "nodes").read_bytes().decode("utf-8", "surrogateescape")
    slurm_hosts({"SLURM_JOB_NODELIST": text, "SLURM_TASKS_PER_NODE": text, "SLURM_GPUS_ON_NODE": text[:40]})
    return 0


def _open_tensors(folder: Path) -> int:
    from safetensors import SafetensorError

    from harness.runtime.models.safetensors_reader import open_safetensors
    from harness.spec.run_spec import ModelSpec

    try:
        files = open_safetensors(ModelSpec(name_or_path=str(folder / "m")))
        if files is not None:
            import torch

            for name, shape in files.shapes.items():
                files.read_into(name, torch.empty(shape))
    except (SafetensorError, OSError, ValueError, RuntimeError):
        return 1
    return 0


CALLS: dict[str, Callable[[Path], int]] = {"nodes": _read_nodes, "tensors": _open_tensors}
_VALIDATE = [["validate-config", "FILE", "--format", form] for form in ("text", "json", "sarif", "github")]
READERS: Sequence[Reader] = (
    Reader(
        "run spec",
        lambda: _named("spec.yaml", _texts_of("ds_configs/*.yaml")),
        [*_VALIDATE, ["plan", "FILE"], ["render", "FILE"], ["validate-config", "--fix", "FILE"]],
        hang_seconds=PROBE_SECONDS,
    ),
    Reader(
        "DeepSpeed JSON",
        lambda: _named("ds.json", _texts_of("ds_configs/*.json", "tests/frozen/*/*.json")),
        [*_VALIDATE, ["adopt", "FILE"], ["upgrade-check", "FILE", "--from", "0.16.9", "--to", "0.19.8"]],
    ),
    Reader(
        "accelerate YAML",
        lambda: _named("accelerate.yaml", [_ACCELERATE]),
        [*_VALIDATE, ["adopt", "FILE"]],
        _write_spec,
    ),
    Reader(
        "other programs",
        lambda: [("a.yaml", _LLAMA_FACTORY), ("a.yaml", _AXOLOTL), ("a.sh", _SCRIPT)],
        [["adopt", "FILE"], ["validate-config", "FILE"]],
        _write_spec,
    ),
    Reader(
        "hostfile",
        lambda: _named("hosts", [_HOSTS, *_texts_of("hostfiles/*-*")]),
        [["validate-config", "spec.yaml"], ["plan", "spec.yaml"], ["launch", "--dry-run", "spec.yaml"]],
        _write_spec,
    ),
    Reader("Slurm node list", lambda: _named("nodes", [_NODES]), [["nodes"]]),
    Reader(
        "preflight answer",
        _answers,
        [["preflight", "spec.yaml"], ["preflight", "spec.yaml", "--format", "json"]],
        _write_ssh,
    ),
    Reader(
        "model folder",
        _model_seeds,
        [["validate-config", "spec.yaml"], ["plan", "spec.yaml"]],
        _copy_model,
        hang_seconds=PROBE_SECONDS,
    ),
    Reader("safetensors", _safetensors_seeds, [["tensors"]]),
    Reader(
        "manifest",
        _manifest_seeds,
        [
            ["checkpoint", "ls", "run"],
            ["checkpoint", "show", "run"],
            ["checkpoint", "verify", "--quick", "run"],
            ["checkpoint", "verify", "run", "--format", "json"],
            ["checkpoint", "diff", "run", "run"],
        ],
        _copy_checkpoints,
    ),
    Reader(
        "run directory",
        _run_seeds,
        [
            ["report", "run", "-o", "out.html"],
            ["runs", "."],
            ["runs", ".", "--format", "json"],
            ["explain", "--log", "run"],
            ["explain", "--log", "run", "--format", "json"],
        ],
        _copy_run,
    ),
    Reader(
        "log",
        lambda: _named("job.log", _texts_of("tests/logs/cases/*/*.log", "tests/logs/cases/*/*.txt")),
        [
            ["explain", "--log", "FILE"],
            ["explain", "--log", "FILE", "--format", "json"],
            ["explain", "--log", "FILE", "--redact"],
        ],
        max_bytes=2 << 20,  # the reader is linear: up to 0.5 s a megabyte where each line is a failure
    ),
)


def call_reader(name: str, command: Sequence[str], folder: Path) -> int:
    """Read the file `name` by `command` in `folder`; for a child process, whose state it changes."""
    os.chdir(folder)
    if command[0] in CALLS and len(command) == 1:
        return CALLS[command[0]](folder)
    from harness.cli.app import main

    os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    os.environ |= {"HARNESS_FUZZED_ANSWER": str(folder / "answer"), "TMPDIR": str(folder)}
    sys.argv = ["harness", *(name if word == "FILE" else word for word in command)]
    return main()


def draw_case(reader: Reader, chance: random.Random) -> tuple[str, bytes, Sequence[str]]:
    """The name of a file, its changed content, and a command."""
    seeds = reader.seeds()
    name, content = chance.choice(seeds)
    others = [other for _, other in seeds]
    return name, mutate(content, others, chance, reader.max_bytes), chance.choice(reader.commands)
