# SPDX-License-Identifier: Apache-2.0
"""The page of all patches, `docs/patches.md`, and the changes of their targets in the installed packages."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from harness.patches.patch_registry import Patch, all_patches
from harness.patches.targets import Target, compute_digest

SEARCH_DATE = "2026-11-23"
"""The day of the last search for issues of the other packages."""
_NONE_FOUND = f"none found (searched on {SEARCH_DATE})"
_LABEL = re.compile(r"^(Upstream|Patch|Gain): ", re.MULTILINE)
_HEAD = f"""\
# Patches

<!-- `make pages` writes this page from `harness/patches`. -->

Each patch is a change that the harness makes inside another package while a run is in memory; no installed file is
changed. A patch of kind `use` changes no definition: it lists private names that a feature reads, calls or overrides
for a moment.

Before `deepspeed.initialize`, the harness looks up the targets of the patches that the run needs, in the installed
source files. A target that is not as tested has these effects:

| Kind | Effect of a changed target | Switch |
| --- | --- | --- |
| correctness | the run is refused (`EN130`) | `launch.patches: {{NAME: off}}`, with a reason in `ignore` (`EN055`) |
| memory, performance, start-up, measurement | the run continues without it and says so | the same, without a reason |
| use | a run that needs it is refused (`EN130`) | none |

`launch.patches: off` switches off all that have a switch. The states of all patches are in the row `run` of
`metrics.jsonl`, in `engine_checks.json`, in the report and in the manifest of each checkpoint; `harness doctor` looks
up all targets. Where no issue, pull request or commit of the other package is named, none was found on {SEARCH_DATE}.

"""


def render_page() -> str:
    """The page in Markdown: a table, and a section for each patch."""
    rows = ["| Name | Kind | Change | Needed by | Tested |", "| --- | --- | --- | --- | --- |"]
    for patch in all_patches():
        cells = (f"[{patch.name}](#{patch.name})", patch.kind, patch.summary.rstrip("."), patch.when, _releases(patch))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return _HEAD + "\n".join([*rows, ""]) + "".join(_render_section(patch) for patch in all_patches())


def render_changes() -> list[str]:
    """A line for each target that is not as tested: patch, target, state, tested digest, digest here, release here."""
    return [
        f"{patch.name}: {target.name} is {states[target.name]}, tested {target.digest or '(exists)'},"
        f" here {compute_digest(target.name)} ({_installed_release(patch.package)})"
        for patch in all_patches()
        if (states := patch.find_changed_targets())
        for target in patch.targets
        if target.name in states
    ]


def split_docstring(patch: Patch) -> dict[str, str]:
    """The paragraphs of a patch's docstring by their labels: `Upstream`, `Patch` and, where there is one, `Gain`."""
    parts = _LABEL.split(patch.docstring)[1:]
    return {label: text.strip() for label, text in zip(parts[::2], parts[1::2], strict=True)}


def _render_section(patch: Patch) -> str:
    paragraphs = split_docstring(patch)
    issue = f"[{_short_address(patch.upstream)}]({patch.upstream})" if patch.upstream else _NONE_FOUND
    module = patch.module_name.rpartition(".")[2]
    items = {
        "Kind": patch.kind,
        "Needed by": patch.when,
        "Upstream issue": issue,
        "Tested": _releases(patch),
        "Remove when": patch.remove_when,
        "Source": f"`harness/patches/{module}.py`",
    }
    lines = [f"\n## {patch.name}\n", f"{patch.summary}\n"]
    lines += [f"**{label}.** {' '.join(text.split())}\n" for label, text in paragraphs.items()]
    lines += [f"* {name}: {text}" for name, text in items.items()]
    lines += ["* Targets:", *(_render_target(target) for target in patch.targets)]
    if patch.private_names:
        lines.append(f"* Other private names: {', '.join(f'`{name}`' for name in patch.private_names)}")
    return "\n".join(lines) + "\n"


def _render_target(target: Target) -> str:
    return f"    * `{target.name}`" + ("" if target.digest else ", which only has to exist")


def _releases(patch: Patch) -> str:
    return f"{patch.package} {', '.join(patch.tested)}"


def _short_address(address: str) -> str:
    """`https://github.com/owner/name/issues/1` -> `owner/name#1`."""
    owner, name, _, number = address.removeprefix("https://github.com/").split("/")
    return f"{owner}/{name}#{number}"


def _installed_release(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} is not installed"
