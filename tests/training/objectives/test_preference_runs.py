# SPDX-License-Identifier: Apache-2.0
"""DPO, KTO and classification as runs: memory of a step in chunks, 4-bit weights, the cached reference, kills, resume."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, set_seed

from harness.runtime.models.quantized_base import quantization_arguments
from harness.runtime.objectives.answer_log_probs import answer_log_probs
from harness.runtime.objectives.preference_losses import DPO_LOSSES, PairRatios
from harness.spec.sections.model_spec import QuantizationSpec
from tests.support.training import preference_case as case
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.label_case import label_spec, save_models
from tests.support.training.preference_runs import ADAM, LORA, spec_of, write, write_data
from tests.support.training.runtime_helpers import JOBS, metric_lines

JOB = JOBS / "preference_events.py"
VOCABULARY = 4096
STEPS = 4
SEED, RATE = 11, 0.03
"""Of the runs over 4-bit weights."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("preference-runs")
    write_data(root)
    save_models(root)
    case.save_model(root / "wide")
    config = AutoConfig.from_pretrained(root / "wide")
    config.vocab_size = VOCABULARY
    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(config).float().save_pretrained(root / "wide")
    return root


def _spec(folder: Path, name: str, stage: int, ranks: int, cache: str, **changes: Any) -> dict[str, Any]:
    """`changes` are laid over the sections."""
    body = spec_of(name, folder, stage=stage, ranks=ranks, cache=cache)
    body["train"]["max_steps"] = STEPS
    for section, fields in changes.items():
        body[section] = body.get(section, {}) | fields
    return body


def _run(
    folder: Path,
    forked: ForkedRanks,
    jobs: list[tuple[str, dict[str, Any], dict[str, Any]]],
    ranks: int,
    **options: Any,
) -> dict[str, Any]:
    """The answer of the ranks. A job is (name, spec, what happens to it)."""
    for name, spec, _ in jobs:
        write(folder / name, spec, ranks)
    file = folder / f"jobs-{jobs[0][0]}.json"
    file.write_text(json.dumps([{"run": str(folder / name), **events} for name, _, events in jobs]))
    return forked.run(JOB, str(file), ranks=ranks, **options)


def _facts(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "facts.json").read_text()))


def _losses(run: Path) -> list[float]:
    return [line["loss"] for line in metric_lines(run, "step")]


@pytest.fixture(scope="module")
def one_rank(folder: Path, forked: ForkedRanks) -> Path:
    """The runs of one rank: with and without chunks, and with 4-bit weights."""
    wide = {"name_or_path": str(folder / "wide")}
    jobs: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    for name in ("dpo", "kto"):
        for chunk in (0, 8):
            train = {"loss_chunk_size": chunk, "per_device_train_batch_size": 16}
            zero = {"reduce_bucket_size": 200_000, "allgather_bucket_size": 200_000}
            spec = _spec(folder, name, 1, 1, f"cache-{name}-{chunk}", model=wide, train=train, zero=zero)
            jobs.append((f"{name}-chunk-{chunk}", spec, {"peak": True}))
    for stage in (0, 2):
        quantized = {"lora": LORA, "quantization": {"load_in_4bit": True}}
        optimizer = {"type": "AdamW", "params": {**ADAM, "lr": RATE, "torch_adam": True}}
        changes = {"model": quantized, "train": {"seed": SEED}, "deepspeed": {"optimizer": optimizer}}
        jobs.append((f"qlora-{stage}", _spec(folder, "dpo", stage, 1, "cache-qlora", **changes), {}))
    _run(folder, forked, jobs, 1, timeout=300)
    return folder


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_log_probabilities_in_chunks_need_a_fifth_of_the_memory(one_rank: Path, name: str) -> None:
    whole, chunked = (one_rank / f"{name}-chunk-{chunk}" for chunk in (0, 8))
    assert _losses(chunked) == pytest.approx(_losses(whole), rel=1e-6)
    assert _facts(chunked)["norms"] == pytest.approx(_facts(whole)["norms"], rel=1e-5)
    assert _facts(chunked)["peak"] < _facts(whole)["peak"] / 5, (_facts(chunked)["peak"], _facts(whole)["peak"])


def test_a_row_is_summed_without_its_last_position_as_trl_sums_it() -> None:
    losses = torch.rand(64, 8, generator=torch.Generator().manual_seed(1)) * 9
    losses[:, -1] = 0
    ids, head = torch.zeros(64, 8, dtype=torch.long), SimpleNamespace(set_token_targets=lambda *_: None)
    sums = answer_log_probs(lambda **_: SimpleNamespace(logits=losses), head, ids, None, ids)  # type: ignore[arg-type]
    assert torch.equal(sums, (-losses[:, :-1].contiguous()).sum(dim=1))
    assert not torch.equal(sums, -losses.sum(dim=1)), "no row would tell"


def test_dpo_over_4_bit_weights_is_that_of_a_plain_process(one_rank: Path) -> None:
    """The reference is the 4-bit model without adapters; it is kept once, whatever the stage."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    expected = _plain_qlora_losses(one_rank)
    assert expected[-1] != pytest.approx(expected[0], rel=1e-3)
    for stage in (0, 2):
        run = one_rank / f"qlora-{stage}"
        assert _losses(run) == pytest.approx(expected, rel=1e-5)
        metrics = metric_lines(run, "step")[0]["metrics"]
        assert {metrics[key] for key in ("rewards_chosen", "rewards_rejected", "rewards_margin")} == {0.0}
    assert _facts(one_rank / "qlora-0")["computed"] > _facts(one_rank / "qlora-2")["computed"] == 1


def _plain_qlora_losses(folder: Path) -> list[float]:
    """With `transformers`, `peft`, bitsandbytes and torch's own AdamW; the reference is computed at each step."""
    import peft

    arguments = quantization_arguments(QuantizationSpec(load_in_4bit=True), torch.float32)
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, **arguments)
    set_seed(SEED)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **LORA)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    from transformers import AutoTokenizer

    tokenizer, losses = AutoTokenizer.from_pretrained(folder / "model"), []
    records = case.pairs()
    for step in range(STEPS):
        sums, reference, tokens = [], [], []
        for kind in ("chosen", "rejected"):
            for record in records[2 * step : 2 * step + 2]:
                prompt = tokenizer(record["prompt"])["input_ids"]
                answer = [*tokenizer(record[kind])["input_ids"], tokenizer.eos_token_id]
                sums.append(_log_prob(model, prompt, answer))
                with torch.no_grad(), model.disable_adapter():
                    reference.append(_log_prob(model, prompt, answer))
                tokens.append(len(answer))
        ratios = torch.stack(sums) - torch.stack(reference)
        loss = DPO_LOSSES["sigmoid"](PairRatios(*ratios.chunk(2), *torch.tensor(tokens).chunk(2)), 0.1, 0.0).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _log_prob(model: Any, prompt: list[int], answer: list[int]) -> torch.Tensor:
    logits = model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    return logits.float().log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).sum()


@pytest.fixture(scope="module")
def two_ranks(folder: Path, forked: ForkedRanks) -> Path:
    """The runs of two ranks: the reference beside a live one, killed and whole; runs that are killed and whole."""
    drawn = {"data": {"shuffle": True, "group_by_length": True}, "train": {"per_device_train_batch_size": 1}}
    saved = {"checkpoint": {"save_steps": 2, "save_at_end": True}}
    dpo = _spec(folder, "dpo", 3, 2, "cache-resume", **saved)
    labels = label_spec(folder, "names", "model", stage=3, ranks=2)
    labels["train"]["max_steps"], labels["checkpoint"] = STEPS, saved["checkpoint"]
    one_epoch = {"dpo": drawn | {"train": drawn["train"] | {"max_steps": 8}}, "kto": {"data": drawn["data"]}}
    whole = [
        *((f"{n}-live", _spec(folder, n, 3, 2, "cache-live", **more), {"live": True}) for n, more in one_epoch.items()),
        ("dpo-straight", dpo, {}),
        ("labels-straight", labels, {}),
        ("reference-whole", _spec(folder, "dpo", 3, 2, "cache-whole", **drawn), {}),
    ]
    _run(folder, forked, whole, 2, timeout=300)
    killed = _spec(folder, "dpo", 3, 2, "cache-killed", **drawn)
    for name, spec, event in (
        ("reference-killed", killed, {"kill_reference": 5}),
        ("dpo-killed", dpo, {"kill_step": 3}),
        ("labels-killed", labels, {"kill_step": 3}),
    ):
        answer = _run(folder, forked, [(name, spec, event)], 2, check=False)
        assert answer["codes"][1] == -9, answer["output"][0][-2000:]
        assert answer["codes"][0] != 0
        assert not (folder / name / "facts.json").exists()
    resumed = [
        (f"{name}-resumed", spec, {"resume": str(folder / f"{name}-killed" / "checkpoints" / "step-00000002")})
        for name, spec in (("dpo", dpo), ("labels", labels))
    ]
    _run(folder, forked, [("reference-again", killed, {}), *resumed], 2)
    return folder


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_the_cached_reference_is_that_of_a_second_engine_to_the_bit(two_ranks: Path, name: str) -> None:
    facts = _facts(two_ranks / f"{name}-live")
    assert facts["compared"] == 2 * len(case.pairs())  # both ranks, an epoch of rows
    assert facts["differing"] == 0


def test_a_killed_reference_goes_on_after_its_last_block(two_ranks: Path) -> None:
    """Of 16 micro-batches in blocks of 4, a rank died in the third block; one is asked again before blocks are used."""
    assert _files(two_ranks / "cache-killed") == _files(two_ranks / "cache-whole") != {}
    whole, again = (_facts(two_ranks / name)["computed"] for name in ("reference-whole", "reference-again"))
    assert (whole, again) == (8, 1 + 4)
    assert _losses(two_ranks / "reference-again") == _losses(two_ranks / "reference-whole")


def _files(cache: Path) -> dict[str, bytes]:
    return {str(f.relative_to(cache)): f.read_bytes() for f in sorted(cache.glob("references/**/*.json"))}


@pytest.mark.parametrize("name", ["dpo", "labels"])
def test_a_killed_run_resumes_bit_for_bit(two_ranks: Path, name: str) -> None:
    straight, resumed = two_ranks / f"{name}-straight", two_ranks / f"{name}-resumed"
    assert _losses(resumed) == _losses(straight)[2:]
    assert _facts(resumed)["norms"] == _facts(straight)["norms"][2:]
    last = Path("checkpoints") / f"step-{STEPS:08}"
    tensors, again = (_tensors(run / last) for run in (straight, resumed))
    assert tensors.keys() == again.keys()
    assert len(tensors) > 10
    assert all(torch.equal(tensor, again[key]) for key, tensor in tensors.items())


def _tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All tensors of the files of a checkpoint, by file and place."""
    found: dict[str, torch.Tensor] = {}

    def walk(value: Any, place: str) -> None:
        if isinstance(value, torch.Tensor):
            found[place] = value
        elif isinstance(value, dict):
            for key, one in value.items():
                walk(one, f"{place}/{key}")
        elif isinstance(value, list | tuple):
            for i, one in enumerate(value):
                walk(one, f"{place}/{i}")

    for file in sorted(checkpoint.rglob("*")):
        if file.suffix == ".pt":
            walk(torch.load(file, weights_only=False), file.name)
        elif file.suffix == ".safetensors":
            walk(load_file(file), file.name)
    return found
