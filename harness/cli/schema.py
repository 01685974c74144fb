# SPDX-License-Identifier: Apache-2.0
"""`harness schema`: the JSON Schema of run specs, for editors."""

from __future__ import annotations

import json


def schema() -> None:
    """Print the JSON Schema of a run spec.

    Example: harness schema > harness.schema.json, then put this line at the top of a spec:
    # yaml-language-server: $schema=harness.schema.json
    """
    from harness.spec.json_schema import run_spec_schema

    print(json.dumps(run_spec_schema(), indent=2))
