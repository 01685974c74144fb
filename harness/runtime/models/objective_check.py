# SPDX-License-Identifier: Apache-2.0
"""A model against the objective of a run: the next token, of documents that do not see each other.

A launch has asked the same where it had the configuration. The ranks ask a model from the Hub, and one of its own code.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from transformers import PreTrainedConfig

from harness.facts.language_model import answers_at_hand
from harness.findings import Finding
from harness.hostinfo.model_answers import ModelAnswers, unknown_answers
from harness.run.resolved_run import ResolvedRun
from harness.runtime.model_behavior import ask_model
from harness.runtime.plugin_loader import load_plugin
from harness.runtime.user_errors import print_findings, user_error

_SECONDS = 60.0
"""Of a small copy on a rank, which no other process limits."""


def _ask_in_time(config: PreTrainedConfig, *, own_code: bool) -> ModelAnswers:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"stopped after {_SECONDS:.0f} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS, _SECONDS)
    try:
        return ask_model(config, trust_remote_code=own_code)
    except TimeoutError as error:
        return unknown_answers(str(error))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def check_objective(run: ResolvedRun, config: PreTrainedConfig) -> None:
    """Raises UserError (MD164 not a causal language model, MD128 packing of documents that see each other, or that are
    not known to be apart). Nothing is asked where a plug-in builds the model.
    """
    plugin, packing = load_plugin(run.spec), run.spec.data.packing
    if plugin is not None and plugin.build_model is not None:
        return
    own_code = run.spec.model.trust_remote_code
    answers = None if own_code else answers_at_hand(config.to_dict(), ("apart",) if packing else ())
    answers = answers or _ask_in_time(config, own_code=own_code)
    if answers.causal is False:
        raise user_error(
            "MD164",
            f"a model of type `{config.model_type}` is not a causal language model, and a run trains the next token",
            key="model",
            notes=(answers.why_causal,),
            fix="name a causal language model; BERT and its like are one with `is_decoder: true`",
        )
    if answers.causal is None and os.environ.get("RANK", "0") == "0":
        message = f"a model of type `{config.model_type}` is not known to be a causal language model"
        print_findings([Finding("MD164", "warning", message, "model", notes=(answers.why_causal,))])
    if packing and answers.apart is not True:
        verb = "attend across" if answers.apart is False else "are not known to keep apart"
        raise user_error(
            "MD128",
            f"models of type `{config.model_type}` {verb} the documents of a packed row",
            key="data.packing",
            notes=(answers.why_apart,),
            fix="set `data.packing: false`",
        )
