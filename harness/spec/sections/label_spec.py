# SPDX-License-Identifier: Apache-2.0
"""`classification` and `reward`: models with a head over labels. The names are those of transformers and TRL 1.16."""

from typing import Annotated, Literal

from pydantic import Field

from harness.spec.sections.section import Positive, Section, Strings


class ClassificationSpec(Section):
    """`objective: classification`: texts with labels, by `AutoModelForSequenceClassification`."""

    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] | None = None
    """The loss. Default: by the labels; names or whole numbers are one of several, lists any of several, and other
    numbers a regression.
    """
    num_labels: Positive | None = None
    """Outputs of the model. Default: as many as the data has labels."""
    label_names: Strings = ()
    """Their names in order. Default: those that a checkpoint with this head has, else those of the data, sorted."""


class RewardSpec(Section):
    """`objective: reward`: pairs of a chosen and a rejected answer, by the loss of Bradley and Terry."""

    center_rewards_coefficient: Annotated[float, Field(ge=0.0)] | None = None
    """Weight of the squared sum of both rewards, which keeps their mean near 0."""
    margin_column: str = "margin"
    """The column that says by how much the chosen answer's reward should be larger; a record may leave it out."""
