# SPDX-License-Identifier: Apache-2.0
"""Ten drawn examples of LLaMA-Factory, axolotl, TRL and ms-swift: their tokens and labels, and five steps of training.

The examples, their stand-ins and their made-up records are those of `adopt_examples.py`. Each is drawn by a seed among
those that `adopt` converts without a setting left to the user; where the program itself gives no rows, the next is
drawn. The program tokenizes by its own command, up to its first step (`program_rows.py`), and the harness by
`harness data`; ids and labels of all sequences are compared. Then `harness launch` trains five steps. The programs come
from the overlays of `import_cells.py`.

    python benchmarks/adopt_training.py LLaMA-Factory axolotl trl ms-swift [--seed 59]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import adopt_examples
import yaml
from adopt_examples import ANSWER, COUNTERS, OTHER_LOSSES, Example, make_tokenizer, replace_hub_datasets, use_stand_ins
from import_cells import program_overlay

ROOT = Path(__file__).resolve().parents[1]
DRAWN = {"LLaMA-Factory": 3, "axolotl": 3, "TRL": 3, "ms-swift": 2}
"""In the proportion of the examples that go through whole (2026-11-29: 21, 30, 25 and 18)."""
OVERLAYS = {"LLaMA-Factory": "llamafactory", "axolotl": "axolotl", "TRL": "trl", "ms-swift": "swift"}
STEPS, RECORDS, LIMIT_S = 5, 60, 5000
NOT_HERE = re.compile(
    r"^(bf16|fp16|tf32|.*flash_att.*|load_in_.bit|deepspeed|fsdp.*|plugins|liger_.*|wandb.*|hub_.*|lora_\w+_kernel|"
    r"cut_cross_entropy|quantization.*|report_to|use_unsloth.*|double_quantization|unfrozen_parameters|device_map|"
    r"mlflow.*|comet.*|auto_resume.*|resume_from_checkpoint|push_dataset_to_hub|trackio.*|torch_compile|"
    r"sample_packing|eval_sample_packing|pad_to_sequence_len|packing|neat_packing|flex_attention|warmup_ratio|plot_loss|attn_implementation|flash_attn)$"
)
"""Keys of an example that need a GPU or a network, or put several records into a row; none decides about tokens."""
YAML_SETTINGS = {
    "LLaMA-Factory": {"bf16": False, "report_to": "none", "val_size": 0.0, "eval_strategy": "no", "max_steps": STEPS},
    "axolotl": {
        "bf16": False,
        "val_set_size": 0,
        "optimizer": "adamw_torch",
        "lora_qkv_kernel": False,
        "lora_mlp_kernel": False,
        "lora_o_kernel": False,
        "test_datasets": None,
        "micro_batch_size": 1,
    },
}
COMMAND_SETTINGS = {
    "TRL": "--bf16 False --report_to none --attn_implementation eager --eval_strategy no --load_in_4bit"
    " False --push_to_hub False --max_steps 5",
    "ms-swift": "--torch_dtype float32 --bf16 False --report_to none --attn_impl eager --packing false"
    " --padding_free false --use_liger_kernel false --split_dataset_ratio 0 --eval_strategy no --max_steps 5",
}
MAX_PARAMETERS = 20_000_000
LLAMA = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "eos_token_id": 257,
         "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": None, "pad_token_id": None}  # fmt: skip
SMALL = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_intermediate_size": 32,
         "shared_expert_intermediate_size": 32, "num_experts_per_tok": 2, "head_dim": 16, "linear_num_key_heads": 2,
         "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "mamba_d_state": 16,
         "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16}  # fmt: skip
WRAPPER = 'import json, os, sys\nopen(os.environ["ARGUMENTS"], "a").write(json.dumps(sys.argv) + "\\n")\n'


class Result(NamedTuple):
    example: Example
    equal: int = 0
    theirs: int = 0
    ours: int = 0
    trained: bool = False
    problem: str = ""


def vary(value: Any, number: int) -> Any:
    """The value with other numbers, lengths and letters in its texts; every third chat has two more turns."""
    if isinstance(value, str):
        if value.startswith(ANSWER[:20]):
            return f"{number} is é prime {'数 ' * (number % 3)}, I say. " * (1 + number % 7)
        return value.replace("11", str(number)).replace("above 10", f"above {number}\n")
    if isinstance(value, dict):
        return {key: vary(part, number) for key, part in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        varied = [vary(part, number) for part in value]
        return varied + [vary(part, number + 100) for part in value] if number % 3 == 1 and len(value) == 2 else varied
    return value


def write_records(folder: Path, record: dict[str, Any], name: str) -> str:
    path = folder / f"records-{hashlib.sha256(name.encode()).hexdigest()[:8]}" / "train.jsonl"
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps(vary(record, number), ensure_ascii=False) for number in range(RECORDS)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    is_folder = folder.name == "trl" or name.endswith("pretraining_dataset")  # neither takes a file
    return str(path.parent if is_folder else path)


def fill_models(folder: Path) -> None:
    """Random weights for the stand-ins; a Llama's where the family has no small ones."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    for place in {path.parent for path in folder.glob("*/config.json")}:
        if (place / "filled").exists():
            continue
        config = AutoConfig.from_pretrained(place)
        has_text = type(config) in AutoModelForCausalLM._model_mapping
        kind: Any = AutoModelForCausalLM if has_text else AutoModelForImageTextToText
        with torch.device("meta"):
            size = kind.from_config(config).num_parameters()
        if size > MAX_PARAMETERS:
            config, kind, size = shrink(config)
        torch.manual_seed(59)
        kind.from_config(config).to(torch.float32).save_pretrained(place)
        (place / "filled").touch()
        make_tokenizer(place)
        if template := known_template(place.name):
            (place / "chat_template.jinja").write_text(template, encoding="utf-8")


def known_template(name: str) -> str:
    """The chat template of the model's family, of those that TRL ships; empty where it has none."""
    folder = program_overlay("trl") / "trl" / "chat_templates"
    plain = re.sub(r"[^a-z0-9]", "", re.sub(r"[-_]\d+(\.\d+)?[bm]\b", "", name.lower()))  # less its size
    found = [path for path in folder.glob("*.jinja") if path.stem.replace("_", "") in plain]
    return max(found, key=lambda path: len(path.stem)).read_text(encoding="utf-8") if found else ""


def shrink(config: Any) -> tuple[Any, Any, int]:
    """(configuration, class, parameters) of the same family with small parts; else of a Llama."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    small, causal = {**LLAMA, **SMALL}, cast(Any, AutoModelForCausalLM)

    def cut(values: dict[str, Any]) -> dict[str, Any]:
        values = {key: cut(part) if isinstance(part, dict) else small.get(key, part) for key, part in values.items()}
        if isinstance(values.get("layer_types"), list):
            values["layer_types"] = values["layer_types"][-2:]
        return values

    text = config.get_text_config()
    try:
        config = AutoConfig.for_model(
            text.model_type, **{k: v for k, v in cut(text.to_dict()).items() if k != "model_type"}
        )
        with torch.device("meta"):
            size = causal.from_config(config).num_parameters()
        if size <= MAX_PARAMETERS:
            return config, AutoModelForCausalLM, size
        print(f"{config.model_type}: {size:,} parameters; a Llama stands in")
    except Exception as error:
        print(f"{text.model_type}: {type(error).__name__}: {error}; a Llama stands in")
    return AutoConfig.for_model("llama", **LLAMA), AutoModelForCausalLM, 0


def harness(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300", "DS_ACCELERATOR": "cpu"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def draw(examples: list[tuple[Example, Path]], seed: int, only: str) -> Iterator[tuple[Example, Path]]:
    """The examples of a program in the order of the seed, as far as `adopt` converts them whole."""
    for example, folder in random.Random(seed).sample(examples, len(examples)):  # noqa: S311 - a draw
        if OTHER_LOSSES.search(example.path.read_text(encoding="utf-8") + example.name):
            continue
        if not re.search(only, example.name):
            continue
        use_stand_ins(example, folder)
        answer = harness(["adopt", str(example.path), "-o", "spec.yaml"], folder)
        print(f"  {answer.returncode} {example.name}", file=sys.stderr, flush=True)
        if answer.returncode == 0 and not re.search(r"set `data\.(train|eval)`|a placeholder", answer.stderr):
            fill_models(folder)
            harness(["adopt", str(example.path), "-o", "spec.yaml"], folder)
            yield example, folder


def program_arguments(example: Example, folder: Path) -> list[str]:
    """What the example's own command gives its program, less what needs a GPU."""
    if example.path.suffix != ".sh":
        data = yaml.safe_load(example.path.read_text(encoding="utf-8"))
        data = {
            key: value
            for key, value in data.items()
            if not NOT_HERE.match(key) or (key == "sample_packing" and "pretraining_dataset" in data)
        }
        if example.program == "TRL":
            parts = [f"--{key}={value}" for key, value in data.items() if key not in ("report_to",)]
            return ["sft", *parts, *COMMAND_SETTINGS["TRL"].split(), "--output_dir", "out"]
        data |= {**YAML_SETTINGS[example.program], "output_dir": "out"}
        if data.get("adapter") == "qlora":
            data["adapter"] = "lora"
        file = folder / "program.yaml"
        file.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
        return [str(file)]
    commands = record_commands(example.path, folder)
    for command in commands:
        words = command[1:]
        matches = [
            (i, re.fullmatch(r"(?:.*/)?(sft|dpo|kto|reward|rlhf|pt)\w*(?:\.py)?", w)) for i, w in enumerate(words)
        ]
        at, name = next(((i, match[1]) for i, match in matches if match is not None), (0, ""))
        if name:
            words = [name_as_published(word, folder) for word in words]
            removed = {"TRL": "num_processes|accelerate_config|packing", "ms-swift": "deepspeed"}[example.program]
            words[at + 1 :] = re.sub(rf"--({removed}) \S+", "", " ".join(words[at + 1 :])).split()
            return [name, *words[at + 1 :], *COMMAND_SETTINGS[example.program].split(), "--output_dir", "out"]
    raise ValueError(f"{example.name}: no command of a training: {commands}")


def name_as_published(word: str, folder: Path) -> str:
    """A stand-in under the last part of its model's name, by which ms-swift knows it."""
    if not word.startswith(str(folder)) or not (Path(word) / "config.json").exists():
        return word
    link = folder / "named" / Path(word).name.rsplit("--", 1)[-1]
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(word)
    return str(link)


def record_commands(script: Path, folder: Path) -> list[list[str]]:
    """The commands of a script with all their arguments, by programs that only note them."""
    places = folder / "noted"
    places.mkdir(exist_ok=True)
    for name in ("swift", "trl", "accelerate", "torchrun", "deepspeed", "python", "python3", "uv", "pip", "hf"):
        (places / name).write_text(f"#!{sys.executable}\n{WRAPPER}", encoding="utf-8")
        (places / name).chmod(0o755)
    file = folder / "arguments.jsonl"
    file.unlink(missing_ok=True)
    environment = {"PATH": f"{places}:/usr/bin:/bin", "ARGUMENTS": str(file)}
    subprocess.run(
        ["/bin/bash", str(script)], cwd=folder, env=environment, capture_output=True, check=False, timeout=60
    )
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def read_theirs(example: Example, folder: Path) -> Counter[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(ids, labels) of each sequence of the program. Raises RuntimeError with the end of its log."""
    rows = folder / "rows.jsonl"
    rows.unlink(missing_ok=True)
    shutil.rmtree(folder / "last_run_prepared", ignore_errors=True)
    arguments = program_arguments(example, folder)
    command = [sys.executable, str(Path(__file__).parent / "program_rows.py"), str(rows), example.program, *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": str(program_overlay(OVERLAYS[example.program])),
        "CUDA_VISIBLE_DEVICES": "",
    }
    environment |= {"DISABLE_VERSION_CHECK": "1", "WANDB_MODE": "disabled", "HF_HOME": str(folder / "cache")}
    environment |= {"AXOLOTL_DO_NOT_TRACK": "1", "HF_DATASETS_CACHE": str(folder / "cache"), "MASTER_PORT": "29959"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode or not rows.exists():
        raise RuntimeError((done.stdout[-500:] + done.stderr)[-3000:])
    lines = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    return Counter(mask_first(line["ids"], line["labels"]) for line in lines)


def mask_first(ids: list[int], labels: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Nothing predicts the first token of a sequence, whatever its label says."""
    return tuple(ids), (-100, *labels[1:])


def read_ours(folder: Path) -> Counter[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(ids, labels) of each document that `harness data` prepares. Raises RuntimeError."""
    from harness.runtime.dataset.preparation import PreparedGroup
    from harness.runtime.dataset.token_dataset import DocumentDataset, open_token_dataset

    answer = harness(["data", "spec.yaml", "--format", "json", *small(), "--set", "data.num_proc=1"], folder)
    if answer.returncode:
        raise RuntimeError(answer.stdout[-2000:] + answer.stderr[-2000:])
    body = json.loads(answer.stdout)
    cache, found = Path(body["cache"]), Counter[tuple[tuple[int, ...], tuple[int, ...]]]()
    groups = tuple(PreparedGroup(**{**part, "lengths": ()} if "lengths" in part else part) for part in body["train"])
    for group in open_token_dataset(cache, groups, body["max_length"], 0).sources:
        tokens = group.tokens.tolist()
        if not isinstance(group, DocumentDataset):  # a stream of texts, each with its end
            end = tokens[-1]
            while tokens:
                cut = tokens.index(end) + 1
                found[mask_first(tokens[:cut], tokens[:cut])] += 1
                tokens = tokens[cut:]
            continue
        mask = [True] * len(tokens) if group.trained_mask is None else group.trained_mask.tolist()
        labels = [i if is_trained else -100 for i, is_trained in zip(tokens, mask, strict=True)]
        edges = group.document_offsets.tolist()
        for number, (first, last) in enumerate(pairwise(edges)):
            cuts = [first, last]
            if group.num_chosen is not None:
                cuts = sorted({first, first + int(group.num_chosen[number]), last})
            for start, stop in pairwise(cuts):
                found[mask_first(tokens[start:stop], labels[start:stop])] += 1
    return found


def small() -> list[str]:
    settings = ["data.eval_fraction=0.0", f"train.max_steps={STEPS}", "train.per_device_train_batch_size=1"]
    settings += ["train.gradient_accumulation_steps=1", "train.num_train_epochs=null", "launch.num_gpus=1"]
    return [part for setting in settings for part in ("--set", setting)]


def try_example(example: Example, folder: Path, *, trains: bool) -> Result:
    try:
        ours, theirs = read_ours(folder), read_theirs(example, folder)
    except (RuntimeError, ValueError, subprocess.SubprocessError) as error:
        return Result(example, problem=str(error))
    equal = (ours & theirs).total()
    result = Result(example, equal, theirs.total(), ours.total())
    if ours != theirs:
        for name, rest in (("ours", ours - theirs), ("theirs", theirs - ours)):
            (folder / f"only-{name}.json").write_text(json.dumps(list(rest)[:20]), encoding="utf-8")
    if not trains:
        return result
    try:
        trained = harness(["launch", "spec.yaml", *small()], folder)
    except subprocess.TimeoutExpired as error:
        return result._replace(problem=str(error))
    return result._replace(trained=trained.returncode == 0, problem=trained.stdout[-1500:] + trained.stderr[-1500:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--seed", type=int, default=59)
    parser.add_argument("--folder", type=Path, help="keeps the files of each example here")
    parser.add_argument("--only", default="", help="examples in whose name this pattern is")
    parser.add_argument("--tokens", action="store_true", help="train nothing")
    parser.add_argument("--list", action="store_true", help="draw alone")
    options = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    adopt_examples.write_records = write_records
    with tempfile.TemporaryDirectory() as scratch:
        place = options.folder or Path(scratch)
        lists: dict[str, list[tuple[Example, Path]]] = {}
        for checkout in options.checkouts:
            copy = place / checkout.name
            shutil.rmtree(copy, ignore_errors=True)
            for part in ("examples", "data", "docs", "trl/scripts"):
                if (checkout / part).is_dir():
                    shutil.copytree(checkout / part, copy / part)
            if (copy / "data/dataset_info.json").is_file():
                replace_hub_datasets(copy)
            for example in COUNTERS[checkout.name](copy):
                lists.setdefault(example.program, []).append((example, copy))
        for program, examples in lists.items():
            compared = 0
            for example, folder in draw(examples, options.seed, options.only):
                result = None if options.list else try_example(example, folder, trains=not options.tokens)
                print(describe(example, result), flush=True)
                compared += result is None or result.theirs > 0
                if compared == DRAWN[program]:
                    break


def describe(example: Example, result: Result | None) -> str:
    """The line of an example, with its problem below it."""
    if result is None:
        return f"{example.program:14} {example.name}"
    state = "trained" if result.trained else "NOT TRAINED"
    line = (
        f"{example.program:14} {example.name:60} {result.equal} equal of {result.theirs} theirs, "
        f"{result.ours} ours; {state}"
    )
    return f"{line}\n{result.problem}" if result.problem and not result.trained else line


if __name__ == "__main__":
    main()
