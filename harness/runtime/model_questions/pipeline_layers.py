# SPDX-License-Identifier: Apache-2.0
"""Is the model's forward a plain stack of layers, which the stages of a pipeline call one by one?"""

from __future__ import annotations

from harness.hostinfo.model_answers import Answer
from harness.runtime.model_questions.small_copy import SmallCopy, join_names
from harness.runtime.models.safetensors_reader import open_safetensors
from harness.runtime.pipeline.stack_check import compare_stack
from harness.spec.sections.model_spec import ModelSpec


def ask(small: SmallCopy) -> Answer:
    """The logits of the layers of a pipeline, against those of the whole model, as a pipeline itself asks; and whether
    saved files have the weights under the names of the layers, by which a stage reads them.
    """
    answer = compare_stack(small.model, apart=small.apart)
    if not answer.holds:
        return answer
    files = open_safetensors(ModelSpec(name_or_path=str(small.saved)))
    stored = set() if files is None else set(files.paths)
    missing = join_names(name for name, _ in small.model.named_parameters() if name not in stored)
    reason = "its files hold weights under other names than its layers, and a stage reads by names"
    return Answer(False, reason, missing) if missing else answer
