# SPDX-License-Identifier: Apache-2.0
"""The examples of LLaMA-Factory, axolotl, TRL and ms-swift through `adopt`, `validate-config`, `data` and
`launch --dry-run`.

The folders are checkouts of the four programs; no file of theirs is part of this repository. The rule that counts
them knows nothing of `harness adopt`: each YAML with a stage or a dataset of LLaMA-Factory; the first 60 of axolotl's
and the first 40 scripts of ms-swift by their sha256; each command of TRL's scripts and pages with options, and each
YAML of its pages. Models are stand-ins with the type that the name says, tiny, with a tokenizer made here; data are
made-up records of the form that the example names, and those of LLaMA-Factory are its own.

    python benchmarks/adopt_examples.py LLaMA-Factory axolotl trl ms-swift
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import io
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from typer.testing import CliRunner

from harness.cli.app import build_app
from harness.errors import UserError
from harness.hostinfo import model_answers, model_probe
from harness.launching.process.child_process import ChildAnswer
from harness.launching.programs import data_preview
from harness.run.resolved_run import ResolvedRun
from harness.runtime.model_questions import question_list
from harness.workers import model_behavior_worker

STEPS = ("adopt", "validate-config", "data", "launch")
ANSWER = "11 is a prime above 10. " * 80
TURNS = [{"role": "user", "content": "Name a prime above 10."}, {"role": "assistant", "content": ANSWER}]
SHORT_TURNS = [TURNS[0], {"role": "assistant", "content": "11 is one."}]
"""An answer of a preference, which is never cut."""
SHAREGPT = [{"from": "human", "value": "Name a prime above 10."}, {"from": "gpt", "value": ANSWER}]
TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content if m.content is string else '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OTHER_LOSSES = re.compile(
    r"reward|ppo|grpo|rlhf_type (?!dpo|kto)|rloo|orpo|simpo|cpo|gkd|bco|prm|online_dpo|nash|xpo|tpo\b|distill|ebft|"
    r"embedding|seq_cls|reranker|task_type (?!causal_lm)|stepwise|bradley|generative_reranker"
)


class Example(NamedTuple):
    program: str
    name: str
    path: Path


class Outcome(NamedTuple):
    example: Example
    step: str
    """The step that did not end well; empty if all did."""
    reason: str
    is_said: bool = False
    """Did `adopt` say that the user has something to set, or that `launch` would refuse it?"""


def count_llama_factory(folder: Path) -> Iterator[Example]:
    for path in sorted((folder / "examples").rglob("*.yaml")):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        if (isinstance(data, dict) and ("stage" in data or "train_dataset" in data) and "do_train" in data) or (
            isinstance(data, dict) and "train_dataset" in data
        ):
            yield Example("LLaMA-Factory", str(path.relative_to(folder)), path)


def count_axolotl(folder: Path) -> Iterator[Example]:
    for path in in_drawn_order((folder / "examples").rglob("*.y*ml"), 60):
        yield Example("axolotl", str(path.relative_to(folder)), path)


def in_drawn_order(paths: Iterator[Path], count: int) -> list[Path]:
    """The first by sha256 of those that name a model and data and train."""
    digests = {}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        trains = "base_model:" in text and "datasets:" in text if path.suffix != ".sh" else is_swift_training(text)
        if trains:
            digests[hashlib.sha256(text.encode()).hexdigest()] = path
    return [digests[digest] for digest in sorted(digests)[:count]]


def is_swift_training(text: str) -> bool:
    return re.search(r"(^|\s)swift (sft|pt|rlhf)\s", text) is not None


def count_trl(folder: Path) -> Iterator[Example]:
    """Fenced blocks of the pages, and those at the top of scripts, written into files here."""
    seen: set[str] = set()
    paths = [
        *(folder / "docs").rglob("*.md"),
        *(folder / "examples/scripts").glob("*.py"),
        *(folder / "trl/scripts").glob("*.py"),
    ]
    for path in sorted(paths):
        for number, (language, block) in enumerate(find_blocks(path.read_text(encoding="utf-8"))):
            is_command = (
                re.search(r"(trl (sft|dpo|kto)|(accelerate launch|python|torchrun|deepspeed)\s)", block)
                and "--" in block
            )
            is_command = (
                is_command and re.search(r"(sft|dpo|kto)[\w]*(\.py)?\s", block) and "--model_name_or_path" in block
            )
            is_config = language == "yaml" and "model_name_or_path:" in block and "learning_rate" in block
            if (is_command or is_config) and block not in seen:
                seen.add(block)
                target = folder / f"{path.stem}-{number}{'.yaml' if is_config else '.sh'}"
                target.write_text(block, encoding="utf-8")
                yield Example("TRL", f"{path.relative_to(folder)} block {number}", target)


def replace_hub_datasets(folder: Path) -> None:
    """Datasets of LLaMA-Factory's `dataset_info.json` that are on the Hub alone, as made-up records of their form."""
    file = folder / "data/dataset_info.json"
    info = json.loads(file.read_text(encoding="utf-8"))
    for name, entry in info.items():
        path = folder / "data" / f"{name}.jsonl"
        if "hf_hub_url" not in entry or "formatting" in entry or "ranking" in entry or path.exists():
            continue
        columns = entry.get("columns") or {"prompt": "instruction", "query": "input", "response": "output"}
        record = {column: "" if key == "query" else "A text." for key, column in columns.items()}
        path.write_text("".join(json.dumps(record) + "\n" for _ in range(300)), encoding="utf-8")
        info[name] = {"file_name": path.name, **({"columns": columns} if "columns" in entry else {})}
    file.write_text(json.dumps(info), encoding="utf-8")


def find_blocks(text: str) -> Iterator[tuple[str, str]]:
    for match in re.finditer(r"^[ ]*```(\w*)[^\n]*\n(.*?)^[ ]*```", text, re.MULTILINE | re.DOTALL):
        yield match[1], match[2]


def count_swift(folder: Path) -> Iterator[Example]:
    for path in in_drawn_order((folder / "examples").rglob("*.sh"), 40):
        yield Example("ms-swift", str(path.relative_to(folder)), path)


COUNTERS = {"LLaMA-Factory": count_llama_factory, "axolotl": count_axolotl, "trl": count_trl, "ms-swift": count_swift}


def name_type(name: str) -> str:
    """The model type whose name is the longest part of the model's."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    found = [kind for kind in CONFIG_MAPPING_NAMES if re.sub(r"[^a-z0-9]", "", kind) in plain and len(kind) > 2]
    return max(found, key=len, default="llama")


def make_model(folder: Path, name: str) -> Path:
    """A stand-in under the model's own name, which may say that it is quantised."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig

    target = folder / name.replace("/", "--")
    if target.is_dir():
        return target
    target.mkdir(parents=True)
    kind = name_type(name)
    small = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 262144,
             "pad_token_id": None, "bos_token_id": None, "eos_token_id": 257}  # fmt: skip
    try:
        config = AutoConfig.for_model(kind)
        known = {key: value for key, value in small.items() if key in config.to_dict()}
        if known.get("num_hidden_layers") and getattr(config, "layer_types", None):
            known["layer_types"] = list(config.layer_types)[:2]
        config = AutoConfig.for_model(kind, **known)
        data = config.to_dict()
    except Exception as error:  # a configuration that takes no such sizes
        print(f"{name}: {type(error).__name__}: {error}")
        data = AutoConfig.for_model(kind).to_dict()
    data["model_type"] = kind
    (target / "config.json").write_text(json.dumps(data, default=str), encoding="utf-8")
    save_file({"weight": torch.zeros(1)}, target / "model.safetensors")  # a dry run reads the configuration alone
    make_tokenizer(target)
    return target


def make_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def make_records(kind: str, entry: dict[str, Any]) -> dict[str, Any]:
    """One record of the form that axolotl's `type` names."""
    name = kind.partition(":")[0]
    if "." in name:
        return make_pair(kind, entry)
    if "input_ids" in kind:
        return {"input_ids": [1, 2], "labels": [1, 2]}
    if name == "alpaca":
        return {"instruction": "Name a prime", "input": "above 10", "output": ANSWER}
    if name in ("completion", "pretrain", ""):
        return {entry.get("field") or entry.get("text_column") or "text": ANSWER}
    names = {"role": "role", "content": "content", **(entry.get("message_property_mappings") or {})}
    legacy = {"role": entry.get("message_field_role"), "content": entry.get("message_field_content")}
    names |= {key: value for key, value in legacy.items() if value}
    wanted = {alias: role for role, aliases in (entry.get("roles") or {}).items() for alias in aliases}
    role = {value: key for key, value in wanted.items()}
    turns = [{names["role"]: role.get(t["role"], t["role"]), names["content"]: t["content"]} for t in TURNS]
    if names["role"] == "from" and not role:
        turns = [{names["role"]: t["from"], names["content"]: t["value"]} for t in SHAREGPT]
    return {entry.get("field_messages") or "messages": turns}


def make_pair(kind: str, entry: dict[str, Any]) -> dict[str, Any]:
    """One pair of answers of the form that axolotl's `type` names."""
    if kind.endswith((".argilla_chat", ".ultra")):
        rejected = [SHORT_TURNS[0], {"role": "assistant", "content": "12"}]
        return {"prompt": "Name a prime", "chosen": SHORT_TURNS, "rejected": rejected}
    if kind.startswith("bradley_terry."):
        return {"input": "Name a prime", "chosen": "11", "rejected": "12"}
    return {"prompt": "Name a prime", entry.get("field_messages") or "messages": TURNS[:1],
            entry.get("field_chosen") or "chosen": SHORT_TURNS[1],
            entry.get("field_rejected") or "rejected": {"role": "assistant", "content": "12"}}  # fmt: skip


def write_records(folder: Path, record: dict[str, Any], name: str) -> str:
    path = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:8]}.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for _ in range(300)), encoding="utf-8")
    return str(path)


def shorten_records(folder: Path, text: str) -> None:
    """Answers of a quarter of the example's length: its program leaves longer records out, as the run does."""
    match = re.search(r"(?:sequence_len|cutoff_len|max_length)[\s:=]+(\d+)", text)
    length = min(len(ANSWER), (int(match[1]) if match else 1024) // 4)  # 1024: of a run spec, where the file says none
    for path in folder.glob("????????.jsonl"):
        records = path.read_text(encoding="utf-8").replace(ANSWER, ANSWER[:length].rstrip())
        path.write_text(records, encoding="utf-8")


def use_stand_ins(example: Example, folder: Path) -> None:
    """Rewrite the example, in its copy, to models and data of this machine."""
    text = example.path.read_text(encoding="utf-8")
    if example.path.suffix == ".sh":
        example.path.write_text(rewrite_command(example, text, folder), encoding="utf-8")
        return
    data = yaml.safe_load(text)
    for key in ("model_name_or_path", "base_model", "model"):
        if isinstance(data.get(key), str):
            data[key] = str(make_model(folder, data[key]))
    for key in ("datasets", "test_datasets", "pretraining_dataset"):
        entries = data.get(key)
        for entry in [entries] if isinstance(entries, dict) else entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and example.program == "axolotl":
                kind = entry.get("type") or ""
                record = make_records("custom" if isinstance(kind, dict) else kind, entry)
                if isinstance(kind, dict):
                    fields = [kind.get(f"field_{name}") for name in ("instruction", "input", "output", "system")]
                    record = {name: "A text." for name in fields if name} or {"instruction": "A", "output": "B"}
                entry["path"] = write_records(folder, record, f"{example.name}{entry.get('path')}{key}")
                entry.pop("data_files", None), entry.pop("split", None), entry.pop("name", None)
    if example.program == "TRL" and "dataset_name" in data:
        data["dataset_name"] = write_records(folder, trl_record(example, text), example.name)
        data.pop("dataset_config", None)
    example.path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")


def trl_record(example: Example, text: str) -> dict[str, Any]:
    first = re.search(r"trl (sft|dpo|kto|reward)\b", text)  # of several commands, which `adopt` converts
    if first is not None and first[1] == "sft":
        return {"messages": TURNS}
    if re.search(r"\bkto\b", text + example.name):
        return {"prompt": TURNS[:1], "completion": SHORT_TURNS[1:], "label": True}
    if re.search(r"\bdpo\b|beta:", text + example.name):
        return {"chosen": SHORT_TURNS, "rejected": [TURNS[0], {"role": "assistant", "content": "12"}]}
    return {"messages": TURNS}


def swift_record(text: str) -> dict[str, Any]:
    if re.search(r"rlhf_type kto", text):
        return {"messages": SHORT_TURNS, "label": True}
    if "swift rlhf" in text:
        return {"messages": SHORT_TURNS, "rejected_response": "12"}
    return {"messages": TURNS}


def rewrite_command(example: Example, text: str, folder: Path) -> str:
    text = re.sub(r"(?m)^\s*#.*\n", "", text)  # a comment may name another data set
    text = re.sub(
        r"(--model(?:_name_or_path)?[ =]+)([^\s\\$]+)",
        lambda match: match[1] + str(make_model(folder, match[2].strip("'\""))),
        text,
    )
    if example.program == "TRL":
        path = write_records(folder, trl_record(example, text), example.name)
        return re.sub(r"(--dataset_name[ =]+)([^\s\\]+)", lambda match: match[1] + path, text)
    path = write_records(folder, swift_record(text), example.name)
    return re.sub(
        r"(--dataset\s+)((?:[^\s\\-][^\s\\]*[\s\\]+)+)",
        lambda match: match[1] + path + " \\\n    ",
        text,
    )


def try_example(example: Example, folder: Path) -> Outcome:
    """The four commands in a child of their own."""
    text = example.path.read_text(encoding="utf-8")
    use_stand_ins(example, folder)
    shorten_records(folder, text)
    return _in_child(run_steps, example, folder) or Outcome(example, "data", "no answer within two minutes")


def run_steps(example: Example, folder: Path) -> Outcome:
    spec = folder / "spec.yaml"
    spec.unlink(missing_ok=True)
    notes = ""
    for step in STEPS:
        code, output = _invoke(arguments_of(step, example.path, spec), folder)
        notes = notes or output
        if code:
            sayings = ("which `harness launch` would refuse", "set `data.", "a placeholder in the spec: `data.train`")
            said = step != "adopt" and any(words in notes for words in sayings)
            return Outcome(example, step, output, said)
    return Outcome(example, "", "")


def import_everything(folder: Path) -> None:
    """Import what the four commands import, which the children have then; a child finds out, since threads that it
    starts would leave their locks behind.
    """
    model = make_model(folder, "llama")
    data = write_records(folder, {"messages": TURNS}, "first")
    text = f"model_name_or_path: {model}\ndataset_name: {data}\nlearning_rate: 1.0e-5\nmax_length: 64\nmax_steps: 2\n"
    (folder / "first.yaml").write_text(text, encoding="utf-8")
    for name in _in_child(_list_modules, folder):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    for step in ("adopt", "validate-config", "launch"):  # which start no thread, and leave tables and classes behind
        _invoke(arguments_of(step, folder / "first.yaml", folder / "spec.yaml"), folder)


def arguments_of(step: str, file: Path, spec: Path) -> list[str]:
    """One process prepares the data: a pool of them would import everything again."""
    options = {"adopt": ["-o", str(spec)], "launch": ["--dry-run"], "data": ["--set", "data.num_proc=1"]}
    return [step, str(file if step == "adopt" else spec), *options.get(step, [])]


def _list_modules(folder: Path) -> list[str]:
    for step in STEPS:
        _invoke(arguments_of(step, folder / "first.yaml", folder / "spec.yaml"), folder)
    return [name for name in sys.modules if name.startswith("harness.")]


def _in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer of a child; None without one within two minutes."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=lambda: writer.send(function(*arguments)))
    child.start()
    answer = reader.recv() if reader.poll(120) else None
    child.kill()
    child.join()
    return answer


def _invoke(arguments: list[str], folder: Path) -> tuple[int, str]:
    os.chdir(folder)
    data_preview.read_child_answer = _preview_here
    model_probe._run_program = _probe_here
    model_answers._run_worker = _ask_here
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        result = CliRunner().invoke(build_app(arguments[:1]), arguments, env={"COLUMNS": "400"})
    return result.exit_code, result.output + (repr(result.exception) if result.exit_code == 1 else "")


def _preview_here(command: list[str], *_: Any, **__: Any) -> ChildAnswer:
    """The answer of `preview_worker.py`, without a Python of its own, which would import torch again."""
    from harness.runtime.dataset.preview import preview_dataset

    run = ResolvedRun.from_json(json.loads(Path(command[command.index("--run") + 1]).read_text(encoding="utf-8")))
    try:
        return ChildAnswer(0, preview_dataset(run, 1))
    except UserError as error:
        return ChildAnswer(0, {"refused": [{**f._asdict(), "fix": f.fix and f.fix._asdict()} for f in error.findings]})


def _probe_here(config: Mapping[str, Any]) -> str | None:
    """The answer of the program that `model_probe` runs."""

    def build() -> str:
        sys.argv, sys.stdin, output = (
            ["-c", str(Path(__file__).parents[1])],
            io.StringIO(json.dumps(config)),
            io.StringIO(),
        )
        with contextlib.redirect_stdout(output):
            exec(model_probe._PROGRAM, {})  # noqa: S102 - as `python -c` does
        return output.getvalue()

    return _in_child(build)


def _ask_here(text: str) -> dict[str, Any]:
    """The answers of `model_behavior_worker.py` to whether a model is causal and keeps documents apart."""
    body: dict[str, Any] = {"answers": {}, "sources": {}, "accident": {}}

    def ask() -> dict[str, Any]:
        def report(**fields: Any) -> None:
            for name, value in fields.items():
                body[name] |= value

        question_list._QUESTIONS.clear()
        with tempfile.TemporaryDirectory() as folder:
            model_behavior_worker.ask(json.loads(text), Path(folder), report)
        return body

    body = _in_child(ask) or body
    for name in model_answers.QUESTIONS:
        body["answers"].setdefault(name, [None, "it was not asked", []])
    return {**body, "accident": {"asked": "in part"}}  # which is not kept


def group_reason(text: str) -> str:
    """The first error line, without names and numbers of this example."""
    line = next((line for line in text.splitlines() if re.search(r"error(\[|:)|Error", line)), text[-200:])
    line = re.sub(r"^\S+?:\d+:\d+: ", "", line.strip())
    return re.sub(r"/\S*/", "", line)[:160]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--only", default="", help="examples whose name contains this")
    options = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    outcomes = []

    with tempfile.TemporaryDirectory() as scratch:
        import_everything(Path(scratch) / "first")
        for checkout in options.checkouts:
            copy = Path(scratch) / checkout.name
            for part in ("examples", "data", "docs", "trl/scripts"):
                if (checkout / part).is_dir():
                    shutil.copytree(checkout / part, copy / part)
            if (copy / "data/dataset_info.json").is_file():
                replace_hub_datasets(copy)
            for example in list(COUNTERS[checkout.name](copy)):
                if options.only in example.name:
                    outcomes.append(try_example(example, copy))
                    last = outcomes[-1]
                    reason = group_reason(last.reason) if last.step else ""
                    print(f"{example.program:14} {example.name:70} {last.step or 'whole':16} {reason}", flush=True)
    print_scores(outcomes)


def print_scores(outcomes: list[Outcome]) -> None:
    print("| Program | Examples | Whole | Refused by `adopt` | Said by `adopt` | Refused later |")
    print("| --- | --- | --- | --- | --- | --- |")
    for program in dict.fromkeys(outcome.example.program for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.example.program == program]
        steps = Counter(outcome.step or "whole" for outcome in own)
        later = [outcome for outcome in own if outcome.step in STEPS[1:]]
        said = sum(outcome.is_said for outcome in later)
        print(f"| {program} | {len(own)} | {steps['whole']} | {steps['adopt']} | {said} | {len(later) - said} |")
    reasons = Counter((outcome.step, group_reason(outcome.reason)) for outcome in outcomes if outcome.step)
    for (step, reason), count in reasons.most_common():
        print(f"{count:4} {step:16} {reason}")


if __name__ == "__main__":
    main()
