# SPDX-License-Identifier: Apache-2.0
"""`dpo` and `kto`: training on preferences. The names are those of TRL 1.16."""

from typing import Annotated, Literal

from pydantic import Field

from harness.spec.sections.section import Section

_Beta = Annotated[float, Field(gt=0.0)]
_Weight = Annotated[float, Field(ge=0.0)]


class DpoSpec(Section):
    """`objective: dpo`: pairs of a chosen and a rejected answer, against the model as it was before training."""

    loss_type: Literal[
        "sigmoid", "sigmoid_norm", "hinge", "ipo", "robust", "exo_pair", "nca_pair", "apo_zero", "apo_down"
    ] = "sigmoid"
    """The loss of a pair. `sigmoid_norm` and `ipo` take the mean over an answer's tokens, the others the sum."""
    beta: _Beta = 0.1
    """Strength of the tie to the model before training; for `ipo` its tau."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.0
    """Probability that a pair is the wrong way round: of `sigmoid` (conservative DPO), `robust` and `exo_pair`."""
    rpo_alpha: _Weight | None = None
    """Weight of the chosen answer's own loss, the mean over its tokens, beside that of the pair."""


class KtoSpec(Section):
    """`objective: kto`: answers that are labelled desirable or undesirable, against the model before training."""

    loss_type: Literal["kto", "apo_zero_unpaired"] = "kto"
    """`apo_zero_unpaired` estimates no KL divergence, and so computes one sequence a record instead of two."""
    beta: _Beta = 0.1
    """Strength of the tie to the model before training."""
    desirable_weight: _Weight = 1.0
    """Weight of a desirable answer's loss."""
    undesirable_weight: _Weight = 1.0
    """Weight of an undesirable answer's loss."""
