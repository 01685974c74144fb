# SPDX-License-Identifier: Apache-2.0
"""Follow the parameter `spec` of `harness launch` through the package:

    python -m tests.support.spec_walk

It prints each file that the spec passes through, in the order of the calls, and counts the climbs: calls into a file of a
higher layer than the file of the call before. It reads syntax trees and runs nothing. A call counts when one of its
arguments is the spec in one of its forms: the name of the file, and what is parsed, checked and resolved from it up to the
request and the setup of a launch (`FORMS`). What is computed from the spec, such as a memory plan, an environment or the
launch plan, is not followed.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
START = ("harness.cli.launch", "launch", "spec")
PARAMETER = "the parameter"
FORMS = {
    PARAMETER,
    "Source",
    "LoadedSpec",
    "RunSpec",
    "LoadedRun",
    "CheckedFile",
    "ResolvedRun",
    "LaunchRequest",
    "LaunchSetup",
}
"""Names of types that are the spec, or hold it."""


class Definition(NamedTuple):
    """A function or class, and the module that defines it."""

    module: str
    node: ast.FunctionDef | ast.ClassDef


Types = frozenset[tuple[str, str]]
"""(module, class) of the values that an expression may have; (PARAMETER, PARAMETER) is the parameter itself."""
THE_PARAMETER: Types = frozenset({(PARAMETER, PARAMETER)})
NOTHING: Types = frozenset()


def _union(types: Iterable[Types]) -> Types:
    return NOTHING.union(*types)


def is_spec(types: Types) -> bool:
    """Whether a value of one of these types is the spec in one of its forms."""
    return any(name in FORMS for _, name in types)


@dataclass(frozen=True)
class Module:
    """The names that a file defines and imports."""

    name: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @cached_property
    def definitions(self) -> dict[str, ast.FunctionDef | ast.ClassDef]:
        return {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Local name -> (module, name there)."""
        return {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }


class Package:
    """The modules above the wall, and what a name or an expression in one of them means."""

    def __init__(self, root: Path) -> None:
        files = (path for path in (root / "harness").rglob("*.py") if "runtime" not in path.parts)
        names = {
            ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files
        }
        self.modules = {name: Module(name, path) for name, path in names.items()}

    def resolve(self, module: str, name: str) -> Definition | str | None:
        """What a global name of a module is: a definition, the name of a module, or something of another package."""
        visited = set()
        while (module, name) not in visited:
            visited.add((module, name))
            where = self.modules[module]
            if name in where.definitions:
                return Definition(module, where.definitions[name])
            if name not in where.imports:
                return None
            module, name = where.imports[name]
            if f"{module}.{name}" in self.modules:
                return f"{module}.{name}"
            if module not in self.modules:
                return None
        return None

    def annotated(self, module: str, annotation: ast.expr | None) -> Types:
        """The classes of the package that an annotation names."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)} if annotation else set()
        definitions = (self.resolve(module, name) for name in names)
        return frozenset(
            (found.module, found.node.name)
            for found in definitions
            if isinstance(found, Definition) and isinstance(found.node, ast.ClassDef)
        )

    def member(self, owner: tuple[str, str], name: str) -> ast.FunctionDef | ast.AnnAssign | None:
        """A method or field of a class."""
        module = self.modules.get(owner[0])
        node = module.definitions.get(owner[1]) if module else None
        for statement in node.body if node else ():
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                return statement
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and statement.target.id == name
            ):
                return statement
        return None


@dataclass
class Stop:
    """A function that the spec is passed to."""

    module: str
    function: str
    depth: int


@dataclass
class Walk:
    """The calls that pass the spec on, in the order of the code; each function is entered once for the same arguments."""

    package: Package
    stops: list[Stop] = field(default_factory=list)
    fields: set[tuple[str, str, str]] = field(default_factory=set)
    """(module, class, field) that hold the parameter."""
    _entered: set[tuple[str, str, tuple[str, ...]]] = field(default_factory=set)

    def enter(self, definition: Definition, arguments: dict[str, Types], depth: int = 0) -> None:
        """Follow a function whose parameters have these types."""
        node = definition.node
        assert isinstance(node, ast.FunctionDef)
        specs = tuple(sorted(name for name, types in arguments.items() if is_spec(types)))
        self.stops.append(Stop(definition.module, node.name, depth))
        if (definition.module, node.name, specs) in self._entered:
            return
        self._entered.add((definition.module, node.name, specs))
        scope = _Scope(self, definition.module, dict(arguments), depth)
        for parameter in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            declared = self.package.annotated(definition.module, parameter.annotation)
            scope.types[parameter.arg] = scope.types.get(parameter.arg, NOTHING) | declared
        scope.follow(node.body)

    @property
    def files(self) -> list[str]:
        """The modules in the order of the first visit."""
        return list(dict.fromkeys(stop.module for stop in self.stops))

    def climbs(self, floors: dict[str, int]) -> int:
        """Calls into a module of a higher layer than the module of the call before."""
        heights = [floors[layer_of(stop.module)] for stop in self.stops]
        return sum(after > before for before, after in pairwise(heights))


@dataclass
class _Scope:
    """The local names of one function."""

    walk: Walk
    module: str
    types: dict[str, Types]
    depth: int

    def follow(self, body: list[ast.stmt]) -> None:
        for statement in body:
            for call in _calls_of(statement):
                self._follow_call(call)
            for node in ast.walk(statement):
                if isinstance(node, ast.NamedExpr):
                    self._bind(node.target, node.value)
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    self._bind(target, statement.value)
            for nested in _bodies_of(statement):
                self.follow(nested)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.types[target.id] = self.types.get(target.id, NOTHING) | self._types_of(value)
        elif isinstance(target, ast.Tuple):
            values = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
            for element, its_value in zip(target.elts, values, strict=False):
                self._bind(element, its_value)

    def _types_of(self, node: ast.expr) -> Types:
        if isinstance(node, ast.Name):
            return self.types.get(node.id, NOTHING)
        if isinstance(node, ast.Attribute):
            owners = self._types_of(node.value)
            if any((*owner, node.attr) in self.walk.fields for owner in owners):
                return THE_PARAMETER
            members = ((owner[0], self.walk.package.member(owner, node.attr)) for owner in owners)
            return _union(self._declared(module, member) for module, member in members)
        if isinstance(node, ast.Call):
            return self._returned(node)
        if isinstance(node, ast.NamedExpr):
            return self._types_of(node.value)
        alternatives = {ast.IfExp: ("body", "orelse"), ast.BoolOp: ("values",)}.get(type(node), ())
        values = (getattr(node, name) for name in alternatives)
        return _union(
            self._types_of(part) for value in values for part in (value if isinstance(value, list) else [value])
        )

    def _returned(self, call: ast.Call) -> Types:
        if isinstance(call.func, ast.Name) and call.func.id == "replace" and call.args:
            return self._types_of(call.args[0])
        called = self._called(call)
        if called is None:
            return NOTHING
        if isinstance(called.node, ast.ClassDef):
            return frozenset({(called.module, called.node.name)})
        return self.walk.package.annotated(called.module, called.node.returns)

    def _declared(self, module: str, member: ast.FunctionDef | ast.AnnAssign | None) -> Types:
        if member is None:
            return NOTHING
        annotation = member.returns if isinstance(member, ast.FunctionDef) else member.annotation
        return self.walk.package.annotated(module, annotation)

    def _called(self, call: ast.Call) -> Definition | None:
        package, function = self.walk.package, call.func
        if isinstance(function, ast.Name):
            found = package.resolve(self.module, function.id)
            return found if isinstance(found, Definition) else None
        if not isinstance(function, ast.Attribute):
            return None
        owners = set(self._types_of(function.value))
        if isinstance(function.value, ast.Name):
            found = package.resolve(self.module, function.value.id)
            if isinstance(found, str):
                inside = package.resolve(found, function.attr)
                return inside if isinstance(inside, Definition) else None
            if found is not None:
                owners.add((found.module, found.node.name))
        for owner in sorted(owners):
            method = package.member(owner, function.attr)
            if isinstance(method, ast.FunctionDef):
                return Definition(owner[0], method)
        return None

    def _note_fields(self, called: Definition, call: ast.Call) -> None:
        """Remember the fields of a new object that hold the parameter."""
        statements = [s for s in called.node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
        names = [statement.target.id for statement in statements if isinstance(statement.target, ast.Name)]
        values = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
        for name, value in values:
            if name and self._types_of(value) >= THE_PARAMETER:
                self.walk.fields.add((called.module, called.node.name, name))

    def _follow_call(self, call: ast.Call) -> None:
        arguments, called = call.args, self._called(call)
        if isinstance(call.func, ast.Name) and call.func.id == "partial" and call.args:
            arguments = call.args[1:]
            called = self._called(ast.Call(call.args[0], [], []))
        if called is None:
            return
        if isinstance(called.node, ast.ClassDef):
            self._note_fields(called, call)
            return
        names = [parameter.arg for parameter in (*called.node.args.posonlyargs, *called.node.args.args)]
        passed: dict[str, Types] = {}
        if names[:1] in (["self"], ["cls"]):
            if isinstance(call.func, ast.Attribute):
                passed[names[0]] = self._types_of(call.func.value)
            names = names[1:]
        passed |= {name: self._types_of(value) for name, value in zip(names, arguments, strict=False)}
        passed |= {keyword.arg: self._types_of(keyword.value) for keyword in call.keywords if keyword.arg}
        for parameter in (*called.node.args.posonlyargs, *called.node.args.args, *called.node.args.kwonlyargs):
            declared = self.walk.package.annotated(called.module, parameter.annotation)
            if parameter.arg in passed and declared:  # narrower than the value's type after an `isinstance`
                passed[parameter.arg] &= declared
        if any(map(is_spec, passed.values())):
            self.walk.enter(called, passed, self.depth + 1)


def _calls_of(statement: ast.stmt) -> Iterator[ast.Call]:
    """The calls of a statement without those of the statements in it, inner ones first."""

    def visit(node: ast.AST) -> Iterator[ast.Call]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield from visit(child)
        if isinstance(node, ast.Call):
            yield node

    return visit(statement)


def _bodies_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def layer_of(module: str) -> str:
    """The layer of a module: its first two names."""
    return ".".join(module.split(".")[:2])


def read_floors(root: Path = ROOT) -> dict[str, int]:
    """The height of each layer, by the import contract in pyproject.toml; the highest is that of `harness.cli`."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract["name"] == "arrows point down")
    return {name.strip(): height for height, line in enumerate(reversed(layers)) for name in line.split("|")}


def walk_spec(root: Path = ROOT) -> Walk:
    """The way of `spec` through the package below `root`."""
    walk = Walk(Package(root))
    module, function, parameter = START
    start = walk.package.resolve(module, function)
    assert isinstance(start, Definition)
    walk.enter(start, {parameter: THE_PARAMETER})
    return walk


def main() -> None:
    """Print the way, one line for each run of calls into the same file, and the two counts."""
    walk, floors = walk_spec(), read_floors()
    previous = ""
    for stop in walk.stops:
        if stop.module != previous:
            print(f"{'  ' * stop.depth}{stop.module.replace('.', '/')}.py  {stop.function}")
        previous = stop.module
    print(f"{len(walk.files)} files, {walk.climbs(floors)} climbs")


if __name__ == "__main__":
    main()
