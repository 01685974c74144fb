# SPDX-License-Identifier: Apache-2.0
"""A model against the objective of a run: the next token, of documents that do not see each other.

A launch has asked the same where it had the configuration. The ranks ask a model from the Hub, and one of its own code.
"""

from __future__ import annotations

import os

from transformers import PreTrainedConfig

from harness.facts.language_model import answers_at_hand
from harness.findings import Finding
from harness.run.resolved_run import ResolvedRun
from harness.runtime.model_behavior import ask_model
from harness.runtime.plugin_loader import load_plugin
from harness.runtime.user_errors import print_findings, user_error


def check_objective(run: ResolvedRun, config: PreTrainedConfig) -> None:
    """Raises UserError (MD164 not a causal language model, MD128 packing of documents that see each other, or that are
    not known to be apart). Nothing is asked where a plug-in builds the model.
    """
    plugin, packing = load_plugin(run.spec), run.spec.data.packing
    if plugin is not None and plugin.build_model is not None:
        return
    own_code = run.spec.model.trust_remote_code
    answers = None if own_code else answers_at_hand(config.to_dict(), packing=packing)
    answers = answers or ask_model(config, trust_remote_code=own_code)
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
