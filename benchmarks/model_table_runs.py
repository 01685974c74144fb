# SPDX-License-Identifier: Apache-2.0
"""Are the answers of the table of models right? Tiny models of drawn types, trained by real runs.

    python -m benchmarks.model_table_runs                     ten types of each answer, those that WORK lacks
    python -m benchmarks.model_table_runs --write             the same, and a dated page
    python -m benchmarks.model_table_runs apart opt llama     these types for one question

For each question and each answer types are drawn until ten have a run, or none is left. A small copy with random
weights is saved, and two steps over eight documents are trained as a run trains them, but for refusals by the table:
alone on one rank with a row for each document, and then in the way of the question. `yes` holds where the losses are
equal and every loaded weight is that of the file; for `lora`, where every matrix has changed in the end; for `qlora`,
where every matrix is in 4 bits; for `export`, where both classes load the exported folder, with every key; for
`planned`, where the engine has as many parameters as the formula of the plan. WORK is below the folder for temporary
files; each type is written there at once, so that an interrupted benchmark goes on where it was. Three seconds of one
core a type, and as much a run.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.model_table import FIELDS, ROOT
from harness.facts import model_table
from harness.facts.model_lookup import facts_from_config
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.runtime.model_behavior import build_small_copy
from harness.runtime.model_questions.small_copy import layer_matrices, loss_and_gradients
from harness.runtime.text_part import find_text_part
from harness.runtime.tokenizer import byte_tokenizer
from harness.spec.run_spec import RunSpec
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import metric_lines, write_run

JOB = ROOT / "tests/training/jobs/train_unasked.py"
PACKED = {"packing": True}
LORA = {"lora": {"target_modules": "all-linear", "r": 2}}
EXPORT = ROOT / "harness/workers/export_worker.py"
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "alone": (1, {}),
    "apart": (1, {"data": PACKED}),
    "sequence": (2, {"parallel": {"sequence_parallel_size": 2}}),
    "zero3": (1, {"zero": {"stage": 3}}),
    "tensor": (2, {"parallel": {"tensor_parallel_size": 2}}),
    "pipeline": (2, {"parallel": {"pipeline_parallel_size": 2}}),
    "borders": (1, {"data": PACKED, "model": {"attn_implementation": "sdpa_varlen"}}),
    "loss": (1, {"train": {"loss_chunk_size": 8}}),
    "lora": (1, {"model": LORA}),
    "qlora": (1, {"model": {**LORA, "quantization": {"load_in_4bit": True}}}),
    "export": (1, {"checkpoint": {"save_at_end": True}}),
    "planned": (1, {}),
    "checkpointing": (1, {"train": {"gradient_checkpointing": True}}),
}
"""Ranks and what the spec has for each question."""
DRAWN, DOCUMENTS, LENGTH = 10, 8, 256
TOLERANCE = 1e-5
"""Of a loss; fp32 gives 1e-7."""


class Outcome(NamedTuple):
    """Did the run do what `yes` says? None: no run of this type is to be had. `seen`: what it did, a phrase."""

    holds: bool | None
    seen: str


def draw(way: str, *, answer: bool) -> list[str]:
    """All types of this answer, in the order in which they are tried; the same at each call."""
    rows = model_table.read_table().types
    known = [kind for kind in rows if model_table.holds(kind, "causal") and model_table.holds(kind, way) is answer]
    return random.Random(way).sample(known, len(known))  # noqa: S311


def run_drawn(work: Path, forked: ForkedRanks) -> None:
    """Run what WORK lacks, in turns, so that a part has some of every answer."""
    cells = [(way, answer, draw(way, answer=answer)) for way in list(WAYS)[1:] for answer in (True, False)]
    seen: Counter[tuple[str, bool]] = Counter()
    for turn in range(max(len(order) for _, _, order in cells)):
        for way, answer, order in cells:
            if seen[way, answer] >= DRAWN or turn >= len(order):
                continue
            file = work / f"{order[turn]}.json"
            kept = json.loads(file.read_text()) if file.exists() else {}
            outcome = Outcome(*kept[way]) if way in kept else run_type(way, order[turn], file, forked)
            seen[way, answer] += outcome.holds is not None


def set_ids(config: Any) -> None:
    """Room for the byte tokenizer, padding by 0, and no dropout."""
    for part in (config, config.get_text_config(decoder=True)):  # a copy, of an encoder with a decoder
        part.pad_token_id = 0
        for name, value in vars(part).items():
            if isinstance(value, int) and "vocab_size" in name:  # of inputs of layers, or without padding, too
                setattr(part, name, 320)
            if isinstance(value, float) and ("drop" in name or name.endswith("jitter_noise")):
                setattr(part, name, 0.0)


def write_model(kind: str, folder: Path) -> None:
    """A small copy with the ids of the byte tokenizer and its random weights; of a composite, its text model.

    Raises ValueError for a type without a small copy.
    """
    whole = AutoConfig.for_model(kind, **FIELDS.get(kind, {}))
    whole = find_text_part(whole).config or whole
    reason: ValueError | None = None
    for part in (whole, whole.get_text_config(decoder=True)):
        try:
            config = build_small_copy(part, max_parameters=100_000_000).built_from
            break
        except ValueError as error:
            reason = reason or error
    else:
        raise ValueError(str(reason))
    set_ids(config)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
        for module in model.modules():  # `from_pretrained` sets this row to 0 again for some types, such as youtu
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0.0
    model.save_pretrained(folder)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    torch.save(dict(model.named_parameters()), folder / "weights.pt")
    _, gradients = loss_and_gradients(model)
    matrices = [name for name, _ in layer_matrices(model) if name in gradients]  # some attend to no encoder
    (folder / "matrices.json").write_text(json.dumps(matrices))
    byte_tokenizer().save_pretrained(folder)
    words = "the rank sends a shard of each row to the next stage and waits for the sum".split()
    texts = [f"{i} " + " ".join(words[i : i + 4]) for i in range(DOCUMENTS)]
    rows = [json.dumps({"prompt": text[:5], "completion": text[5:]}) for text in texts]
    (folder / "texts.jsonl").write_text("\n".join(rows) + "\n")


def losses_of(way: str, model: Path, folder: Path, forked: ForkedRanks) -> list[float] | str:
    """The losses of two steps over all documents; the last lines of the first rank that failed."""
    ranks, changes = WAYS[way]
    spec: dict[str, Any] = {
        "model": {"name_or_path": str(model)},
        "data": {
            "train": str(model / "texts.jsonl"),
            "max_length": LENGTH,
            "packing": False,
            "completion_only_loss": False,
            "eval_fraction": 0,
        },
        "train": {"max_steps": 2, "per_device_train_batch_size": DOCUMENTS, "loss_chunk_size": 0, "seed": 1},
        "optimizer": {"learning_rate": 0.5, "type": "sgd"},  # whose step has the size of the gradient
        "precision": {"bf16": False},
        "zero": {"stage": 0},
        "checkpoint": {"save_at_end": False},
    }
    for section, values in changes.items():
        spec[section] = {**spec.get(section, {}), **values}
    if way in ("apart", "borders"):  # all documents in one row
        spec["train"]["per_device_train_batch_size"] = 1
    kind = json.loads((model / "config.json").read_text())["model_type"]
    if way == "apart" and model_table.holds(kind, "borders"):  # else the tuned default would be the way of `borders`
        spec["model"]["attn_implementation"] = "sdpa"
    run = resolve_run(RunSpec.model_validate_json(json.dumps(spec)), world_size=ranks)
    write_run(folder / way, spec, dict(render_ds_config(run).config), world_size=ranks)
    answer = forked.run(JOB, "--run", str(folder / way), ranks=ranks, timeout=180, check=False)
    if any(answer["codes"]):
        return str(answer["output"][answer["first"]][-3000:])
    return [float(line["loss"]) for line in metric_lines(folder / way, "step")]


def look_at_run(way: str, model: Path, folder: Path, alone: list[float], forked: ForkedRanks) -> Outcome:
    """The run of a question, against the losses of the model alone."""
    losses = losses_of(way, model, folder, forked)
    if isinstance(losses, str):
        return Outcome(False, f"ends with: {last_error(losses)}")
    if way == "export":
        return look_at_export(folder / way, forked)
    if way == "planned":
        facts = facts_from_config(json.loads((model / "config.json").read_text())).facts
        built = metric_lines(folder / way, "run")[0]["parameters"]
        counted = 0 if facts is None else facts.num_parameters
        return Outcome(counted == built, f"{counted:,} parameters by the formula, {built:,} in the engine")
    if way in ("lora", "qlora"):
        return look_at_matrices(way, model, folder / way)
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses, alone, strict=True))
    fault = find_fault(way, model, folder / way)
    return Outcome(not fault and worst <= TOLERANCE, fault or f"losses differ by {worst:.0e}")


def look_at_matrices(way: str, model: Path, run: Path) -> Outcome:
    """Has every matrix of the layers changed, or is every one in 4 bits?"""
    matrices = set(json.loads((model / "matrices.json").read_text()))
    weights = json.loads((run / "weights.json").read_text())
    left = matrices & set(weights["kept"]) if way == "lora" else matrices - set(weights["quantized"])
    what = "as they were" if way == "lora" else "not in 4 bits"
    return Outcome(bool(matrices) and not left, f"{len(left)} of {len(matrices)} matrices are {what}")


def find_fault(way: str, model: Path, run: Path) -> str:
    """What is wrong with a run whatever its losses are; empty where nothing is."""
    file = run / "weights.json"
    weights = json.loads(file.read_text()) if file.exists() else {"loaded": []}
    if way == "loss" and not weights.get("chunked"):
        return "the model's own loss is computed"
    if way == "tensor":
        whole = sum(p.numel() for name, p in torch.load(model / "weights.pt").items() if ".layers." in name)
        if whole and int((run / "numel").read_text()) == whole:
            return "every rank has every layer whole"
    return f"{len(weights['loaded'])} weights are others after the load" if weights["loaded"] else ""


def look_at_export(run: Path, forked: ForkedRanks) -> Outcome:
    """Export the checkpoint of a run, and load the folder by both classes."""
    (checkpoint,) = (run / "checkpoints").glob("step-*")
    arguments = ("--checkpoint", str(checkpoint), "--out", str(run / "export"), "--verify")
    answer = forked.run(EXPORT, *arguments, ranks=1, timeout=180, check=False)
    if answer["codes"][0]:
        return Outcome(False, f"the export ends with: {last_error(answer['output'][0])}")
    named = json.loads((run / "export/config.json").read_text())["architectures"][0]
    for loader in (AutoModelForCausalLM, getattr(transformers, named)):
        _, report = loader.from_pretrained(run / "export", output_loading_info=True)
        keys = [key for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in report[kind]]
        if keys:
            return Outcome(False, f"{len(keys)} keys of the export do not fit, by {loader.__name__}")
    return Outcome(True, "both classes load the export, with every key")


def last_error(output: str) -> str:
    """The line that says why a rank ended."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"(\[\w+\]:? )?(error\[|\w*(Error|Exception)\b)", line)]
    return re.sub(r"/\S*/model-runs-\w+/", "", (told or lines or ["nothing"])[-1])[:140]


def run_type(way: str, kind: str, file: Path, forked: ForkedRanks) -> Outcome:
    """Train a type alone, where `file` does not have its losses, and in the way of a question; the file keeps both."""
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    with tempfile.TemporaryDirectory(prefix="model-runs-") as name:
        folder, began = Path(name), time.monotonic()
        try:
            write_model(kind, folder / "model")
            if not isinstance(kept.get("alone"), list):
                kept["alone"] = losses_of("alone", folder / "model", folder, forked)
        except Exception as error:  # the code of a model may raise anything
            kept["alone"] = str(error)
        if isinstance(kept["alone"], str):
            outcome = Outcome(None, f"it does not train alone: {last_error(kept['alone'])}")
        else:
            outcome = look_at_run(way, folder / "model", folder, kept["alone"], forked)
        file.write_text(json.dumps({**kept, way: outcome}))
    sign = "right" if outcome.holds in (None, model_table.holds(kind, way)) else "WRONG"
    print(f"{way} {kind}: {sign}, {outcome} ({time.monotonic() - began:.0f} s)", flush=True)
    return outcome


def main() -> int:
    """Run; returns 1 where an answer of the table is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", metavar="QUESTION TYPE", help="a question and types")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/model-table-runs-DATE.md")
    parser.add_argument("--finish", action="store_true", help="run nothing more: what WORK has")
    options = parser.parse_args()
    work = Path(tempfile.gettempdir()) / f"model-table-runs-{version('transformers')}"
    work.mkdir(exist_ok=True)
    forked = ForkedRanks()
    for kind in options.only[1:]:
        run_type(options.only[0], kind, work / f"{kind}.json", forked)
    if not options.only and not options.finish:
        run_drawn(work, forked)
    forked.close()
    kept = {file.stem: json.loads(file.read_text()) for file in sorted(work.glob("*.json"))}
    rows = [(way, kind, Outcome(*seen[way])) for kind, seen in kept.items() for way in list(WAYS)[1:] if way in seen]
    known = [row for row in rows if row[2].holds is not None]
    wrong = [row for row in known if row[2].holds is not model_table.holds(row[1], row[0])]
    print(f"{len(known)} runs of {len({row[1] for row in known})} types, {len(wrong)} show another answer")
    if options.write:
        today = f"{datetime.now(UTC):%F}"
        (ROOT / f"benchmarks/results/model-table-runs-{today}.md").write_text(render_page(rows, today))
    return int(bool(wrong))


def render_page(rows: list[tuple[str, str, Outcome]], today: str) -> str:
    """Sums by question and answer, then every run."""
    known = [row for row in rows if row[2].holds is not None]
    types, releases = {kind for _, kind, _ in known}, model_table.read_table().releases
    right = [row for row in known if row[2].holds is model_table.holds(row[1], row[0])]
    lines = [
        f"# Answers of the table of models, seen by training, {today}",
        "",
        f"`python -m benchmarks.model_table_runs --write` (transformers {version('transformers')}, table of"
        f" {releases['transformers']}, deepspeed {version('deepspeed')}, torch {version('torch')}).",
        f"For each question and answer types are drawn until {DRAWN} have a run, or none is left. A small copy of",
        f"each is trained for two steps of {DOCUMENTS} documents alone, and again in the way of the question, by the",
        "ranks of a real run with gloo on the CPU; refusals by the table are switched off.",
        "",
        f"**{len(right)} of {len(known)} runs of {len(types)} types show what the table says.** {len(rows)} were tried;"
        f" in {len(rows) - len(known)} of these the type does not train alone.",
        "",
        "| Question | Answer | Types run | As the table says | Types with this answer |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for way in list(WAYS)[1:]:
        for answer in (True, False):
            those = [row for row in known if row[0] == way and model_table.holds(row[1], way) is answer]
            sums = (len(those), sum(row in right for row in those), len(draw(way, answer=answer)))
            lines.append(f"| {way} | {'yes' if answer else 'no'} | {' | '.join(map(str, sums))} |")
    lines += ["", "| Question | Type | Table | Run |", "| --- | --- | --- | --- |"]
    words = {True: "yes", False: "no", None: "-"}
    for way, kind, outcome in sorted(rows, key=lambda row: (list(WAYS).index(row[0]), row[1])):
        seen = re.sub(r"/\S*/model-runs-\w+/", "", outcome.seen).replace("|", "/").replace("<", "&lt;")
        mark = "" if outcome.holds is None or (way, kind, outcome) in right else " **(other)**"
        lines.append(f"| {way} | `{kind}` | {words[model_table.holds(kind, way)]}{mark} | {seen} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
