# SPDX-License-Identifier: Apache-2.0
"""Questions of `harness plan` and `size` beyond the plan of one run: the option that asks, the function that answers.

A new question is an option in `plan_options.py` and `plan_commands.py`, a mode in `plan_modes.py`, a field of
`PlanOptions`, and a line in `QUESTIONS`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.check.fit_table import FitSearch, make_fit_table
from harness.cli.plan_calibrate import calibrate_by_runs
from harness.errors import ExitCode
from harness.plan.plan_usage import parse_count_option, usage_error
from harness.plan.search.plan_request import DEFAULT_BATCH_TOKENS, PlanRequest, default_length
from harness.views.plan_fit_table import min_gpus_as_dict, render_min_gpus
from harness.views.style import style_for

_EXAMPLE = "harness size --model llama-3.1-70b --gpus 8 --gpu H100-80GB"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The values of the options of `harness plan` that a question may look at."""

    spec: str | None = None
    model: str | None = None
    params: str | None = None
    gpus: int | None = None
    gpu: str | None = None
    gpus_per_node: int | None = None
    host_memory: str | None = None
    nvme: str | None = None
    zero_stage: int | None = None
    max_length: int | None = None
    batch_tokens: str | None = None
    tokens: str | None = None
    epochs: float | None = None
    price: float | None = None
    min_gpus: bool = False
    cheapest: bool = False
    longest: bool = False
    largest_model: bool = False
    deadline: str | None = None
    measured: str | None = None
    kind_prices: tuple[str, ...] = ()
    price_file: str | None = None
    write: str | None = None
    plot: str | None = None
    html: str | None = None
    search: bool = False
    overrides: Sequence[str] | None = None
    hostfile: str | None = None
    world_size: int | None = None
    here: bool = False
    allow_local_code: bool = False
    calibrate: tuple[str, ...] = ()
    calibration: str | None = None
    simulate: bool = False
    rank: int = 0
    layers: int | None = None
    races: bool = False
    trace: str | None = None

    @property
    def assumed(self) -> tuple[str, ...]:
        """The options that decide the size of a step, and that nobody gave; none of a spec, which has its own."""
        sizes = {"--max-length": self.max_length, "--batch-tokens": self.batch_tokens}
        return tuple(name for name, value in sizes.items() if value is None and self.spec is None)

    def to_request(self, *, needs_gpus: bool = True) -> PlanRequest:
        """The run of a few words. Raises UserError where the words are too few; `needs_gpus` False: one GPU where no
        number is given.
        """
        if self.model is None or self.gpu is None or (self.gpus is None and needs_gpus):
            fix = f"try `{_EXAMPLE}`; `--min-gpus` finds the number of GPUs"
            raise usage_error("a plan needs a spec, or `--model`, `--gpus` and `--gpu`", fix)
        return PlanRequest(
            self.model,
            1 if self.gpus is None else self.gpus,
            self.gpu,
            self.gpus_per_node,
            self.host_memory,
            self.nvme,
            self.zero_stage,
            default_length(self.model) if self.max_length is None else self.max_length,
            int(parse_count_option("--batch-tokens", self.batch_tokens or DEFAULT_BATCH_TOKENS)),
            tuple(self.overrides or ()),
        )


class Answer(NamedTuple):
    """Text for people, values for programs, and the exit code."""

    text: str
    body: Mapping[str, Any]
    code: ExitCode = ExitCode.OK
    spec: Mapping[str, Any] | None = None
    """The run spec that the answer names, for `--write`."""


class Question(NamedTuple):
    """Whether it is asked, and the function that answers it."""

    is_asked: Callable[[PlanOptions], bool]
    answer: Callable[[PlanOptions], Answer]


def _answer_min_gpus(options: PlanOptions) -> Answer:
    table = make_fit_table(fit_search(options))
    width = shutil.get_terminal_size((110, 24)).columns
    code = ExitCode.FINDINGS if table.fewest_of_all is None else ExitCode.OK
    return Answer(render_min_gpus(table, style_for(sys.stdout), width), min_gpus_as_dict(table), code)


def fit_search(options: PlanOptions) -> FitSearch:
    """The search for the ways of a run without a spec. Raises UserError with everything that is wrong."""
    tokens = 1e9 if options.tokens is None else parse_count_option("--tokens", options.tokens)
    if options.gpu == "cpu":
        raise usage_error("`--gpu cpu` is no GPU to count", "give a kind of GPU, such as `H100-80GB`")
    return FitSearch(options.to_request(needs_gpus=False), tokens, options.price)


QUESTIONS: tuple[Question, ...] = (
    Question(
        lambda options: bool(options.calibrate),
        lambda options: Answer(*calibrate_by_runs(options.calibrate, options.calibration)),
    ),
    Question(lambda options: options.min_gpus, _answer_min_gpus),
)


def answer_question(options: PlanOptions, more: Sequence[Question] = ()) -> Answer | None:
    """The answer to the question that the options ask, None where they ask for a plan. `more`: further questions."""
    asked = (question for question in (*QUESTIONS, *more) if question.is_asked(options))
    question = next(asked, None)
    return None if question is None else question.answer(options)
