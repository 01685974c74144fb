# SPDX-License-Identifier: Apache-2.0
"""Gates of checkpoints, compiling, utilities, security, model and data: the branches that their pages do not show."""

from __future__ import annotations

import json

import pytest

from harness.gates.registry import all_gates
from tests.support.gate_examples import Example, judge

ANY = next(g for g in all_gates() if g.id == "CK009")
GPT2 = "{model_type: gpt2, vocab_size: 64, n_positions: 32, n_embd: 32, n_layer: 1, n_head: 4}"
FAMILIES = ("CK", "CC", "UT", "SE", "MD")
JSON = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0}


def found(write, text, **kwargs):
    example = Example(
        text if isinstance(text, str) else json.dumps(text),
        "yaml" if isinstance(text, str) else "json",
        kwargs.pop("hostfile", None),
    )
    judged = judge(ANY, "Example", write, kwargs.pop("overrides", ()), example=example, version="0.19.8", **kwargs)
    return {f.gate: f for f in judged.report.findings}


@pytest.mark.parametrize(
    ("text", "gate", "severity"),
    [
        ("model: {name_or_path: /models/mine, trust_remote_code: true}", "SE001", "warning"),
        (f"model: {{name_or_path: a/b, trust_remote_code: true, revision: {'a1' * 20}}}", "SE001", "warning"),
        ("model: {name_or_path: a/b, trust_remote_code: true, revision: main}", "SE001", "error"),
        ("launch: {env: {WANDB_API_KEY: x}}", "SE003", "warning"),
        ("launch: {env: {TOKENIZERS_PARALLELISM: 'false'}}", None, ""),
        ("launch: {env: {'A;B': x}}", "SE005", "error"),
        ('launch: {env: {A: "x\\ny"}}', "SE005", "error"),
        ("launch: {env: {A: 'a b, c=d'}}", None, ""),
        ("launch: {env: {PATH: '/opt/bin:$PATH'}}", "SE008", "error"),
        ("launch: {env: {LD_PRELOAD: ./evil.so}}", "SE008", "error"),
        ("launch: {env: {NCCL_DEBUG: INFO, HF_HOME: /models, PYTHONUNBUFFERED: 1}}", None, ""),
        ("launch: {output_dir: 'runs/$(id)'}", "SE006", "error"),
        ("launch: {output_dir: 'my runs/a-b_c.d'}", None, ""),
        ("model: {name_or_path: $HOME/model}", "SE007", "error"),
        ("data: {train: [a.txt, $B/c.txt]}", "SE007", "error"),
        (f"model: {{config: {GPT2}}}\ndata: {{max_length: 33}}", "MD014", "error"),
        (f"model: {{config: {GPT2}}}\ndata: {{max_length: 32}}", None, ""),
        ("optimizer: {type: sgd, eps: 1.0e-8}\nzero: {stage: 1}", "MD009", "warning"),
        ("export: {at_end: true, sample_tokens: 5}", "MD013", "warning"),
        ("model: {config: {model_type: llama}, random_init: true}", "MD017", "info"),
        ("data: {eval: a.txt, eval_fraction: 0.0}", None, ""),
        ("eval: {eval_steps: 11}", "CK011", "warning"),
        ("export: {at_end: true}\ncheckpoint: {save_at_end: false, save_steps: 11}", "CK008", "error"),
        ("checkpoint: {save_total_limit: 1, save_steps: 5}", None, ""),
        ("deepspeed: {data_efficiency: {enabled: false}}", None, ""),
    ],
)  # fmt: skip
def test_run_specs(text, gate, severity, write):
    report = found(write, text, launching=False)
    mine = {k: f for k, f in report.items() if k[:2] in FAMILIES and (k != "CK011" or k == gate)}
    assert set(mine) == ({gate} if gate else set())
    assert not gate or mine[gate].severity == severity


@pytest.mark.parametrize(
    ("files", "severity", "message"),
    [
        ({}, "warning", "`model.trust_remote_code` lets Python files of `./m` run, and there are none"),
        (
            {"modeling_own.py": ""},
            "warning",
            "`model.trust_remote_code` runs Python files of `./m` on every rank",
        ),
        (
            {"config.json": '{"auto_map": {"AutoModelForCausalLM": "who/else--modeling_own.Own"}}'},
            "error",
            "`model.trust_remote_code` runs `who/else--modeling_own.Own`, which `./m` names, on every rank",
        ),
    ],
)
def test_code_of_a_folder_is_named_as_it_is_there(files, severity, message, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    for name, text in files.items():
        (tmp_path / "m" / name).write_text(text)
    finding = found(write, "model: {name_or_path: ./m, trust_remote_code: true}", launching=False)["SE001"]
    assert (finding.severity, finding.message) == (severity, message)


TWO = "a slots=1\nb slots=1\n"


@pytest.mark.parametrize("value", ['a"; touch x; echo "b', "$HOME/x", "a\\b", "$(id)", "`id`"])
def test_what_a_remote_shell_would_read_is_refused_where_there_is_one(write, value):
    env = f"launch: {{env: {{A: {json.dumps(value)}}}}}"
    assert found(write, env, hostfile=TWO)["SE005"].severity == "error"
    over_mpi = env.replace("launch: {", "launch: {launcher: openmpi, ")
    always = value in ("$(id)", "`id`")
    assert ("SE005" in found(write, over_mpi, hostfile=TWO)) is always
    assert ("SE005" in found(write, env)) is always


@pytest.mark.parametrize("value", ["a b", "a=b, c", "'quoted'", "a;b|c&d", "-O3 (x) [y] {z} * ? ~ #"])
def test_what_stands_between_double_quotes_is_let_through(write, value):
    assert "SE005" not in found(write, f"launch: {{env: {{A: {json.dumps(value)}}}}}", hostfile=TWO)


def test_a_spec_cannot_ignore_what_runs_code(write):
    text = "launch: {env: {PYTHONPATH: ./evil}}\nignore: {SE008: we trust it}"
    assert {"SE008", "GT002"} <= found(write, text).keys()
    assert "has no effect" in found(write, text)["GT002"].message
    assert "SE008" not in found(write, text, allow_code=True)


LTD = {
    "total_layer_num": 2,
    "random_ltd_layer_num": 1,
    "random_ltd_schedule": {
        "min_value": 4,
        "max_value": 8,
        "schedule_type": "fixed_linear",
        "schedule_config": {"require_steps": 4, "seq_per_step": 2},
    },
}
"""All keys that `random_ltd` must have: with them it runs on 0.19.8."""


def data_efficiency(part, block, keys):
    """A DeepSpeed JSON's `data_efficiency` with this block of one of its parts on."""
    return {"data_efficiency": {"enabled": True, part: {"enabled": True, block: {"enabled": True, **keys}}}}


def without(keys, name):
    return {key: value for key, value in keys.items() if key != name}


@pytest.mark.parametrize(
    ("block", "gate", "severity"),
    [
        ({"checkpoint": {"load_universal": True}}, "CK004", "info"),
        ({"checkpoint": {"writer": {"type": "fast", "data_parallel": "replica"}}}, None, ""),
        ({"checkpoint": {"parallel_write": {"pipeline_stage": True}}, "pipeline": {"stages": 2}}, None, ""),
        ({"autotuning": {"enabled": True}}, "UT012", "warning"),
        ({"autotuning": {"enabled": False}}, None, ""),
        ({"datastates_ckpt": None}, "UT014", "error"),
        ({"datastates_ckpt": {"host_cache_size": 16}}, None, ""),
        ({"wandb": {"project": "x"}}, "UT001", "warning"),
        ({"wandb": {}}, None, ""),
        ({"tensorboard": {"enabled": True}}, "UT002", "warning"),
        ({"activation_checkpointing": {"partition_activations": True}}, None, ""),
        ({"dataloader_drop_last": True}, None, ""),
        ({"steps_per_print": None}, None, ""),
        ({"compile": {"deepcompile": True}, "zero_optimization": {"stage": 2}}, "CC011", "info"),
        ({"compile": {"deepcompile": False}, "zero_optimization": {"stage": 2}}, None, ""),
        ({"comms_logger": {"enabled": False}}, "UT019", "warning"),
        ({"comms_logger": {}}, "UT019", "warning"),
        ({"comms_logger": {"verbose": True}}, "UT019", "warning"),
        ({"comms_logger": {"enabled": True}}, None, ""),
        ({"comms_logger": {"enabled": True, "prof_ops": ["all_reduce"]}}, "UT021", "info"),
        ({"comms_logger": {"enabled": True, "prof_all": False, "prof_ops": ["all_reduce"]}}, None, ""),
        (data_efficiency("data_routing", "random_ltd", {}), "UT022", "error"),
        (data_efficiency("data_routing", "random_ltd", LTD), None, ""),
        *((data_efficiency("data_routing", "random_ltd", without(LTD, name)), "UT022", "error") for name in LTD),
        (data_efficiency("data_sampling", "curriculum_learning", {"enabled": False, "curriculum_metrics": {}}), None, ""),
    ],
)  # fmt: skip
def test_deepspeed_jsons(block, gate, severity, write):
    mine = {k: f for k, f in found(write, {**JSON, **block}).items() if k[:2] in FAMILIES}
    assert set(mine) == ({gate} if gate else set())
    assert not gate or mine[gate].severity == severity


def test_a_writer_on_the_cpu_never_works(write):
    block = {"checkpoint": {"writer": {"data_parallel": "replica"}}, "zero_optimization": {"stage": 3}}
    assert found(write, {**JSON, **block}, accelerator="cpu")["CK006"].severity == "error"


def test_node_local_storage_on_one_host_is_fine(write):
    block = {"checkpoint": {"use_node_local_storage": True}}
    assert "CK005" not in found(write, {**JSON, **block}, hostfile="worker-0 slots=2\n")
    assert "CK005" in found(write, {**JSON, **block}, hostfile="worker-0 slots=2\nworker-1 slots=2\n")


@pytest.mark.parametrize("metric", [{}, {"min_difficulty": 1, "max_difficulty": 8, "schedule_type": "fixed_linear"}])
def test_a_metric_that_lacks_its_range_is_a_warning(metric, write):
    learning = {"enabled": True, "curriculum_metrics": {"length": metric}}
    sampling = {"enabled": True, "curriculum_learning": learning}
    told = found(write, {**JSON, "data_efficiency": {"enabled": True, "data_sampling": sampling}})
    assert ("UT008" in told) == (not metric)
    assert not metric or "UT008" not in told
    assert metric or told["UT008"].severity == "warning"
