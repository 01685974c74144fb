# SPDX-License-Identifier: Apache-2.0
"""`plugins`: the user's own code."""

from harness.spec.sections.section import Section


class PluginsSpec(Section):
    """Own code for what the spec has no words for. It is run only with `harness launch --allow-local-code`."""

    file: str | None = None
    """A Python file with `build_model(config, spec)`, `load_documents(spec)` or `metrics(logits, labels)`, as
    `harness/runtime/plugin_loader.py` describes them; relative to where the command is given.
    """
