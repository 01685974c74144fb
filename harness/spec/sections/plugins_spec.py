# SPDX-License-Identifier: Apache-2.0
"""`plugins`: user code."""

from harness.spec.sections.section import Section


class PluginsSpec(Section):
    """User code for settings that a spec cannot express. It runs only with `harness launch --allow-local-code`."""

    file: str | None = None
    """A Python file with `build_model(config, spec)`, `load_documents(spec)` or `metrics(logits, labels)`, as
    `harness/runtime/plugin_loader.py` describes them. A relative path starts at the spec's folder, else at the current
    one.
    """
