# SPDX-License-Identifier: Apache-2.0
"""`harness plan` from the command line: what it prints, where, and its exit codes. Needs nothing; a second."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app

SPEC = """\
name: small
model: {name_or_path: meta-llama/Llama-3.1-8B}
data: {train: "builtin:python-docs", max_length: 2048}
train: {max_steps: 10, per_device_train_batch_size: 1, gradient_checkpointing: true}
precision: {bf16: true}
zero: {stage: 3}
cluster: {gpu: H100, gpus_per_node: 8, host_memory: 1TB}
"""
Write = Callable[[str, str], str]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(
        build_app(list(arguments)), list(arguments), catch_exceptions=False, env={"COLUMNS": "100"}
    )


def test_a_plan_is_on_stdout_and_stderr_is_empty(write: Write) -> None:
    result = run("plan", write("small.yaml", SPEC))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("small: 8.03 B parameters in bf16, ZeRO-3")
    assert "Plan: 8 ranks, 0 errors, 0 warnings. Nothing was started and no host was contacted." in result.stdout


def test_a_plan_of_an_own_module_says_why_it_has_no_memory(write: Write) -> None:
    own = "objective: custom\nplugins: {file: own.py}\ntrain: {max_steps: 1, per_device_train_batch_size: 1}\n"
    result = run("plan", write("own.yaml", own))
    assert result.exit_code == 0
    assert "the file of `plugins.file` builds it, and running it was not allowed" in result.stderr
    assert result.stdout.strip().splitlines()[-1].endswith(".yaml --allow-local-code --dry-run")


def test_next_repeats_what_was_asked(write: Write) -> None:
    hosts, spec = write("hosts", "a slots=8\nb slots=8\n"), write("small.yaml", SPEC)
    result = run("plan", spec, "--hostfile", hosts, "--set", "train.max_steps=5")
    last = result.stdout.strip().splitlines()[-1]
    assert last == f"Next: harness launch {spec} --set train.max_steps=5 --hostfile {hosts} --dry-run"
    assert "Ranks      16, on 2 hosts x 8 H100-80GB" in result.stdout


def test_next_asks_for_the_hosts_of_a_run_on_several(write: Write) -> None:
    spec = write("small.yaml", SPEC)
    result = run("plan", spec, "--set", "cluster.num_nodes=2", "--set", "cluster.gpus_per_node=8")
    assert result.stdout.strip().splitlines()[-1].endswith("--hostfile HOSTFILE --dry-run")


def test_json_is_alone_on_stdout(write: Write) -> None:
    result = run("plan", write("small.yaml", SPEC), "--format", "json", "--set", "cluster.host_memory=1GB")
    body = json.loads(result.stdout)
    assert (body["fits"], body["binding_constraint"], body["world"]) == (False, "host memory", 8)
    assert "MM005" in result.stderr
    assert result.exit_code == 1, "nothing fits"
    assert body["step_seconds"] is body["tokens_per_second"] is body["cost"] is None
    assert body["no_step_time_because"] == "it does not fit: host memory"
    assert body["if_it_fitted"]["step_seconds"] > 0
    assert body["nearest_fit"]["host_bytes"] > 1e9


def test_what_fits_has_ranges_and_no_reason(write: Write) -> None:
    body = json.loads(run("plan", write("small.yaml", SPEC), "--format", "json", "--tokens", "1e9").stdout)
    for key in ("step_seconds", "tokens_per_second"):
        least, most = body[f"{key}_range"]
        assert least < body[key] < most
    for key in ("hours", "gpu_hours"):
        least, most = body["cost"][f"{key}_range"]
        assert least < body["cost"][key] < most
    assert body["no_step_time_because"] is body["if_it_fitted"] is None
    assert body["fits_in_training"] is True
    rows = body["alternatives"] + body["fastest_that_fit"]
    assert all((row["step_seconds"] is None) == (row["fits"] is False) for row in rows)


def test_a_run_that_does_not_fit_and_an_alternative_that_does(write: Write) -> None:
    result = run("plan", write("small.yaml", SPEC), "--set", "zero.stage=0")
    assert result.exit_code == 0, "an alternative fits"
    assert "Does not fit: GPU memory" in result.stdout
    assert "Would fit" in result.stdout
    last = result.stdout.strip().splitlines()[-1]
    assert last.startswith("Next: harness plan ")
    assert last.endswith(" --search --write small-fits.yaml")
    assert "zero.stage" not in last
    written = write("found.yaml", "")
    found = run(*last.removeprefix("Next: harness ").replace("small-fits.yaml", written).split())
    assert found.exit_code == 0
    assert "\nFits: " in found.stdout
    assert "Next: harness launch " in found.stdout


@pytest.mark.parametrize(
    ("change", "gate"),
    [
        ("model.name_or_path=nobody/nothing", "MM001"),
        ("cluster.gpu=H101", "MM003"),
        ("cluster.host_memory=lots", "MM004"),
    ],
)
def test_what_is_not_known_points_at_the_key(write: Write, change: str, gate: str) -> None:
    result = run("plan", write("small.yaml", SPEC), "--set", change)
    assert result.exit_code == 0
    assert f"[{gate}]" in result.stderr
    assert f"the command line, {change}" in result.stderr


def test_errors_come_first_and_end_it(write: Write) -> None:
    result = run("plan", write("small.yaml", SPEC.replace("stage: 3", "stage: 9")))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "small.yaml:6:15" in result.stderr
    assert "Nothing was planned." in result.stderr


def test_no_file(write: Write) -> None:
    result = run("plan", "no-such-file.yaml")
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


def test_a_deepspeed_json_says_nothing_about_the_model(write: Write) -> None:
    text = '{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}'
    result = run("plan", write("ds.json", text), "--world-size", "4")
    assert result.exit_code == 0
    assert "a model of unknown size" in result.stdout
    assert "Next:" not in result.stdout


def test_without_a_spec_the_fastest_that_fits_is_found_and_planned() -> None:
    flags = "plan --model llama-3.1-70b --gpus 8 --gpu H100-80GB --host-memory 2TB --nvme 8x3.5TB".split()
    result = run(*flags)
    assert result.exit_code == 0
    assert " fit, this one is the fastest" in result.stdout
    assert "70.55 B parameters in bf16, ZeRO-3, optimizer on CPU" in result.stdout
    assert "\nOnly `harness launch` surely fits: " in result.stdout
    assert len(result.stdout.splitlines()) <= 32


def test_nothing_fits_is_exit_code_1_with_what_would_do(write: Write) -> None:
    flags = "plan --model deepseek-v3 --gpus 8 --gpu H100-80GB --host-memory 1TB --tokens 1e9 --price 2".split()
    target = write("small.yaml", SPEC).replace("small.yaml", "found.yaml")
    result = run(*flags, "--write", target)
    assert result.exit_code == 1
    assert "Nothing fits: " in result.stdout
    assert re.search(r"Would be enough: probably \d+ x H100-80GB \(\d+ hosts of 8, CPU offload\)", result.stdout)
    assert "tokens/s" not in result.stdout
    assert "was not written" in result.stderr
    assert not Path(target).exists()
    gpus = int(re.findall(r"Would be enough: probably (\d+) x", result.stdout)[0])
    enough = run(*flags[:3], "--gpus", str(gpus), *flags[5:])
    assert (enough.exit_code, "Not certain: " in enough.stdout) == (0, True)  # by the middle of its range


@pytest.mark.parametrize("words", ["--model llama-3.1-70b --gpu H100-80GB", "--model llama-3.1-405b --gpu H200-141GB"])
def test_the_number_without_offload_is_that_of_min_gpus(words: str) -> None:
    """Two searches said 5,528 and 520 GPUs for one model."""
    plan = run("size", *words.split(), "--gpus", "8", "--host-memory", "9TB")
    table = json.loads(run("size", *words.split(), "--min-gpus", "--host-memory", "9TB", "--format", "json").stdout)
    ways = {each["way"]: each["fewest"] for each in table["table"]["ways"]}
    assert f"; {ways['all on GPUs']['gpus']:,} GPUs would do" in " ".join(plan.stdout.split())


def test_the_screen_says_what_more_gpus_do_not_divide_and_what_is_sent() -> None:
    text = " ".join(
        run(*"size --model llama-3.1-8b --gpus 8 --gpu H100-80GB --tokens 10M --epochs 3".split()).stdout.split()
    )
    peak = float(re.findall(r"GPU ([\d.]+) GiB of", text)[0])
    with_twice, whole = re.findall(r"with twice the GPUs ([\d.]+) GiB; not divided: ([\d.]+) GiB activations", text)[0]
    assert peak / 2 < float(with_twice) < peak
    assert float(whole) < float(with_twice)
    sent, gradients, weights = re.findall(
        r"sends ([\d.]+) TiB a step: ([\d.]+) GiB gradients, ([\d.]+) GiB parameters", text
    )[0]
    assert float(sent) * 1024 == pytest.approx(float(gradients) + float(weights), rel=0.01)
    assert "30.00 M tokens, 29 steps: " in text


def test_disks_say_the_bytes_of_a_parameter_and_the_buffers() -> None:
    words = "size --model llama-3.1-70b --gpus 8 --gpu A100-80GB --host-memory 256GB --nvme 8TB"
    text = " ".join(run(*words.split()).stdout.split())
    assert "12 bytes a parameter; DeepSpeed alone, which swaps gradients, 16" in text
    assert "`offload_optimizer.buffer_count` 12: 4 a sub-group in flight" in text


def test_a_method_that_samples_answers_is_told_what_can_be_planned() -> None:
    result = run(*"size --model llama-3.1-8b --gpus 8 --gpu H100 --set objective=grpo".split())
    assert result.exit_code == 1
    assert "PPO's critic as `reward`" in result.stderr
    other = run(*"size --model llama-3.1-8b --gpus 8 --gpu H100 --set optimizer.type=x".split())
    assert "critic" not in other.stderr


def test_min_gpus_without_a_result_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.check.fit_table.counts_of", lambda _: (1, 2))
    monkeypatch.setattr("harness.check.fit_table._MOST_HOSTS", 0)
    result = run(*"plan --model llama-3.1-405b --gpu H100-80GB --host-memory 1TB --min-gpus".split())
    assert result.exit_code == 1
    assert "does not fit" in result.stdout


@pytest.mark.parametrize("tokens", ["4194304", "1000000", "100"])
def test_a_batch_that_cannot_be_is_said_with_the_nearest(tokens: str) -> None:
    flags = f"plan --model llama-3.1-8b --gpus 16 --gpu H100 --host-memory 2TB --batch-tokens {tokens}".split()
    result = run(*flags)
    body = json.loads(run(*flags, "--format", "json").stdout)
    whole = (
        16 * 4096 if int(tokens) >= 16 * 4096 else 4096
    )  # a step of fewer rows than ranks is divided by other degrees
    if int(tokens) % whole == 0:
        assert "MM007" not in result.stdout
        assert body["tokens_per_step"] == int(tokens)
        return
    text = " ".join(result.stdout.split())
    assert f"warning[MM007]: {int(tokens):,} tokens per step are not a multiple of {whole:,}" in text
    assert f"planned with {body['tokens_per_step']:,}" in text
    assert body["tokens_per_step"] == max(1, round(int(tokens) / whole)) * whole
    for nearest in (int(tokens) // whole * whole, int(tokens) // whole * whole + whole):
        if nearest:
            assert f"`--batch-tokens {nearest}`" in run(*flags, "--long").stderr


def test_experts_that_cannot_deadlock_have_no_warning(write: Write) -> None:
    result = run(*"plan --model deepseek-v3 --gpus 128 --gpu H200 --host-memory 2TB".split())
    assert result.exit_code == 0
    assert "EX017" not in result.stdout + result.stderr
    spec = write("small.yaml", SPEC.replace("meta-llama/Llama-3.1-8B", "deepseek-v3"))
    assert "EX017" not in run("plan", spec).stdout
    assert "EX017" not in run("validate-config", spec).stdout
    assert "EX017" in run("validate-config", spec, "--set", "model.trust_remote_code=true").stdout
    faulty = write("faulty.yaml", SPEC.replace("meta-llama/Llama-3.1-8B", "deepseek-v3") + "\nnope: 1\n")
    stopped = run("plan", faulty)
    assert "SP005" in stopped.stdout + stopped.stderr
    assert "EX017" not in stopped.stdout + stopped.stderr, "nor where the plan stops at an error"


def test_the_search_is_in_the_json_with_the_spec_that_it_found() -> None:
    flags = "plan --model llama-3.1-70b --gpus 8 --gpu H100-80GB --host-memory 2TB --format json".split()
    body = json.loads(run(*flags).stdout)
    assert body["search"]["searched"] > 100
    assert body["spec"]["zero"]["offload_optimizer"] == {"device": "cpu"}
    assert body["fits"] is True
    assert body["step_seconds"] == min(
        r["step_seconds"] for r in body["search"]["fastest"] if "sequence" not in r["title"]
    )
    for key in ("model_states_per_rank_bytes", "gpu_peak_bytes", "host_peak_bytes", "nvme_bytes", "binding_constraint"):
        assert key in body


def test_a_given_stage_is_searched_alone_and_overlaps_its_reductions() -> None:
    body = json.loads(
        run(
            *"size --model llama-3.1-8b --gpus 8 --gpu H100 --zero-stage 2 --host-memory 2TB --format json".split()
        ).stdout
    )
    assert {each["zero_stage"] for each in body["search"]["fastest"]} == {2}
    assert body["spec"]["zero"] == {"stage": 2, "overlap_comm": True}


@pytest.mark.parametrize(
    ("given", "row"),
    [
        ("zero.offload_optimizer.device=none", "1 x 8 data ranks x 32"),
        ("zero.offload_optimizer=null", "1 x 8 data ranks x 32"),
        ("train.gradient_accumulation_steps=16", "2 x 8 data ranks x 16"),
        ("train.gradient_accumulation_steps=null", "1 x 8 data ranks x 32"),
    ],
)
def test_a_search_keeps_what_a_given_value_means(given: str, row: str) -> None:
    """No offload is the same with and without its section; accumulation steps make the micro-batch."""
    flags = "plan --model llama-3.1-8b --gpus 8 --gpu H100-80GB --search --host-memory 2TB --set".split()
    shown = run(*flags, given).stdout
    assert "Searched" in shown
    assert row in shown
    if "offload" in given:
        assert "on CPU" not in shown.splitlines()[0]


def test_search_writes_a_spec_that_validates_and_plans_the_same(write: Write) -> None:
    spec = write("small.yaml", SPEC)
    target = spec.replace("small.yaml", "found.yaml")
    result = run("plan", spec, "--search", "--write", target, "--format", "json")
    assert result.exit_code == 0
    assert run("validate-config", target).exit_code == 0
    found, again = json.loads(result.stdout), json.loads(run("plan", target, "--format", "json").stdout)
    assert (again["gpu_peak_bytes"], again["step_seconds"]) == (found["gpu_peak_bytes"], found["step_seconds"])


def test_a_plan_that_writes_files_does_not_say_that_nothing_was_written(write: Write) -> None:
    spec = write("small.yaml", SPEC)
    target = spec.replace("small.yaml", "found.yaml")
    result = run("plan", spec, "--search", "--write", target, "--plot", spec.replace("small.yaml", "memory.svg"))
    assert Path(target).is_file()
    assert f"Wrote {target}" in result.stderr
    assert "Nothing was started and no host was contacted." in result.stdout
    assert "Nothing was written" not in result.stdout


def test_a_bare_count_is_the_table_of_the_paper() -> None:
    result = run(*"plan --params 70e9 --gpus 256 --zero-stage 3 --gpu H100-80GB".split())
    for size in ("1,120.00 GB", " 283.28 ", " 143.83 ", "> ZeRO-3          4.38 ", "14 x H100-80GB"):
        assert size in result.stdout
    body = json.loads(run(*"plan --params 7B --gpus 1 --zero-stage 0 --format json".split()).stdout)
    assert body["model_states_per_rank_bytes"] == 112e9


def test_the_fewest_gpus() -> None:
    result = run(*"plan --model llama-3.1-8b --gpu H100-80GB --host-memory 2TB --min-gpus --zero-stage 3".split())
    assert result.exit_code == 0
    assert "llama-3.1-8b fits on 1 x H100-80GB" in result.stdout
    body = json.loads(
        run(*"plan --model llama-3.1-70b --gpu A100-80GB --host-memory 500GB --min-gpus --format json".split()).stdout
    )
    assert body["gpus"] > 8
    assert body["raw_floor_gpus"] == 15


def test_hours_and_cost() -> None:
    flags = "plan --model llama-3.1-8b --gpus 8 --gpu H100 --zero-stage 3 --tokens 1e9 --price 2.5".split()
    text = run(*flags).stdout
    cost = json.loads(run(*flags, "--format", "json").stdout)["cost"]
    assert "1.00 B tokens, " in text
    assert re.search(r"^Cost +\d+ \(\d+ to \d+\)$", text, re.MULTILINE)
    assert cost["money_range"][0] < cost["money"] < cost["money_range"][1]
    assert cost["money"] == pytest.approx(cost["gpu_hours"] * 2.5)


def test_a_cpu_is_no_gpu(write: Write) -> None:
    spec = write("small.yaml", SPEC.replace("{gpu: H100,", "{gpu: cpu,"))
    target = spec.replace("small.yaml", "memory.svg")
    text = run("plan", spec, "--set", "tuned_defaults=true", "--plot", target, "--long").stdout
    assert "device/rank" in text
    assert "device -" in text, "of a tuned default"
    assert "GPU" not in text
    assert "device per rank" in Path(target).read_text(encoding="utf-8")


def test_a_picture(write: Write) -> None:
    from xml.etree import ElementTree

    spec = write("small.yaml", SPEC)
    target = spec.replace("small.yaml", "memory.svg")
    assert run("plan", spec, "--plot", target).exit_code == 0
    root = ElementTree.parse(target).getroot()  # noqa: S314 - written a line above
    text = "".join(root.itertext())
    assert "GPU per rank" in text
    assert "host memory per node" in text
    assert sum(element.tag.endswith("rect") for element in root.iter()) > 20


@pytest.mark.parametrize(
    ("flags", "gate"),
    [
        ("--model nobody/nothing --gpus 8 --gpu H100", "MM001"),
        ("--model llama-3.1-8b --gpus 0 --gpu H100", "MM007"),
        ("--model llama-3.1-8b --gpus 8 --gpu H101", "MM003"),
        ("--model llama-3.1-8b --gpus 8 --gpu H100 --host-memory -2TB", "MM004"),
        ("--model llama-3.1-8b --gpus 8 --gpu H100 --host-memory 2", "MM004"),
        ("--model llama-3.1-8b --gpus 8 --gpu H100 --host-memory 99999999PB", "MM004"),
        ("--model llama-3.1-8b --gpus 8", "MM007"),
        ("--model llama-3.1-8b --gpus 8 --gpu H100 --zero-stage 7", "MM007"),
        ("--model llama-3.1-8b --gpus 8 --gpu H100 --batch-tokens none", "MM007"),
        ("--model llama-3.1-8b --gpus 8 --gpu H100 --price -1", "MM007"),
        ("--params zero", "MM007"),
        ("--params -5", "MM007"),
        ("--params 7e9 --gpus 0", "MM007"),
        ("--params 7e9 --gpu H101", "MM003"),
        ("--min-gpus --model llama-3.1-8b --gpu H101", "MM003"),
        ("--model meta-llama/Llama-9 --gpu H100 --min-gpus", "MM001"),
    ],
)
def test_bad_input_is_a_finding_and_never_a_traceback(flags: str, gate: str) -> None:
    from harness.errors import UserError

    with pytest.raises(UserError) as refused:
        CliRunner().invoke(build_app(["plan"]), ["plan", *flags.split()], catch_exceptions=False)
    assert gate in [f.gate for f in refused.value.findings]
    assert all(f.severity == "error" and f.fix for f in refused.value.findings)


def test_a_search_without_a_gpu_that_is_known_says_so(write: Write) -> None:
    from harness.errors import UserError

    spec = write("small.yaml", SPEC.replace("gpu: H100", "gpu: cpu"))
    with pytest.raises(UserError) as refused:
        run("plan", spec, "--search")
    assert [f.gate for f in refused.value.findings] == ["MM007"]


def test_here_plans_for_the_cpu_and_the_memory_of_a_machine_without_a_gpu(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.check.machine_findings.missing_packages_finding", lambda: None)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    model = (
        "{config: {model_type: llama, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4}, tokenizer: bytes}"
    )
    spec = write("small.yaml", SPEC.replace("{name_or_path: meta-llama/Llama-3.1-8B}", model).partition("cluster")[0])
    anywhere, here = run("plan", spec, "--world-size", "2"), run("plan", spec, "--world-size", "2", "--here")
    assert "The kind of GPU is not known" in anywhere.stdout
    assert here.exit_code == 0, here.stderr
    assert "The kind of GPU is not known" not in here.stdout
    assert re.search(r"\nFits: host memory .*\nHost .* \(this machine\)", here.stdout, re.DOTALL), here.stdout
    small = run("plan", spec, "--world-size", "2", "--here", "--set", "cluster.host_memory=1GB")
    assert " of 954 MiB per host, " in small.stdout, small.stdout
    assert small.exit_code == 1
    assert "Next: " not in small.stdout, "a search needs a GPU of known speed"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("baichuan-7b --gpu V100-32GB", "ZeRO-3 fits on the same GPUs: "),
        ("mixtral-8x7b --gpu A100-80GB", "ZeRO-3, optimizer on CPU fits on the same GPUs: "),
    ],
)
def test_a_stage_that_is_too_low_names_the_next(words: str, answer: str) -> None:
    rest = "--gpus 8 --zero-stage 2 --max-length 1024 --set train.per_device_train_batch_size=1"
    assert answer in run(*f"size --model {words} {rest}".split()).stdout


def test_a_stage_that_does_names_no_other() -> None:
    rest = "--gpus 8 --gpu A100-80GB --zero-stage 2 --max-length 1024"
    assert "fits on the same GPUs" not in run(*f"size --model llama-3.1-8b {rest}".split()).stdout


@pytest.mark.parametrize(
    ("machine", "fix"),
    [
        ("--gpus 2 --gpu RTX3090", "86.99 GiB alone fill 4 such GPUs"),
        ("--gpus 8 --gpu A100-80GB", "remove `model.quant"),
    ],
)
def test_experts_that_are_not_quantized_say_what_they_need(machine: str, fix: str) -> None:
    """Mixtral's experts in 16 bits; weights of 16 bits are offered where the GPUs hold them."""
    result = run(*f"size --model mixtral-8x7b --qlora --max-length 1024 {machine}".split())
    assert result.exit_code == 1
    assert "MD047" in result.output
    assert "a GPU holds 85.13 GiB of weights" in result.output
    assert "22.80 GiB of weights: a copy on each GPU" in result.output
    assert fix in result.output


@pytest.mark.parametrize(
    ("machine", "copy", "divided"),
    [
        ("--gpus 2 --gpu RTX3090", "does not fit (26.81 GiB", "11.40 GiB of them on each of 2 GPUs (14.51 GiB"),
        ("--gpus 8 --gpu A100-80GB", "fits (", "2.85 GiB of them on each of 8 GPUs ("),
    ],
)
def test_experts_in_4_bits_of_another_program_are_a_copy_or_divided(machine: str, copy: str, divided: str) -> None:
    arguments = "size --model mixtral-8x7b --qlora --max-length 1024 --set train.per_device_train_batch_size=1"
    output = run(*f"{arguments} {machine}".split()).output
    assert f"a copy on each GPU {copy}" in output
    assert f"QLoRA with FSDP in another trainer (`bnb_4bit_quant_storage`), {divided}" in output


@pytest.mark.parametrize(("rate", "is_low"), [("16250", True), ("30000", False)])
def test_a_measured_rate_says_the_time_of_the_run_and_whether_small_micro_batches_reach_less(
    rate: str, is_low: bool
) -> None:
    """39 M tokens: 40 min at 16,250 a second."""
    arguments = "size --model llama-7b --gpus 8 --gpu A100-80GB --max-length 256 --tokens 13e6 --epochs 3"
    output = " ".join(run(*f"{arguments} --batch-tokens 32768 --measured {rate}".split()).stdout.split())
    assert f"the run takes {'40' if is_low else '22'} min at it" in output
    assert ("512 to 4,096 tokens a step, 4 to 27%" in output) is is_low
    assert "the plan is of the fastest settings found" in output


def test_a_gpu_on_which_no_launch_starts_names_no_launch() -> None:
    arguments = "size --model llama-3.1-70b --gpus 8 --gpu MI300X --set zero.offload_optimizer.device=none"
    result = run(*arguments.split())
    assert result.exit_code == 0, result.stderr
    assert "\nFits" in result.stdout
    assert "EN022" in result.stdout
    assert "Next: " not in result.stdout


def lines_of(arguments: str) -> str:
    return " ".join(run(*f"plan {arguments}".split()).stdout.split())


def test_a_certain_setting_leads_where_the_fastest_is_not() -> None:
    text = lines_of("--model mistral-small-24b --gpus 8 --gpu H100-80GB")
    assert "sequence 2, micro-batch 8, checkpointing Fits, as far as known: " in text
    assert re.search(r": \d+ fit, this one is the fastest; \d+ others are not certain", text)


def test_what_does_not_fit_names_the_largest_part() -> None:
    text = lines_of("--model llama-3-8b --gpus 1 --gpu RTX4090-24GB --max-length 131072 --host-memory 128GB")
    assert "in the backward pass; the most is 32.0 GiB inputs of 32 layers (gradient checkpointing), then" in text


def test_shorter_sequences_are_no_way_out_at_a_stage_that_divides_no_weights() -> None:
    arguments = "size --model llama-3-8b --gpus 2 --gpu RTX2080TI-11GB --lora"
    pinned = " ".join(run(*arguments.split(), "--zero-stage", "2").stdout.split())
    assert "Nothing fits" in pinned
    assert "sequences of" not in pinned
    assert "Nothing fits" not in run(*arguments.split()).stdout
