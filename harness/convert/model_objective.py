# SPDX-License-Identifier: Apache-2.0
"""The model of a converted file: a run trains it as a causal language model, and packs only what it keeps apart."""

from __future__ import annotations

from harness.convert.draft import Draft
from harness.errors import UserError
from harness.facts.language_model import NOT_CAUSAL_FIX, find_answers, packing_answer
from harness.facts.model_lookup import find_configuration
from harness.findings import Finding, Fix, Place
from harness.spec.named_paths import is_placeholder

_PACKING = "data.packing"
UNKNOWN_MODEL = "not on this machine: whether it trains on text is not known"
"""The remark on a model that cannot be asked here; the ranks ask it before they train."""


def check_model(draft: Draft, file: str) -> None:
    """Switch packing off for a model that mixes packed documents or is not known to keep them apart, with a note; note
    where the model is not on this machine. Raises UserError (MD164) for a model that is no causal language model.
    """
    name, packing = draft.get("model.name_or_path"), draft.get(_PACKING) is True
    if not isinstance(name, str) or is_placeholder(name):
        return
    place, revision = Place(file, 1, 1), draft.get("model.revision")
    config = find_configuration(name, None, None, revision if isinstance(revision, str) else None)
    if config is None:
        draft.put("model.name_or_path", name, UNKNOWN_MODEL)
        if packing:
            text = (
                f"whether `{name}` keeps packed documents apart is not known here; the ranks ask it before they train"
            )
            draft.add_note(place, f"`{_PACKING}`: {text}", "manual", _PACKING)
        return
    kind = config.get("model_type")
    own_code = draft.get("model.trust_remote_code") is True and "auto_map" in config
    answers = find_answers(config, ("apart",) if packing else (), own_code=own_code)
    if answers.causal is False:
        message = f"`{name}`, of type `{kind}`, is not a causal language model, and a run trains the next token"
        fix = Fix(NOT_CAUSAL_FIX)
        raise UserError([Finding("MD164", "error", message, place=place, notes=(answers.why_causal,), fix=fix)])
    if answers.causal is None:
        text = f"whether a model of type `{kind}` is a causal language model is not known here ({answers.why_causal})"
        draft.add_note(place, f"`model.name_or_path`: {text}", "manual", "model.name_or_path")
    packed = packing_answer(answers)
    if not packing or packed.holds:
        return
    if packed.holds is None and (packed.names or own_code):
        text = f"whether `{name}` keeps packed documents apart is not known here: {packed.reason}"
        draft.add_note(place, f"`{_PACKING}`: {text} (MD020)", "manual", _PACKING)
        return
    draft.put(_PACKING, False)
    verb = "are not known to keep apart" if packed.holds is None else "attend across"
    text = f"models of type `{kind}` {verb} the documents of a packed row, so each document has a row of its own"
    draft.add_note(place, f"`{_PACKING}`: {text} (MD020)", "lossy", _PACKING)
