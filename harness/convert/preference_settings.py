# SPDX-License-Identifier: Apache-2.0
"""`objective`, `dpo`, `kto` and `reward` out of the files of LLaMA-Factory, axolotl, TRL and ms-swift; other methods of
training on preferences are refused by `unsupported_methods`.

The keys are those of LLaMA-Factory 0.9, axolotl 0.12 to 0.18, TRL 0.20 to 1.16 and ms-swift 3.3 to 4.5 (read, not run).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.convert.trainer_file import TrainerFile, is_on, parse_release
from harness.spec.parse.source import Source
from harness.spec.sections.label_spec import RewardSpec
from harness.spec.sections.preference_spec import DpoSpec, KtoSpec
from harness.spec.sections.section import Section

DPO_LOSSES = frozenset(DpoSpec.model_fields["loss_type"].annotation.__args__)  # type: ignore[union-attr]
KTO_LOSSES = frozenset(KtoSpec.model_fields["loss_type"].annotation.__args__)  # type: ignore[union-attr]
_KEYS = {
    "beta": ("pref_beta", "rl_beta", "dpo_beta", "beta"),
    "label_smoothing": ("dpo_label_smoothing", "label_smoothing"),
    "rpo_alpha": ("pref_ftx", "rpo_alpha"),
    "desirable_weight": ("kto_chosen_weight", "kto_desirable_weight", "desirable_weight"),
    "undesirable_weight": ("kto_rejected_weight", "kto_undesirable_weight", "undesirable_weight"),
    "center_rewards_coefficient": ("center_rewards_coefficient",),
}
"""Field of `dpo`, `kto` and `reward` -> the names that programs have for it."""
_LOSS_KEYS = ("pref_loss", "dpo_loss_type", "loss_type")
_WITHOUT_EFFECT = frozenset(
    """precompute_ref_log_probs precompute_ref_batch_size dpo_use_logits_to_keep use_logits_to_keep dpo_padding_free
    padding_free dpo_use_liger_kernel use_liger_loss ref_model_init_kwargs model_adapter_name ref_adapter_name
    force_use_ref_model rl_adapter_ref_model padding_value label_pad_token_id is_encoder_decoder simpo_gamma cpo_alpha
    discopop_tau remove_unused_columns dpo_generate_during_eval generate_during_eval train_sampling_strategy
    loss_scale undesirable""".split()
)
_PROMPT_LENGTHS = ("max_prompt_length", "max_prompt_len", "max_completion_length")
PREFERENCE_KEYS = frozenset(
    (*(name for names in _KEYS.values() for name in names), *_LOSS_KEYS, *_PROMPT_LENGTHS, *_WITHOUT_EFFECT)
)
"""Keys that say something else, or nothing, in a file that trains on no preferences."""
_SMOOTHED = ("sigmoid", "robust", "exo_pair")
"""Losses that read `label_smoothing`, here and in the programs."""
_UNSMOOTHED_SINCE = {"TRL": "0.29.0", "axolotl": "0.15.0"}
"""Program -> its first release whose loss `sigmoid` reads none: `pip download --no-deps trl==0.28.0 trl==0.29.0`, then
`_compute_loss` of `trl/trainer/dpo_trainer.py`; for axolotl the TRL that a release pins. Read on 2026-11-29."""
_WORDS = re.compile(r"(?<![a-z])(dpo|kto|orpo|simpo|cpo|bco|grpo|rloo|ppo|gkd)(?![a-z])")
_VALUES = {"dpo": "dpo", "ipo": "dpo", "kto": "kto", "rm": "reward", "reward": "reward"}
_SECTIONS: dict[str, type[Section]] = {"dpo": DpoSpec, "kto": KtoSpec, "reward": RewardSpec}


def find_objective(source: Source, verb: str = "") -> str | None:
    """`dpo`, `kto` or `reward` for a file that trains so, and in a way that a run spec has; None for any other."""
    data = source.data
    named = verb if verb in _SECTIONS else data.get("stage") or data.get("rl") or data.get("rlhf_type")
    if not named and "base_model" in data and data.get("reward_model") is True:  # axolotl
        return "reward"
    if named:
        return _VALUES.get(str(named).strip().lower())
    if "stage" in data or "base_model" in data or not _has_preference_keys(data):
        return None
    return _guess_objective(source)


def _has_preference_keys(data: Mapping[str, Any]) -> bool:
    keys = {"beta", "rpo_alpha", "desirable_weight", "undesirable_weight", "precompute_ref_log_probs"}
    keys.add("center_rewards_coefficient")
    return bool(keys & data.keys() or set(_loss_names(data.get("loss_type"))) & (DPO_LOSSES | KTO_LOSSES))


def _guess_objective(source: Source) -> str | None:
    """Of a YAML for TRL, which does not say for which of its scripts it is: by keys of one of them, else by the words
    of its name and its text, provided that they name one method.
    """
    data, losses = source.data, set(_loss_names(source.data.get("loss_type")))
    if {"desirable_weight", "undesirable_weight"} & data.keys() or losses & KTO_LOSSES:
        return "kto"
    if "center_rewards_coefficient" in data:
        return "reward"
    if losses & DPO_LOSSES or {"precompute_ref_log_probs", "rpo_alpha"} & data.keys():
        return "dpo"
    return word if (word := named_method(source)) in ("dpo", "kto") else None


def named_method(source: Source) -> str:
    """The one method of which name and text of a YAML for TRL speak, such as `orpo`; else empty."""
    words = set(_WORDS.findall(f"{source.file}\n{source.text}".lower()))
    return words.pop() if len(words) == 1 and not {"stage", "base_model"} & source.data.keys() else ""


def _loss_names(value: Any) -> list[str]:
    names = value if isinstance(value, list) else str(value or "").split(",")
    return [str(name).strip().lower() for name in names if str(name).strip()]


def single_loss(value: Any) -> str:
    """The loss of a list, whose second may be `sft`; other lists as text."""
    names = _loss_names(value)
    rest = [name for name in names if name != "sft"]
    return rest[0] if len(rest) == 1 and len(names) <= 2 else str(value).strip().lower()


def convert_preferences(file: TrainerFile, objective: str) -> None:
    """Set the objective and its settings. To be called before the program's own keys, which may have the same names."""
    file.put("objective", objective)
    fields = _SECTIONS[objective].model_fields
    for field, names in _KEYS.items():
        name = file.name_of(*names)
        value = file.take_value(*names)
        if value is None or (field == "rpo_alpha" and not is_on(value)):
            continue
        if field in fields:
            file.put(f"{objective}.{field}", value)
        elif is_on(value) and value != 1:
            file.add_lossy(name, f"`objective: {objective}` has no `{field}`")
    _convert_loss(file, objective)
    _drop_unread_smoothing(file)
    if file.draft.get(f"{objective}.rpo_alpha") is not None and file.program.name != "LLaMA-Factory":
        name = file.name_of("rpo_alpha", *_LOSS_KEYS)
        file.add_lossy(name, "the chosen answers' loss is a mean over the tokens of a micro-batch; here of each answer")
    for name in _PROMPT_LENGTHS:
        if file.values.get(name) is not None:
            file.add_lossy(name, "cuts prompts or answers at a length of their own; the run spec has `data.max_length`")
    for name in sorted(_WITHOUT_EFFECT & file.values.keys()):
        if file.values[name] is not None:
            file.add_harmless(name)


def _convert_loss(file: TrainerFile, objective: str) -> None:
    name = file.name_of(*_LOSS_KEYS)
    value = file.take_value(*_LOSS_KEYS)
    weights = file.take_value("loss_weights", "dpo_loss_weights")
    if file.values.get("rl") == "ipo":
        file.put("dpo.loss_type", "ipo")
    if value is None:
        return
    names = _loss_names(value)
    file.put(f"{objective}.loss_type", single_loss(value))
    if "sft" in names:
        scales = weights if isinstance(weights, list) and len(weights) == 2 else [1.0, 1.0]
        pair, own = scales if names[1:] == ["sft"] else scales[::-1]
        if pair:
            file.put("dpo.rpo_alpha", float(own) / float(pair))
        if pair != 1:
            file.add_lossy(
                name, f"weighs the loss of pairs by {pair}; the spec has 1 and scales the other: set the rate"
            )


def _drop_unread_smoothing(file: TrainerFile) -> None:
    """Leave `label_smoothing` out where the program's loss does not read it, and say so."""
    smoothing, loss = file.draft.get("dpo.label_smoothing"), file.draft.get("dpo.loss_type") or "sigmoid"
    since = _UNSMOOTHED_SINCE.get(file.program.name) if loss == "sigmoid" else None
    if not is_on(smoothing) or (
        loss in _SMOOTHED and not (since and parse_release(file.release) >= parse_release(since))
    ):
        return
    file.draft.drop(("dpo", "label_smoothing"))
    text = f"the loss `{loss}` of {file.program.name} does not read it"
    if since:
        text += f" from {since} on: left out; to smooth as before, set `dpo.label_smoothing`, which the run spec reads"
    file.add_lossy(file.name_of(*_KEYS["label_smoothing"]), text)


def finish_preferences(file: TrainerFile) -> None:
    """Set what a run on pairs has otherwise than one on texts, after all keys are converted."""
    draft = file.draft
    if is_on(draft.get("data.packing")):
        place = file.source.place(())
        draft.add_note(
            place, "packing puts several pairs into a row; a run spec has one pair a row", "lossy", "packing"
        )
    for name in ("packing", "assistant_only_loss", "completion_only_loss", "text_column"):
        draft.drop(("data", name))
    sources = draft.get("data.train"), draft.get("data.eval")
    for source in (one for group in sources if isinstance(group, list) for one in group if isinstance(one, dict)):
        source.pop("format", None)
    is_reward = draft.get("objective") == "reward"
    if file.program.name == "TRL" and file.values.get("learning_rate") is None:
        draft.put("optimizer.learning_rate", 1e-4 if is_reward else 1e-6, "TRL's default")
    if file.program.name == "TRL" and is_reward:
        draft.put("data.excess_length_strategy", "drop", "TRL leaves pairs out that are longer than `max_length`")
        return
    draft.put("data.excess_length_strategy", "drop")
    text = "answers beyond `data.max_length` are cut there; here their records are left out"
    draft.add_note(file.source.place(()), f"{text} (`data.excess_length_strategy: drop`)", "lossy", "max_length")
