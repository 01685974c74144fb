# SPDX-License-Identifier: Apache-2.0
"""Private names of other packages: each is in the registry of patches."""

from __future__ import annotations

import ast
from pathlib import Path

from harness.patches.patch_registry import all_patches

PACKAGE = Path(__file__).resolve().parents[2] / "harness"
NAMEDTUPLE = {"_replace", "_asdict", "_fields", "_make"}
STANDARD_LIBRARY = {"_exit", "_run_exitfuncs", "_Unpickler"}
HAVE_A_DEFAULT = {
    "_name_or_path": "source_weights.py compares nothing without it",
    "_attn_implementation": "flops_counter.py counts sdpa without it",
    "_init_weights": "model_weights.py compares with `initializer_range` without it",
    "_fingerprint": "hub.py hashes the rows without it",
    "_tied_weights_keys": "synthetic_files.py, a tool of the rehearsal",
}
"""Names that are asked for by `getattr` or `hasattr`."""


def _own_names(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.arg):
            names.add(getattr(node, "name", None) or getattr(node, "arg", ""))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _foreign_private_names(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("harness"):
            names |= {alias.name for alias in node.names}
            names |= {f"_{part[1:]}" for part in (node.module or "").split(".") if part.startswith("_")}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "setattr"):
            names |= {argument.value for argument in node.args[1:2] if isinstance(argument, ast.Constant)}
    return {name for name in names if name.startswith("_") and not name.startswith("__")} - NAMEDTUPLE


def test_every_private_name_is_in_the_registry():
    in_registry = {name for patch in all_patches() for name in patch.private_names}
    for patch in all_patches():
        in_registry |= {part for target in patch.targets for part in target.name.replace(":", ".").split(".")}
    # A simulation trains nothing; what it replaces is in its own registry, `runtime/simulation/shims.py`.
    files = [file for file in PACKAGE.rglob("*.py") if file.parent.name not in ("patches", "simulation")]
    trees = [ast.parse(file.read_text()) for file in files]
    own = set().union(*map(_own_names, trees))
    foreign = set().union(*map(_foreign_private_names, trees)) - own - STANDARD_LIBRARY
    assert foreign - in_registry - set(HAVE_A_DEFAULT) == set()
