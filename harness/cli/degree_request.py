# SPDX-License-Identifier: Apache-2.0
"""The request of `harness plan` with degrees of parallelism, from its options."""

from __future__ import annotations

from typing import Any

from harness.cli.plan_states import parse_gradients
from harness.errors import ExitCode, UserError
from harness.facts.devices import usual_gpus_per_host
from harness.findings import Finding
from harness.plan.degrees.degrees_request import CHOICES, DegreesRequest, validate_choice
from harness.plan.degrees.rank_groups import ParallelDegrees
from harness.plan.plan_usage import check_stage, parse_count_option, usage_error
from harness.plan.search.plan_request import DEFAULT_BATCH_TOKENS, default_length
from harness.plan.search.price_list import split_price_options

_DEFAULTS = {"schedule": None, "precision": "bf16", "checkpointing": "none", "states": "fp32"}


def find_price(values: dict[str, Any]) -> float | None:
    """The one price. Raises UserError for that of a kind of GPU, which is for a comparison of kinds."""
    price, kind_prices = split_price_options(values["prices"])
    if kind_prices:
        message = "`--price KIND=X` compares kinds of GPU, which only `--cheapest` does"
        raise usage_error(message, "give `--price` a number such as `2.5`")
    return price


def request_from_options(own: dict[str, Any], values: dict[str, Any]) -> DegreesRequest:
    """Raises UserError where an option is missing, or is not a word that it takes."""
    check_stage(values["zero_stage"])
    model, gpus, gpu = values["model"], values["gpus"], values["gpu"]
    if model is None or gpus is None or gpu is None:
        example = "harness degrees --model llama-3.1-405b --gpus 16384 --gpu H100-80GB --tensor 8 --pipeline 16"
        raise usage_error("degrees of parallelism need `--model`, `--gpus` and `--gpu`", f"try `{example}`")
    chunks = 1 if own["virtual_stages"] is None else own["virtual_stages"]
    words = {name: own[name] or default for name, default in _DEFAULTS.items()}
    words["schedule"] = words["schedule"] or ("interleaved" if chunks > 1 else "1f1b")
    findings: list[Finding] = []
    for name, word in words.items():
        findings += validate_choice(f"--{name}", str(word), CHOICES[f"--{name}"])
    if findings:
        raise UserError(findings, ExitCode.USAGE)

    def count(name: str) -> int:
        return 1 if own[name] is None else int(own[name])

    degrees = ParallelDegrees(
        world_size=gpus,
        tensor=count("tensor"),
        pipeline=count("pipeline"),
        context=count("context"),
        expert=count("expert"),
        virtual_stages=chunks,
        schedule=words["schedule"],  # type: ignore[arg-type]
        sequence=own["sequence_parallel"] is not False,
        gpus_per_host=usual_gpus_per_host(gpu) if values["gpus_per_node"] is None else values["gpus_per_node"],
    )
    return DegreesRequest(
        model=model,
        gpu=gpu,
        degrees=degrees,
        micro_batch=count("micro_batch"),
        tokens_per_step=parse_count_option("--batch-tokens", values["batch_tokens"] or DEFAULT_BATCH_TOKENS),
        seq_length=default_length(model) if values["max_length"] is None else values["max_length"],
        precision=words["precision"],  # type: ignore[arg-type]
        checkpointing=words["checkpointing"],  # type: ignore[arg-type]
        zero_stage=1 if values["zero_stage"] is None else values["zero_stage"],
        reduced_bytes=parse_gradients(own["gradients"]),
        states=words["states"],  # type: ignore[arg-type]
    )
