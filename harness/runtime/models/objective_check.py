# SPDX-License-Identifier: Apache-2.0
"""A model against the objective of a run: the next token, of documents that do not see each other.

A launch has asked the same where it had the configuration. The ranks ask a model from the Hub, and one of its own code.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from harness.errors import UserError, user_error
from harness.facts.language_model import NOT_CAUSAL_FIX, answers_at_hand, find_answers
from harness.findings import Finding
from harness.hostinfo.model_answers import ModelAnswers, unknown_answers
from harness.run.model_degrees import OWN_CODE, degree_findings, degrees_of, questions_of
from harness.run.resolved_run import ResolvedRun
from harness.runtime.model_behavior import RANK_SECONDS, ask_copy, ask_model, first_line, limit_seconds
from harness.runtime.packed_kernels import Borders, ask_borders
from harness.runtime.plugin_loader import load_plugin
from harness.runtime.text_part import find_text_part
from harness.runtime.user_errors import print_findings


def _ask_in_time(ask: Callable[[], Any], unknown: Callable[[str], Any]) -> Any:
    try:
        with limit_seconds(RANK_SECONDS):
            return ask()
    except TimeoutError as error:
        return unknown(str(error))


def _check_degrees(run: ResolvedRun, config: PreTrainedConfig, *, own_code: bool) -> None:
    """Raise UserError (SQ101, TP027, PP106) for a degree that the model does not take, or is not known to. Stages are
    asked by `check_stack`.
    """
    degrees = [degree for degree in degrees_of(run.spec.parallel, run.spec.deepspeed) if degree != "pipeline"]
    if not degrees:
        return
    if own_code:
        answers = ModelAnswers(True, "", None, "", dict.fromkeys(("sequence", "tensor"), OWN_CODE))
    else:
        answers = find_answers(config.to_dict(), questions_of(degrees))
    findings = list(degree_findings(config.model_type, degrees, answers))
    if findings:
        raise UserError(findings)


def check_objective(run: ResolvedRun, config: PreTrainedConfig) -> bool:
    """Do the kernels of this model need the borders of packed documents?

    Raises UserError (MD164 not a causal language model, MD128 packing of documents that see each other, or that are not
    known to be apart, SQ101, TP027 and PP106 degrees). Of a plug-in's model, packing alone is asked.
    """
    plugin, packing = load_plugin(run.spec), run.spec.data.packing
    if plugin is not None and plugin.build_model is not None:
        return False
    own_code = run.spec.model.trust_remote_code and "auto_map" in config.to_dict()
    _check_degrees(run, config, own_code=own_code)
    answers = None if own_code else answers_at_hand(config.to_dict(), ("apart",) if packing else ())
    answers = answers or _ask_in_time(lambda: ask_model(config, trust_remote_code=own_code), unknown_answers)
    if answers.causal is False:
        raise user_error(
            "MD164",
            f"a model of type `{config.model_type}` is not a causal language model, and a run trains the next token",
            key="model",
            notes=tuple(filter(None, (answers.why_causal, find_text_part(config).why_not))),
            fix=NOT_CAUSAL_FIX,
        )
    if answers.causal is None and os.environ.get("RANK", "0") == "0":
        message = f"a model of type `{config.model_type}` is not known to be a causal language model"
        print_findings([Finding("MD164", "warning", message, "model", notes=(answers.why_causal,))])
    if packing and answers.apart is not True:
        borders = Borders(None, "")
        borders = borders if own_code else _ask_in_time(lambda: ask_borders(config), partial(Borders, None))
        if borders.apart and max(run.parallel_dims.pipeline, run.parallel_dims.sequence) == 1:
            return True
        verb = "attend across" if answers.apart is False else "are not known to keep apart"
        raise user_error(
            "MD128",
            f"models of type `{config.model_type}` {verb} the documents of a packed row",
            key="data.packing",
            notes=tuple(filter(None, (answers.why_apart, borders.reason))),
            fix="set `data.packing: false`, or install the package that a note names",
        )
    return False


def check_own_model(run: ResolvedRun, model: PreTrainedModel) -> None:
    """Ask the model that a plug-in has built, whole and on the CPU, about packed documents, where the run packs.

    Raises UserError (MD128) for one that mixes them, or is not known to keep them apart.
    """
    if not run.spec.data.packing:
        return
    is_training = model.training
    try:
        with limit_seconds(RANK_SECONDS):
            answers = ask_copy(model.eval())
    except Exception as error:  # the code of a model may raise anything
        answers = unknown_answers(first_line(error))
    model.train(is_training)
    if answers.apart is not True:
        verb = "attends across" if answers.apart is False else "is not known to keep apart"
        raise user_error(
            "MD128",
            f"the model that `build_model` of the plug-in returned {verb} the documents of a packed row",
            key="data.packing",
            notes=(answers.why_apart,),
            fix="set `data.packing: false`",
        )
