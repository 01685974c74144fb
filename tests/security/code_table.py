# SPDX-License-Identifier: Apache-2.0
"""Every known way in which an input can run code. `python -m tests.security.code_table > docs/security-code-table.md`
writes the table; variables come from `harness.facts.environment_variables`.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.facts.environment_variables import CODE_VARIABLES


class CodePath(NamedTuple):
    """A way in which an input can run code."""

    what: str
    commands: str
    allowed_by: str
    held_by: tuple[str, ...]
    """Gates and attempts, by their ids."""


_NEVER = "nothing: it never runs"
_OPTION = "`--allow-local-code`"
CODE_PATHS = (
    CodePath(
        "`plugins.file`", "launch, rehearse, tune, data", f"{_OPTION}, for the bytes with this sha256", ("MD157", "C33")
    ),
    CodePath("`HARNESS_ALLOWED_CODE` in `launch.env`", "launch", _NEVER, ("MD034", "C19")),
    CodePath("`ignore` of the spec for a gate that guards code", "all", _NEVER, ("C18",)),
    CodePath("variables of the second table in `launch.env`", "launch, preflight, rehearse, tune", _OPTION, ("SE008",)),
    CodePath("functions of bash and other odd names in `launch.env`", "launch", _NEVER, ("SE005", "C17")),
    CodePath("values of `launch.env` that a remote shell would run", "launch", _NEVER, ("SE005", "C37")),
    CodePath("paths of `launch` that a remote shell would run", "launch", _NEVER, ("SE006", "C40")),
    CodePath("names of hosts that ssh would take as options", "launch, preflight", _NEVER, ("C35",)),
    CodePath("words of a Slurm job", "launch --slurm", _NEVER, ("C38", "C39")),
    CodePath("`launch.sh` of a run, started by hand", "none", "whoever starts it", ("C41",)),
    CodePath(
        "Python files of the model and tokenizer (`auto_map`)",
        "launch, rehearse, tune, data",
        f"`model.trust_remote_code: true` of the spec, and {_OPTION}, which names the files",
        ("MD157", "SE001", "C21", "C43"),
    ),
    CodePath(
        "Python files stored with a checkpoint",
        "export",
        f"{_OPTION}; at the end of a launch, the spec of that run",
        ("CK125",),
    ),
    CodePath(
        "kernels of the Hub in `attn_implementation`",
        "launch",
        _NEVER,
        (
            "C20",
            "K40",
            "K41",
        ),
    ),
    CodePath(
        "compiled ops, and code that `torch.compile` keeps, of another user of the host",
        "launch, rehearse, tune, doctor, plan",
        "`HARNESS_TRUSTED_ACCOUNTS` of the shell",
        ("EN018", "S40", "S48", "S51"),
    ),
    CodePath(
        "checkpoints of another user, for `--resume auto`, `latest` or the beginning of a name",
        "launch",
        "`HARNESS_TRUSTED_ACCOUNTS` of the shell, or the whole name of the run",
        ("CK129", "S53", "S55", "S57"),
    ),
    CodePath("chat templates", "launch, data", "nothing: Jinja's sandbox renders them", ("C23", "C24", "C25", "C26")),
    CodePath(
        "`.deepspeed_env` of the current folder and of the home folder",
        "launch on several hosts",
        "nothing: DeepSpeed reads the file of the run instead",
        ("C42",),
    ),
)


def render_table() -> str:
    """Both tables."""
    lines = [
        "# What can run code",
        "",
        "`python -m tests.security.code_table > docs/security-code-table.md` writes this page.",
        "",
        "| Way | Commands | What allows it | Held by |",
        "| --- | --- | --- | --- |",
        *(f"| {p.what} | {p.commands} | {p.allowed_by} | {', '.join(p.held_by)} |" for p in CODE_PATHS),
        "",
        "## Variables that choose code",
        "",
        "Names and values are patterns. In `launch.env` each needs `--allow-local-code` (SE008).",
        "",
        "| Names | Values | Reason |",
        "| --- | --- | --- |",
    ]
    for variable in CODE_VARIABLES:
        values = "any but an empty one" if variable.values == CODE_VARIABLES[0].values else _code(variable.values)
        lines.append(f"| {_code(variable.names or '')} | {values if variable.values else 'any'} | {variable.reason} |")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    """Code in a cell: GitHub reads `\\|` as a bar there too."""
    mark = "``" if "`" in text else "`"
    return f"{mark}{text}{mark}".replace("|", "\\|")


if __name__ == "__main__":
    print(render_table(), end="")
