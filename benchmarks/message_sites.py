# SPDX-License-Identifier: Apache-2.0
"""`raise` and `assert` statements of source files, each as the lines that a log would have. Imports none of them."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

SiteKind = Literal["raise", "assert", "re-raise", "bare assert"]
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class MessageSite:
    """One statement. `kind`: a `raise` of a new exception, an `assert` with a message, a `raise` of an exception that
    was caught (whose message another place has), an `assert` without a message. `message` is all that follows the
    exception type; `function` is what a traceback shows.
    """

    file: str
    line: int
    function: str
    kind: SiteKind
    exception: str
    message: str
    code: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What stays when lines above it are added: file, function and message."""
        return self.file, self.function, self.error_line.splitlines()[0] if self.message else self.code

    @property
    def error_line(self) -> str:
        return f"{self.exception}: {self.message}" if self.message else self.exception

    def format_log(self, package: str = "deepspeed", prefix: str = "[rank0]: ") -> str:
        """The traceback that ends in the statement."""
        file = f"/opt/env/lib/python3.11/site-packages/{package}/{self.file}"
        lines = [
            "Traceback (most recent call last):",
            '  File "/job/train.py", line 31, in <module>',
            "    main()",
            f'  File "{file}", line {self.line}, in {self.function}',
            f"    {self.code}",
            *self.error_line.splitlines(),
        ]
        return "".join(f"{prefix}{line}\n" for line in lines)


def read_sites(files: Mapping[str, str], package: str = "deepspeed") -> list[MessageSite]:
    """The statements of all files, in the order of files and lines. `files`: texts by path below the package."""
    trees = {path: ast.parse(text) for path, text in sorted(files.items())}
    constants = _collect_constants(trees.values())
    return [
        site
        for path, tree in trees.items()
        for site in _Module(path, package, tree, files[path].splitlines(), constants).sites()
    ]


def _collect_constants(trees: Iterable[ast.Module]) -> dict[str, str]:
    """Texts of upper-case names that have the same value wherever they are assigned."""
    values: dict[str, set[str]] = {}
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                for target in node.targets:
                    if isinstance(target, ast.Name) and target.id.isupper():
                        values.setdefault(target.id, set()).add(str(node.value.value))
    return {name: next(iter(texts)) for name, texts in values.items() if len(texts) == 1}


@dataclass
class _Module:
    """One file."""

    path: str
    package: str
    tree: ast.Module
    lines: list[str]
    constants: Mapping[str, str]
    imports: dict[str, str] = field(default_factory=dict)

    def sites(self) -> Iterator[MessageSite]:
        dotted = ".".join((self.package, *self.path.removesuffix(".py").removesuffix("/__init__").split("/")))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                origin = node.module or ""
                if node.level:
                    base = dotted.split(".")[: -node.level + (self.path.endswith("__init__.py"))] or [self.package]
                    origin = ".".join((*base, origin)).rstrip(".")
                self.imports |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.ClassDef):
                self.imports[node.name] = f"{dotted}.{node.name}"
        yield from self._walk(self.tree, "<module>", {})

    def _walk(self, node: ast.AST, function: str, texts: dict[str, ast.expr]) -> Iterator[MessageSite]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _Function | ast.Lambda):
                name = child.name if isinstance(child, _Function) else "<lambda>"
                yield from self._walk(child, name, {})
                continue
            if isinstance(child, ast.Assign) and len(child.targets) == 1 and isinstance(child.targets[0], ast.Name):
                texts[child.targets[0].id] = child.value
            elif isinstance(child, ast.AugAssign) and isinstance(child.target, ast.Name) and child.target.id in texts:
                texts[child.target.id] = ast.BinOp(texts[child.target.id], ast.Add(), child.value)
            if isinstance(child, ast.Raise | ast.Assert):
                yield self._make_site(child, function, texts)
            yield from self._walk(child, function, texts)

    def _make_site(self, node: ast.Raise | ast.Assert, function: str, texts: Mapping[str, ast.expr]) -> MessageSite:
        kind, exception, message = self._describe(node, texts)
        code = self.lines[node.lineno - 1].strip()
        return MessageSite(self.path, node.lineno, function, kind, exception, message.strip("\n"), code)

    def _describe(self, node: ast.Raise | ast.Assert, texts: Mapping[str, ast.expr]) -> tuple[SiteKind, str, str]:
        if isinstance(node, ast.Assert):
            if node.msg is None:
                return "bare assert", "AssertionError", ""
            return "assert", "AssertionError", self._render(node.msg, texts)
        call = node.exc
        if isinstance(call, ast.Name) and isinstance(texts.get(call.id), ast.Call):
            call = texts[call.id]
        type_ = call.func if isinstance(call, ast.Call) else call
        name = ast.unparse(type_) if type_ is not None else ""
        last = name.rpartition(".")[2]
        if not last[:1].isupper():
            return "re-raise", "RuntimeError", ""
        arguments = call.args if isinstance(call, ast.Call) else []
        values = [self._render(argument, texts) for argument in arguments]
        message = values[0] if len(values) == 1 else f"({', '.join(map(repr, values))})" if values else ""
        if last in ("FileNotFoundError", "OSError") and len(values) > 1:
            message = f"[Errno 2] No such file or directory: '{values[-1]}'"
        if last == "KeyError" and values:
            message = repr(message)
        origin = self.imports.get(name.partition(".")[0], name)
        full = name if hasattr(builtins, name) else f"{origin}.{last}" if "." in name else origin
        return "raise", full, message

    def _render(self, node: ast.expr, texts: Mapping[str, ast.expr], depth: int = 0) -> str:  # noqa: PLR0911
        """The text of an expression: what is constant as it is, the rest by plausible values."""
        if isinstance(node, ast.Name):
            value = texts.get(node.id)
            if value is not None and depth < 8 and (_is_text(value) or isinstance(value, ast.Constant)):
                return self._render(value, texts, depth + 1)
            return self.constants.get(node.id) or plausible_value(node.id)

        def inner(part: ast.expr) -> str:
            return self._render(part, texts, depth + 1)

        if _is_text(node) or isinstance(node, ast.Constant):
            return _render_text(node, inner)
        match node:
            case ast.FormattedValue(value=value, conversion=conversion):
                return repr(inner(value)) if conversion == ord("r") else inner(value)
            case ast.Call(func=ast.Name(id="str") | ast.Attribute(attr="dedent" | "strip"), args=[argument]):
                return inner(argument)
            case ast.Tuple(elts=parts):
                return f"({', '.join(repr(inner(part)) for part in parts)})"
        return plausible_value(ast.unparse(node))


def _render_text(node: ast.expr, inner: Callable[[ast.expr], str]) -> str:  # noqa: PLR0911
    """The text of an expression that is one, by `_is_text`."""
    match node:
        case ast.JoinedStr(values=parts):
            return "".join(inner(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return inner(left) + inner(right)
        case ast.BinOp(left=left, right=right):
            values = [inner(part) for part in (right.elts if isinstance(right, ast.Tuple) else [right])]
            return _fill(inner(left), r"%(?:\(\w+\))?[-+ 0#]*\d*(?:\.\d+)?[sdrfgixe]", values).replace("%%", "%")
        case ast.Call(func=ast.Attribute(value=left, attr="format"), args=arguments):
            return _fill(inner(left), r"\{[^{}]*\}", [inner(part) for part in arguments])
        case ast.Call(func=ast.Attribute(value=left), args=[ast.List(elts=parts) | ast.Tuple(elts=parts)]):
            return inner(left).join(inner(part) for part in parts)
        case ast.IfExp(body=body):
            return inner(body)
    return str(node.value) if isinstance(node, ast.Constant) else plausible_value(ast.unparse(node))


def _is_text(node: ast.expr) -> bool:
    """Is the expression a text, as far as its own words show?"""
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.BinOp(left=left, op=ast.Add() | ast.Mod(), right=right):
            return _is_text(left) or _is_text(right)
        case ast.Call(func=ast.Attribute(value=left, attr="format" | "join")):
            return _is_text(left)
        case ast.IfExp(body=body):
            return _is_text(body)
    return False


def _fill(text: str, placeholder: str, values: list[str]) -> str:
    """The text with the values in place of its placeholders, in order; `4` where there are too few."""
    rest = iter(values)
    return re.sub(placeholder, lambda _: next(rest, "4"), text)


_PLAUSIBLE_VALUES = (
    (r"^self\.(?:train_batch|train_micro_batch|gradient_accumulation)\w*$|^(?:train|micro)_batch$|^grad_acc$", "0"),
    (r"stage_string", "ZeRO-2"),
    (r"^type\(|__class__|__name__|\bcls\b|\bklass\b", "Linear"),
    (r"\b(?:e|error|err|exc|exception|ex)\b$", "the error below it"),
    (r"\.shape\b|\.size\(\)$|ds_shape", "torch.Size([4, 8])"),
    (r"dtype", "torch.bfloat16"),
    (r"status", "ZeroParamStatus.INFLIGHT"),
    (r"summary|debug", "{'id': 3, 'status': 'AVAILABLE', 'numel': 64}"),
    (r"device$|device\b(?!_count)", "cpu"),
    (r"path|file|dir\b|folder|_dir", "/data/checkpoints/global_step10"),
    (r"host", "worker-1"),
    (r"mode|\bop\b|backend|policy|strategy|schedule|style", "other"),
    (r"name|key\b|\bmodule\b|layer\b", "layers.0.weight"),
    (r"keys|names|list|missing|unexpected|modules|params\b", "['layers.0.weight']"),
)


def plausible_value(expression: str) -> str:
    """A value that a log could show for an expression, by its words."""
    lower = expression.lower()
    return next((value for pattern, value in _PLAUSIBLE_VALUES if re.search(pattern, lower)), "4")
