# SPDX-License-Identifier: Apache-2.0
"""Requests of `harness checkpoint import` and `convert`, one after the other: `import_saves.py REQUESTS.json`.

A request that is refused prints its findings and is an error, unless it has the key `"refused"`, a file for the ids of the findings.
"""

import json
import sys
from pathlib import Path

from harness.errors import UserError
from harness.runtime.export.checkpoint_requests import run_request

for request in json.loads(Path(sys.argv[-1]).read_text()):
    refused = request.pop("refused", None)
    try:
        answer = [run_request(request, print)]
    except UserError as error:
        print([finding.message for finding in error.findings])
        if refused is None:
            raise
        answer = [finding.gate for finding in error.findings]
    if refused is not None:
        Path(refused).write_text(json.dumps(answer))
