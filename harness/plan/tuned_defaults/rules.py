# SPDX-License-Identifier: Apache-2.0
"""All tuned defaults of a run: applies every rule of this folder, or the sizes that another trainer chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from harness.facts.model_lookup import ModelFacts
from harness.plan.settings.plan_settings import PlanSettings, settings_of
from harness.plan.tuned_defaults import model_defaults, zero_defaults
from harness.plan.tuned_defaults.attention_kernel import choose_attention_kernel
from harness.plan.tuned_defaults.default_inputs import DefaultInputs
from harness.run.resolved_run import ATTN_IMPLEMENTATION, ResolvedRun
from harness.run.tuned_default import TunedDefault

_RULES: tuple[Callable[[DefaultInputs], TunedDefault | tuple[TunedDefault, ...] | None], ...] = (
    zero_defaults.choose_reduce_bucket,
    zero_defaults.choose_leaf_modules,
    zero_defaults.choose_persistence,
    zero_defaults.choose_prefetch_bucket,
    zero_defaults.choose_reuse_distance,
    zero_defaults.choose_live_parameters,
    zero_defaults.choose_sub_group_size,
    zero_defaults.choose_pipelined_swap,
    zero_defaults.choose_swap_buffers,
    model_defaults.choose_loss_chunk_size,
)
"""Measured and rejected: `use_multi_rank_bucket_allreduce: false`, see `benchmarks/LOG.md`."""
_BY_HIDDEN_SIZE: Mapping[str, Callable[[int], int]] = {
    "reduce_bucket_size": lambda hidden: hidden * hidden,
    "stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""`"auto"` at stage 3, as transformers and accelerate fill it in."""


def with_tuned_defaults(run: ResolvedRun, base_dir: Path | None = None, *, by_name: bool = False) -> ResolvedRun:
    """The run with its tuned defaults; unchanged where it has them. `base_dir` and `by_name` as for `make_plan`.

    A model that only `transformers` can count is unknown here: a build of it takes seconds.
    """
    if run.tuned_defaults is not None:
        return run
    return run._replace(tuned_defaults=tuned_defaults_for(run, run.find_model(base_dir, by_name=by_name).facts))


def tuned_defaults_for(
    run: ResolvedRun, model: ModelFacts | None, settings: PlanSettings | None = None
) -> tuple[TunedDefault, ...]:
    """The tuned defaults of a run. With `tuned_defaults: false` only the attention kernel, where the spec asks for one;
    none for a DeepSpeed JSON, where a missing key means DeepSpeed's default. `settings`: those with that kernel alone,
    where the caller has them.
    """
    asked = asked_kernel(run, model)
    if not run.spec.tuned_defaults or run.kind != "spec":
        return asked
    run = run._replace(tuned_defaults=asked)
    is_known = model is not None and not (model.built or model.counted_only)
    inputs = DefaultInputs(run, model if is_known else None, settings or settings_of(run))
    choices = (rule(inputs) for rule in _RULES)
    defaults = asked + tuple(
        default
        for choice in choices
        if choice is not None
        for default in ((choice,) if isinstance(choice, TunedDefault) else choice)
    )
    if not model_defaults.is_recomputation_asked(inputs):
        return defaults
    settings = settings_of(run._replace(tuned_defaults=defaults))
    layers = model_defaults.choose_recomputed_layers(replace(inputs, settings=settings))
    return defaults if layers is None else (*defaults, layers)


def asked_kernel(run: ResolvedRun, model: ModelFacts | None) -> tuple[TunedDefault, ...]:
    """The attention kernel where the spec asks for a choice, the one default that needs no settings."""
    attention = choose_attention_kernel(DefaultInputs(run, model, None))
    return () if attention is None else (attention,)


def with_trainer(run: ResolvedRun, trainer: str, model: ModelFacts | None) -> ResolvedRun:
    """The run as this trainer would train it: no patch, no chunked loss, and none of our defaults."""
    hidden = model.hidden if model is not None and run.spec.zero.stage == 3 else 0
    filled = [
        TunedDefault(key, f"zero_optimization.{key}", size(hidden), None, "filled in for `auto`")
        for key, size in _BY_HIDDEN_SIZE.items()
        if hidden
    ]
    kept = [each for each in run.tuned_defaults or () if each.key == ATTN_IMPLEMENTATION]
    return run._replace(kind="deepspeed-json", trainer=trainer, tuned_defaults=(*kept, *filled))
