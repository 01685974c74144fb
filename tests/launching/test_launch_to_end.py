# SPDX-License-Identifier: Apache-2.0
"""A real run under the real launcher from its spec to its export, and once more. Needs the training extra; a minute.

Compiles DeepSpeed's CPU ops where that was never done.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.run_records.run_list import list_run_summaries
from harness.run_records.run_record import read_run_record
from harness.slowness import diagnose_slowness
from tests.support.foreign_folder import foreign, imported
from tests.support.launch_process import Launched, clean_up, left_over_buffers

pytestmark = pytest.mark.training

STEPS = 4
SPEC = f"""\
name: tiny
model:
  config: {{model_type: llama, vocab_size: 320, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 128}}
  tokenizer: bytes
data: {{train: "builtin:python-docs", max_length: 64, eval_fraction: 0.01}}
train: {{max_steps: {STEPS}, per_device_train_batch_size: 2, seed: 1}}
optimizer: {{type: adamw, learning_rate: 0.001}}
zero: {{stage: 3, offload_optimizer: {{device: cpu}}}}
eval: {{max_batches: 2}}
export: {{at_end: true, sample_prompt: "The ", sample_tokens: 8}}
launch: {{num_gpus: 2, output_dir: OUTPUT, master_port: PORT}}
"""


def rows(run_dir: Path, kind: str) -> list[dict[str, object]]:
    found = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [row for row in found if row["type"] == kind]


def loads_with_transformers(export: Path) -> bool:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(export)
    ids = AutoTokenizer.from_pretrained(export)("The ", return_tensors="pt").input_ids
    return model(ids).logits.shape == (1, ids.shape[1], 320)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """One launch and a second with `--resume auto`, from a folder with a `json.py` and the like: for each the run
    directory, exit code and screen.
    """
    folder, where = tmp_path_factory.mktemp("to-end"), foreign(tmp_path_factory.mktemp("foreign"))
    runs: list[Launched] = []
    ended: list[tuple[Path, int, str]] = []
    living: list[int] = []
    try:
        for options in ([], ["--resume", "auto"]):
            runs.append(Launched(folder, SPEC, *options, where=where))
            code, text = runs[-1].end(900)
            ended.append((runs[-1].run_dir, code, text))
            living += runs[-1].living()
        yield ended, living, left_over_buffers(), imported(where)
    finally:
        clean_up(runs)


def test_a_run_ends_with_everything_that_was_asked_for(both):
    run_dir, code, text = both[0][0]
    assert code == 0, text
    assert [row["step"] for row in rows(run_dir, "step")] == list(range(1, STEPS + 1))
    (end,) = rows(run_dir, "end")
    assert (end["step"], end["state"]) == (STEPS, "completed")
    held_out = rows(run_dir, "eval")[-1]
    assert held_out["step"] == STEPS
    assert 0 < held_out["unigram_entropy"] < held_out["loss"] < 7
    assert json.loads((run_dir / "plan.json").read_text())
    assert (run_dir / "report.html").read_text().startswith("<!doctype html>")
    assert (run_dir / "sample.txt").read_text().startswith("The ")
    assert loads_with_transformers(run_dir / "export")


def test_what_ranks_print_is_one_stream_without_warnings_of_imports(both):
    log = (both[0][0][0] / "logs" / "launcher.log").read_text()
    assert f"step {STEPS}/{STEPS}" in log
    assert "FutureWarning" not in log


def test_the_summary_names_what_was_reached_and_what_is_kept(both):
    run_dir, _, text = both[0][0]
    summary = " ".join(text[text.index("completed: tiny") :].split())  # rows are wrapped
    assert f"trained {STEPS} steps" in summary
    for named in ("held-out loss", "unigram entropy", f"step-{STEPS:08d}", str(run_dir / "export"), "report.html"):
        assert named in summary


def test_its_report_and_the_list_of_runs_show_what_it_measured(both):
    run_dir = both[0][0][0]
    record = read_run_record(run_dir)
    assert [x for x, _ in record.points("step", "loss")] == list(range(1, STEPS + 1))
    html = (run_dir / "report.html").read_text()
    for shown in (
        "Time of a step by part",
        "host memory per rank, measured",
        "1 checkpoint",
        "Why is it slow?",
    ):
        assert shown in html
    diagnosis = diagnose_slowness(record)
    assert diagnosis.step_seconds > 0
    known = {"data", "communication", "cpu-optimizer", "padding"}  # what a run on CPUs can suffer from
    assert {told.slowdown.name for told in diagnosis.slowdowns} <= known
    listed = {summary.name: summary for summary in list_run_summaries(run_dir.parent)}
    assert (listed[run_dir.name].state, listed[run_dir.name].step) == ("completed", STEPS)


def test_a_complete_run_is_not_trained_again(both):
    (first, _, _), (second, code, text) = both[0]
    assert code == 0, text
    assert second == first
    assert "already complete" in text


def test_nothing_is_left_running_or_in_shared_memory(both):
    _, living, left, _ = both
    assert living == []
    assert left == []


def test_no_module_of_the_folder_was_imported_that_it_was_started_from(both):
    assert both[3] == []
