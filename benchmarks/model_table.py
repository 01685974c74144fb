# SPDX-License-Identifier: Apache-2.0
"""Asks every model type of the installed `transformers`, and writes the table `harness/facts/model_table.txt`.

    python benchmarks/model_table.py                    all types that WORK/answers lacks, then the table
    python benchmarks/model_table.py llama gemma3       these again, the others as they are in the table
    python benchmarks/model_table.py --check 8          some drawn types against the table; 1 where one has changed
    python benchmarks/model_table.py --others           types of neither kind: all have a reason, none a traceback
    python benchmarks/model_table.py --seconds 20       CPU time of drawn types (or of those named), at first and again

The page benchmarks/results/model-seconds-DATE.md has the CPU time of each type, its imports apart.

One process imports torch, DeepSpeed and transformers, and forks a child for each type, with the limits of
`harness/workers/model_behavior_worker.py`. WORK is below the folder for temporary files, by release; each answer is
written there at once, so that an interrupted run goes on where it was; `--minutes` ends one in time. Types that
were not asked keep their row. The whole table takes 25 minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.model_table_text import IN_TABLE, table_lines  # noqa: E402
from harness.facts import model_table  # noqa: E402
from harness.facts.model_lookup import has_attention_dropout  # noqa: E402
from harness.facts.model_table import find_row  # noqa: E402
from harness.hostinfo import model_answers  # noqa: E402
from harness.hostinfo.model_answers import QUESTIONS, unknown_answers  # noqa: E402
from harness.workers import model_behavior_worker as worker  # noqa: E402

TABLE = ROOT / "harness/facts/model_table.txt"
SECONDS = 600
"""That a child may wait for a busy machine; the worker limits its CPU time."""
BOUND = 15
"""CPU seconds that a type may take at first."""
NO_ANSWER = "its process ended without an answer"
FIELDS: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6, "n_routed_experts": 64, "moe_intermediate_size": 1408},
    "hunyuan_v1_dense": {"head_dim": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "hunyuan_v1_moe": {"head_dim": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8, "num_hidden_layers": 32},
    "ministral": {"head_dim": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
}
"""Of types whose default configuration builds no model: what their published configurations set."""
PACKAGES = ("transformers", "torch", "deepspeed", "peft", "bitsandbytes")


def main() -> int:
    """Ask and write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", help="model types; all without")
    parser.add_argument("--check", type=int, metavar="N", help="compare so many drawn types with the table")
    parser.add_argument("--minutes", type=float, metavar="N", help="ask no more types after so long")
    parser.add_argument("--others", action="store_true", help="ask the types that the table lacks, and count reasons")
    parser.add_argument("--seconds", type=int, metavar="N", help="CPU time of so many drawn types, as a user asks them")
    options = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "USE_HUB_KERNELS": "0", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    if options.seconds:
        known = model_table.read_table().types
        return print_seconds(options.types or random.Random(1).sample(known, options.seconds))  # noqa: S311
    began = time.process_time()
    worker.prepare()
    imports = time.process_time() - began
    names = find_types()
    work = Path(tempfile.gettempdir()) / f"model-table-{version('transformers')}"
    work.mkdir(exist_ok=True)
    if options.others:
        return ask_others(set(names), work)
    if options.check:
        return check(random.Random(time.strftime("%F")).sample(names, options.check))  # noqa: S311
    deadline = time.monotonic() + 60 * (options.minutes if options.minutes is not None else float("inf"))
    for name in options.types or names:
        file = work / f"{name}.json"
        if (options.types or not file.exists()) and time.monotonic() < deadline:
            began = child_seconds()
            answers = ask(name)
            answers["seconds"] = [child_seconds() - began, imports]
            if not any("killed after" in str(answer[1]) for answer in answers.values()):
                file.write_text(json.dumps(answers))
            print(f"{name}: {format_answers(answers)} {child_seconds() - began:.1f} s of CPU time", flush=True)
    files = {name: work / f"{name}.json" for name in names}
    asked = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    rows = {**read_rows(), **asked}
    write({name: rows[name] for name in names if name in rows})
    if not options.types:
        write_seconds({name: row["seconds"] for name, row in asked.items() if "seconds" in row})
    return 0


def write_seconds(seconds: dict[str, list[float]]) -> None:
    """The page of CPU times: of each type's questions, and of the imports before them in the process that asked it."""
    whole = {name: own + imports for name, (own, imports) in seconds.items()}
    order = sorted(whole, key=lambda name: -whole[name])
    late = [name for name in order if whole[name] >= BOUND]
    page = ROOT / f"benchmarks/results/model-seconds-{datetime.now(UTC):%F}.md"
    lines = [
        "# CPU seconds of the questions to a model",
        "",
        f"`python benchmarks/model_table.py`, transformers {version('transformers')}, {os.cpu_count()} cores,"
        f" load {os.getloadavg()[2]:.0f}. {len(whole)} types; {len(late)} of them take {BOUND} s or more.",
        "A user's question imports torch, DeepSpeed and transformers first: its time is the sum of both columns.",
        "",
        "| Type | Imports | Questions | Sum |",
        "| --- | ---: | ---: | ---: |",
        *(f"| `{n}` | {seconds[n][1]:.1f} s | {seconds[n][0]:.1f} s | {whole[n]:.1f} s |" for n in order),
    ]
    page.write_text("\n".join(lines) + "\n")


def print_seconds(names: list[str]) -> int:
    """Rows of a table in Markdown; returns 1 where a type takes 15 s of CPU time at first, or 0.3 s again."""
    slow = 0
    print("| Type | At first | Again | Not answered |\n| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        for name in names:
            spent, unknown = [], 0
            for _ in range(2):
                model_answers._ask.cache_clear()
                before = child_seconds() + time.process_time()
                answers = model_answers.ask_installed_model({"model_type": name, **FIELDS.get(name, {})})
                spent.append(child_seconds() + time.process_time() - before)
                unknown = sum(answers.answer_to(each).holds is None for each in QUESTIONS)
            slow += spent[0] >= BOUND or spent[1] >= 0.3
            print(f"| `{name}` | {spent[0]:.1f} s | {spent[1]:.2f} s | {unknown} |", flush=True)
    print(f"\n{len(names)} types, {slow} take {BOUND} s or more at first, or 0.3 s or more again.")
    return int(slow > 0)


def child_seconds() -> float:
    """CPU time of the children that have ended, with their ranks."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read_rows() -> dict[str, Any]:
    """The answers of the table as it is, by type; none where another release of transformers gave them."""
    table = model_table.read_table()
    if table.releases["transformers"] != version("transformers"):
        return {}
    found = {name: find_row(name) or unknown_answers("") for name in table.types}
    return {
        name: {q: [a.holds, a.reason, [*a.names]] for q in IN_TABLE for a in [row.answer_to(q)]}
        for name, row in found.items()
    }


def find_types() -> list[str]:
    """Every causal and image-text type of the installed release."""
    from transformers.models.auto import modeling_auto as auto

    return sorted({*auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES})


def ask_others(known: set[str], work: Path) -> int:
    """Print the reasons of all other types of the installed release, which WORK keeps; progress goes to stderr. Returns
    1 where a child ended without one.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    reasons: dict[str, list[str]] = {}
    others = sorted({*CONFIG_MAPPING_NAMES} - known)
    for i, name in enumerate(others, 1):
        file = work / f"other-{name}"
        reason, began = file.read_text() if file.exists() else "", child_seconds()
        if not reason:
            reason = ask(name)["causal"][1]
            print(f"{i}/{len(others)} {name}: {reason} ({child_seconds() - began:.1f} s)", file=sys.stderr, flush=True)
            if reason != NO_ANSWER and "killed after" not in reason:
                file.write_text(reason)
        reasons.setdefault(reason, []).append(name)
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"{len(names):4} {reason}: {', '.join(names[:8])}{' ...' * (len(names) > 8)}")
    print(f"{sum(map(len, reasons.values()))} types, {len(reasons)} reasons")
    return int(NO_ANSWER in reasons)


def ask(name: str) -> dict[str, Any]:
    """[holds, reason, names] by question, of the type's default configuration; of a child that ends early, its end."""
    answers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "answers"
        pid = os.fork()
        if not pid:
            _answer(name, Path(folder), output)
        deadline, end = time.monotonic() + SECONDS, ""
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                end = f"killed after {SECONDS} s"
                os.killpg(pid, signal.SIGKILL)
            time.sleep(0.02)
        for line in output.read_text().splitlines() if output.exists() else ():
            answers |= json.loads(line).get("answers", {})
    for question in QUESTIONS:
        answers.setdefault(question, [None, end or NO_ANSWER, []])
    return answers


def _answer(name: str, folder: Path, output: Path) -> None:
    """Never returns."""
    try:
        os.setpgid(0, 0)
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        worker.limit_resources()
        with output.open("w") as file:

            def report(**fields: Any) -> None:
                file.write(f"{json.dumps(fields)}\n")
                file.flush()

            worker.ask({"model_type": name, **FIELDS.get(name, {})}, folder, report)
    finally:
        os._exit(0)


def format_answers(answers: dict[str, Any]) -> str:
    """A sign a question."""
    return " ".join(f"{q}{ {True: '+', False: '-', None: '?'}[answers[q][0]] }" for q in QUESTIONS)


def write(rows: dict[str, Any]) -> None:
    """The table as text, which must read back. Raises ValueError."""
    head = {
        "made": f"{datetime.now(UTC):%F}",
        "command": "python benchmarks/model_table.py",
        "releases": ", ".join(f"{package} {version(package)}" for package in PACKAGES),
    }
    plans = {name: find_tensor_plan(name) for name, row in rows.items() if row["causal"][0]}
    lines = table_lines(head, rows, [name for name in rows if drops_attention(name)], plans)
    TABLE.write_text("\n".join(lines) + "\n")
    model_table.read_table.cache_clear()
    for name, row in rows.items():
        known = find_row(name)
        for question in IN_TABLE:
            holds, reason, names = row[question]
            if known is None or known.answer_to(question) != (holds, reason, tuple(names)):
                raise ValueError(f"{name}: {question} reads back as {known and known.answer_to(question)}")


def drops_attention(name: str) -> bool:
    """Does the default configuration of a type drop attention weights in training?"""
    from transformers import AutoConfig

    try:
        return has_attention_dropout(AutoConfig.for_model(name, **FIELDS.get(name, {})).to_dict())
    except Exception:  # a type without a default configuration
        return False


def find_tensor_plan(name: str) -> dict[str, str]:
    """The plan that DeepSpeed reads: of the configuration, the class and the model, without embeddings."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from harness.runtime.tiny_config import shrink_config

    merged: dict[str, str] = {}
    try:
        config = AutoConfig.for_model(name, **FIELDS.get(name, {}))
        fields = {key: value for key, value in shrink_config(config.to_dict()).items() if not key.startswith("_")}
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(type(config).from_dict(fields))
    except Exception:  # a default configuration that builds no model has no plan either
        return {}
    for plan in (model.config.base_model_tp_plan, type(model)._tp_plan, vars(model).get("_tp_plan")):
        for pattern, style in (plan or {}).items():
            merged.setdefault(pattern.removeprefix("model."), style)
    return {pattern: style for pattern, style in merged.items() if style != "embedding_rowwise"}


def check(names: list[str]) -> int:
    """Compare; returns the exit code."""
    changed = 0
    for name in names:
        row, answers = find_row(name), ask(name)
        for question in QUESTIONS:
            known = row.answer_to(question) if row is not None else None
            if known is None or known.holds is not answers[question][0]:
                changed += 1
                print(f"{name}: {question} is {answers[question][:2]}, in the table {known}")
    print(f"{len(names)} types asked, {changed} answers are not those of the table")
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
