# SPDX-License-Identifier: Apache-2.0
"""Edits of one function of an installed package, undone when the context ends.

The code object of the function is replaced, not the attribute that holds it: every reference sees the edit, those of
`from module import function`, of a decorator's closure and of a `Patch` too. The new code keeps the file name and the
first line of the old one, so that `inspect.getsource` and the digests of `harness.patches.targets` see no change.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

_COMPILER_FLAGS = 0x1FF0000  # those of `from __future__ import ...`
_edited: set[int] = set()


class EditError(Exception):
    """An edit does not fit the installed package, or its function is edited already."""


@dataclass(frozen=True)
class CodeEdit:
    """Replaces `old`, which must be in the source of `target` once, by `new`.

    `target` is `module:function` or `module:Class.method`; a private method has its name as it is in the source.
    `old` and `new` are whole or part of lines, indented as in the file.
    """

    target: str
    old: str
    new: str

    def function(self) -> FunctionType:
        """The function itself, below its decorators. Raises EditError where there is none of that name."""
        module_name, _, qualified_name = self.target.partition(":")
        owner: Any = importlib.import_module(module_name)
        for name in qualified_name.split("."):
            is_private = name.startswith("__") and not name.endswith("__")
            mangled = f"_{owner.__name__.lstrip('_')}{name}" if is_private else name
            if mangled not in vars(owner):
                raise EditError(f"{self.target}: `{owner.__name__}` has no `{name}`")
            owner = vars(owner)[mangled]
        found = _find_function(owner, qualified_name)
        if found is None:
            raise EditError(f"{self.target} is not the function of that name: something has replaced it")
        return found

    def edited_code(self) -> CodeType:
        """The code of the edited function. Raises EditError where `old` is not there exactly once."""
        function = self.function()
        lines, first_line = inspect.getsourcelines(function)
        source = "".join(lines)
        if (count := source.count(self.old)) != 1:
            raise EditError(f"{self.target} has {self.old!r} {count} times, not once")
        if self.old == self.new:
            raise EditError(f"{self.target}: the edit changes nothing")
        class_name, _, name = self.target.partition(":")[2].rpartition(".")
        # Its class gives private names and `__class__` their meaning, and empty lines give the code its line numbers.
        head = f"class {class_name}:\n" if class_name else ""
        text = "\n" * (first_line - 1 - bool(class_name)) + head + source.replace(self.old, self.new)
        old_code = function.__code__
        flags = old_code.co_flags & _COMPILER_FLAGS
        code = compile(text, old_code.co_filename, "exec", flags=flags, dont_inherit=True)
        for owner in (class_name, name) if class_name else (name,):
            code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == owner)
        if code.co_freevars != old_code.co_freevars or code.co_firstlineno != old_code.co_firstlineno:
            raise EditError(f"{self.target}: the edit reads other names of its scope, or moves its first line")
        return code


@contextmanager
def apply_edits(*edits: CodeEdit) -> Iterator[None]:
    """Apply the edits in this context, all or none. Raises EditError before anything is changed."""
    functions = [edit.function() for edit in edits]
    if len({id(f) for f in functions} - _edited) < len(edits):
        raise EditError(f"edited already: {', '.join(edit.target for edit in edits)}")
    new_codes = [edit.edited_code() for edit in edits]
    old_codes = [function.__code__ for function in functions]
    try:
        for function, code in zip(functions, new_codes, strict=True):
            _edited.add(id(function))
            function.__code__ = code
        yield
    finally:
        for function, code in zip(functions, old_codes, strict=True):
            function.__code__ = code
            _edited.discard(id(function))


def _find_function(value: Any, qualified_name: str) -> FunctionType | None:
    """The function of that name in a decorated one: DeepSpeed's decorators keep it in a closure, without a mark."""
    candidates: list[Any] = [value]
    seen: set[int] = set()
    while candidates:
        candidate = candidates.pop()
        if isinstance(candidate, staticmethod | classmethod):
            candidates.append(candidate.__func__)
        if not isinstance(candidate, FunctionType) or id(candidate) in seen:
            continue
        if candidate.__code__.co_qualname == qualified_name:
            return candidate
        seen.add(id(candidate))
        candidates += [cell.cell_contents for cell in candidate.__closure__ or ()]
        candidates.append(getattr(candidate, "__wrapped__", None))
    return None
