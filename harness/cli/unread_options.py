# SPDX-License-Identifier: Apache-2.0
"""The refusal of options that a command would not read, beside others: none of them is ignored."""

from __future__ import annotations

from collections.abc import Mapping

import typer


def refuse_unread(reason: str, options: Mapping[str, object]) -> None:
    """Refuse the first of these options, by name, that is given: its value is not None, False or an empty list; 0 is
    one. Raises BadParameter.
    """
    for name, value in options.items():
        if value is not None and value is not False and value != []:
            raise typer.BadParameter(reason, param_hint=name)


def refuse_combined(lists: Mapping[str, bool], others: Mapping[str, object]) -> None:
    """Refuse, beside one of `lists`, which prints everything, the other ones and `others`. Raises BadParameter."""
    asked = [name for name, is_given in lists.items() if is_given]
    if asked:
        refuse_unread(
            f"cannot be used with `{asked[0]}`, which prints all", {**others, **dict.fromkeys(asked[1:], True)}
        )
