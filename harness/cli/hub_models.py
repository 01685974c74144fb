# SPDX-License-Identifier: Apache-2.0
"""The model of `harness plan --model`: one that is neither here nor in the catalogue is looked up on the Hub."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.facts.model_lookup import find_configuration
from harness.hostinfo.hub_config import FetchError, can_fetch, fetch_config


def fetch_configuration(model: str | None, *, offline: bool) -> None:
    """Fetch `config.json` of an unknown model with its owner into the cache, and say so on standard error. Nothing is
    asked for a folder, a name of the cache or of the catalogue, and with `offline`.
    """
    is_here = model is not None and (Path(model).exists() or find_configuration(model) is not None)
    if offline or model is None or is_here or not can_fetch(model):
        return
    try:
        file = fetch_config(model)
    except FetchError as error:
        print(f"harness: `config.json` of `{model}` could not be fetched: {error}", file=sys.stderr)
    else:
        print(f"harness: fetched `config.json` of `{model}` and nothing else, to {file}", file=sys.stderr)
