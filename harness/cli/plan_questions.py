# SPDX-License-Identifier: Apache-2.0
"""Questions of `harness plan` other than the plan of one run: the option that asks, and the function that answers.

A new question is an option in `plan_options.py`, a field of `PlanOptions`, and a line in `QUESTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.check import auto_plan
from harness.cli.plan_calibrate import calibrate_by_runs
from harness.errors import ExitCode
from harness.plan.bare_count import count_model_states
from harness.plan.plan_request import PlanRequest
from harness.plan.plan_usage import parse_count_option, usage_error
from harness.views import plan_search as search_view

_EXAMPLE = "harness plan --model llama-3.1-70b --gpus 8 --gpu H100-80GB"


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
    max_length: int = 4096
    batch_tokens: str = "1048576"
    tokens: str | None = None
    price: float | None = None
    min_gpus: bool = False
    cheapest: bool = False
    longest: bool = False
    largest_model: bool = False
    deadline: str | None = None
    kind_prices: tuple[str, ...] = ()
    price_file: str | None = None
    write: str | None = None
    plot: str | None = None
    search: bool = False
    overrides: Sequence[str] | None = None
    hostfile: str | None = None
    world_size: int | None = None
    here: bool = False
    calibrate: tuple[str, ...] = ()
    calibration: str | None = None
    simulate: bool = False
    rank: int = 0
    layers: int | None = None
    races: bool = False
    trace: str | None = None

    def to_request(self, *, needs_gpus: bool = True) -> PlanRequest:
        """The run of a few words. Raises UserError where the words are too few; `needs_gpus` False: one GPU where no
        number is given.
        """
        if self.model is None or self.gpu is None or (self.gpus is None and needs_gpus):
            raise usage_error("a plan needs a spec, or `--model`, `--gpus` and `--gpu`", f"try `{_EXAMPLE}`")
        return PlanRequest(
            self.model,
            1 if self.gpus is None else self.gpus,
            self.gpu,
            self.gpus_per_node,
            self.host_memory,
            self.nvme,
            self.zero_stage,
            self.max_length,
            int(parse_count_option("--batch-tokens", self.batch_tokens)),
        )


class Answer(NamedTuple):
    """Text for people, values for programs, and the exit code."""

    text: str
    body: Mapping[str, Any]
    code: ExitCode = ExitCode.OK
    spec: Mapping[str, Any] | None = None
    """The run spec that the answer names, for `--write`."""


class Question(NamedTuple):
    """`option` is what asks, as the user writes it. `takes_spec`: is it about a spec, too?"""

    option: str
    is_asked: Callable[[PlanOptions], bool]
    answer: Callable[[PlanOptions], Answer]
    takes_spec: bool = False


def _answer_params(options: PlanOptions) -> Answer:
    parameters = parse_count_option("--params", options.params or "")
    num_gpus = 1 if options.gpus is None else options.gpus
    states = count_model_states(parameters, num_gpus, options.zero_stage, options.gpu)
    return Answer(search_view.render_model_states(states), search_view.model_states_as_dict(states))


def _answer_min_gpus(options: PlanOptions) -> Answer:
    request = options.to_request(needs_gpus=False)
    result = auto_plan.find_min_gpus(request)
    code = ExitCode.OK if result.best else ExitCode.FINDINGS
    text = search_view.render_min_gpus(request.model, request.gpu, result)
    return Answer(text, search_view.min_gpus_as_dict(result), code)


def _answer_calibrate(options: PlanOptions) -> Answer:
    return Answer(*calibrate_by_runs(options.calibrate, options.calibration))


QUESTIONS: tuple[Question, ...] = (
    Question("--params", lambda options: options.params is not None, _answer_params),
    Question("--calibrate", lambda options: bool(options.calibrate), _answer_calibrate),
    Question("--min-gpus", lambda options: options.min_gpus, _answer_min_gpus),
)


def answer_question(options: PlanOptions, more: Sequence[Question] = ()) -> Answer | None:
    """The answer to the question that the options ask, None where they ask for a plan. `more`: further questions.

    Raises UserError for two questions at once, and for a spec with a question that takes none.
    """
    asked = [question for question in (*QUESTIONS, *more) if question.is_asked(options)]
    if not asked:
        return None
    first = asked[0]
    if len(asked) > 1:
        raise usage_error(f"`{first.option}` and `{asked[1].option}` cannot be combined", "ask one of them")
    if options.spec is not None and not first.takes_spec:
        raise usage_error(f"a spec and `{first.option}` are both given", "leave the spec out")
    return first.answer(options)
