# SPDX-License-Identifier: Apache-2.0
"""The pods of a JobSet, for tests: their parts, and their command as a node's kubelet starts it. No tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def pod_of(jobset: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of its pods."""
    return jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def container_of(jobset: Mapping[str, Any]) -> dict[str, Any]:
    """Their only container."""
    (container,) = pod_of(jobset)["containers"]
    return container


def expand(text: str, environ: Mapping[str, str]) -> str:
    """`$(NAME)` becomes the variable's value where there is one, `$$` one `$` (Kubernetes, `third_party/forked/golang/
    expansion`).
    """
    return re.sub(r"\$\$|\$\(([^)]*)\)", lambda m: "$" if m[0] == "$$" else environ.get(m[1], m[0]), text)


def expand_command(container: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """The command of a pod with these variables."""
    return [expand(word, environ) for word in container["command"]]
