# SPDX-License-Identifier: Apache-2.0
"""Code, secrets and shells in a run spec."""

from __future__ import annotations

from collections.abc import Iterator

from harness.facts.environment_variables import code_loading_reason, is_secret
from harness.gates.registry import Cite, Context, Findings, Fix, gate, spec_gate
from harness.hostinfo.stored_models import find_own_code
from harness.secret_text import HIDDEN, has_password, remove_passwords
from harness.spec.parse.source import KeyPath, join_key

_PIN = "pin `model.revision` to a full commit that was read"


@spec_gate(
    "SE001 remote-code-allowed",
    severity=("error", "warning"),
    policy="the code that `transformers` would run is not known beforehand",
)
def allowed_remote_code(ctx: Context) -> Findings:
    """Code from a model repository is run on every rank.

    `model.trust_remote_code: true`.

    Why: `transformers` then imports Python files of the repository, on every rank and with the rights of the job.
    Without a `model.revision` that is a full commit, what runs is whatever the repository holds at that moment: an
    error. With a commit, or a folder on disk, what runs can be read beforehand: a warning. So is a folder without
    Python files, which needs the key for nothing. A launch runs code only with `--allow-local-code`.

    Example:
        model.name_or_path: some/model
        model.trust_remote_code: true
    """
    model = ctx.run.spec.model
    if not model.trust_remote_code:
        return
    name = model.name_or_path or ""
    revision = model.revision or ""
    is_commit = len(revision) == 40 and all(c in "0123456789abcdef" for c in revision.lower())
    code = find_own_code(name) if name else None
    foreign = [each for each in code or () if "--" in each]
    is_readable = not foreign and (is_commit or code is not None or name.startswith(("/", "./", "../", "~")))
    key = "model.trust_remote_code"
    message = f"{ctx.key(key)} runs Python files of `{name[:60]}` on every rank"
    note = "the code can be read there before it runs" if is_readable else _PIN
    effect = "models that `transformers` does not know cannot be loaded"
    if code == ():
        message = f"{ctx.key(key)} lets Python files of `{name[:60]}` run, and there are none"
        note, effect = "a launch needs `--allow-local-code` for it", "the same run, and no code that comes later"
    elif foreign:
        message = f"{ctx.key(key)} runs `{foreign[0][:80]}`, which `{name[:40]}` names, on every rank"
        note = "the code is in a repository on the Hub, at its newest revision"
    yield ctx.finding(
        message,
        key,
        severity="warning" if is_readable else "error",
        related=[("model.revision", "the version is set here")],
        notes=[note],
        fix=ctx.fix_to_remove(key, effect=effect),
    )


@spec_gate("SE003 secret-in-the-file", severity="warning")
def secret_in_environment(ctx: Context) -> Findings:
    """A secret written into the file.

    `launch.env` has no variable that is named like a password, key or token, and none whose value looks like one.

    Why: The file is committed, copied and shared. The harness does not write the value to the run directory; ranks on
    other hosts read it from a file that only you can read, until the run ends.

    Example:
        launch.env.HF_TOKEN: hf_xxxxxxxxxxxxxxxx

    Use instead:
        launch.env.HF_HUB_OFFLINE: 1
    """
    for name, value in ctx.run.spec.launch.env.items():
        if is_secret(name, value):
            key = f"launch.env.{name}"
            yield ctx.finding(
                f"{ctx.key(key)} puts a secret into the file",
                key,
                notes=["log in on the hosts, or set it in their login environment"],
                fix=ctx.fix_to_remove(key, effect="ranks take it from their own environment"),
                of_key=True,
            )


@spec_gate(
    "SE009 password-in-an-address",
    policy="a spec is copied to run directories, reports, checkpoints and stores",
    ignorable=False,
)
def password_in_address(ctx: Context) -> Findings:
    """A password in an address.

    No text of the file is an address with a password, a token or a signature, such as `https://user:password@host`.
    Variables of `launch.env` are a matter of SE003, of `upload_to` and `data` one of ST001.

    Why: The file is copied into the run directory, its settings into the report and into the manifest of every
    checkpoint, and with `checkpoint.upload_to` into the store. The server's client takes the password from the
    environment: MLflow from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, git and the Hub from their logins.
    Texts of errors that name such an address are written without the password.

    Example:
        telemetry.trackers: [mlflow]
        telemetry.mlflow_tracking_uri: https://user:password@mlflow.example.com
    """
    for path, text in _iter_texts((), ctx.source.data):
        is_elsewhere = path[:2] == ("launch", "env") or path[:1] == ("data",) or path[-1:] == ("upload_to",)
        if not is_elsewhere and has_password(text):
            key, address = join_key(path), remove_passwords(text)
            hint = ": for MLflow MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" if "mlflow" in key else ""
            is_clean = HIDDEN not in address and all(isinstance(part, str) for part in path)
            yield ctx.finding(
                f"{ctx.key(key)} is an address with a password, token or signature in it",
                key,
                notes=["the run directory, the report and every checkpoint would have it"],
                fix=Fix(
                    f"leave it out of {ctx.key(key)}, and set it in the environment{hint}",
                    {key: address} if is_clean else {},
                    effect="the client logs in with what the environment has",
                ),
            )


def _iter_texts(path: KeyPath, value: object) -> Iterator[tuple[KeyPath, str]]:
    """Each text of a file with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _iter_texts((*path, key), item)


@gate(
    "SE004 api-key-in-the-json",
    severity="warning",
    cites=Cite(
        "monitor/config.py",
        "Comet API key. Can be set through .comet.config file or environment variable COMET_API_KEY",
        since="0.14.3",
    ),
)
def api_key_in_json(ctx: Context) -> Findings:
    """The key of a monitoring service in the file.

    `comet.api_key` is not written.

    Why: A DeepSpeed JSON is checked in, copied into run directories and printed into the log of each run. Comet takes
    the key from `COMET_API_KEY` or from its own configuration file as well.

    Example:
        deepspeed.comet.enabled: true
        deepspeed.comet.api_key: abcdefgh

    Use instead:
        deepspeed.comet.enabled: true
        deepspeed.comet.project: demo
    """
    if ctx.ds("comet.api_key"):
        key = "deepspeed.comet.api_key"
        yield ctx.finding(
            f"{ctx.key(key)} puts a secret into the file and into the log of every run",
            key,
            fix=Fix(
                f"remove {ctx.key(key)} and set COMET_API_KEY", {key: None}, effect="the key comes from the environment"
            ),
            of_key=True,
        )


_UNSAFE_TEXTS = ("$(", "${", "`", "\n", "\r", "\0")
_UNSAFE_OVER_PDSH = ('"', "$", "\\")
"""Characters that a shell interprets between double quotes."""


@spec_gate(
    "SE005 shell-code-in-the-environment",
    upstream="wrong",
    cites=Cite("launcher/multinode_runner.py", 'exports += "export {}={}; ".format(key, val)'),
    policy="on one host the text would arrive as it is written",
)
def shell_code_in_environment(ctx: Context) -> Findings:
    """A variable that a shell would run or split.

    Names in `launch.env` are names of variables, and values hold no command substitution, backtick or line break. Where
    pdsh reaches other hosts, they hold no double quote, `$` or backslash either.

    Why: For other hosts DeepSpeed writes each variable into a remote command as `export NAME="VALUE";`. It escapes
    nothing in the value and does not quote the name, and the harness's file of them has one line each. The remote shell
    runs a substitution; a double quote ends the text, and the shell runs the rest; a line break starts a new line. On
    this machine alone nothing runs a substitution, but the value is then not what was intended either.

    Example:
        launch.env.RUN_TAG: $(date +%F)

    Use instead:
        launch.env.RUN_TAG: demo
    """
    launch = ctx.run.spec.launch
    cluster = ctx.run.cluster
    is_pdsh_used = cluster is not None and len(cluster.hosts) > 1 and launch.launcher == "pdsh"
    unsafe_texts = (*_UNSAFE_TEXTS, *_UNSAFE_OVER_PDSH) if is_pdsh_used else _UNSAFE_TEXTS
    for name, value in launch.env.items():
        variable_key = f"launch.env.{name}"
        shell_text = value.replace("$PATH", "") if name == "PATH" else value  # the launch itself replaces that
        unsafe_text = next((text for text in unsafe_texts if text in shell_text), None)
        if not (name.isascii() and name.isidentifier()):
            message = f"`{name[:40]!a}` in `launch.env` is not the name of a variable"
        elif unsafe_text is not None:
            message = f"{ctx.key(variable_key)} holds {unsafe_text!a}, which a remote shell would interpret"
        else:
            continue
        yield ctx.finding(
            message,
            "launch.env" if "." in name else variable_key,
            notes=["nothing is expanded on this machine; on other hosts a shell reads it"],
            fix=Fix("remove it, or write the value itself", {variable_key: None}, effect="the variable is not set"),
        )


_METACHARACTERS = frozenset(""";&|<>$`"'\\(){}[]*?!#""")


@spec_gate(
    "SE006 shell-code-in-a-path", upstream="wrong", policy="on one host the path would be taken as it is written"
)
def shell_code_in_path(ctx: Context) -> Findings:
    """A path that a shell would run or split.

    `launch.output_dir` and `launch.hostfile` hold no shell metacharacter, quote, line break or control character.

    Why: The run directory is an argument of the remote command, into which DeepSpeed writes it without quotes: `;` ends
    the command, and every host runs the rest. Nothing expands `$NAME` in them on this machine.

    Example:
        launch.output_dir: runs;reboot

    Use instead:
        launch.output_dir: runs
    """
    launch = ctx.run.spec.launch
    for key, path in (("launch.output_dir", launch.output_dir), ("launch.hostfile", launch.hostfile)):
        unsafe_character = next((c for c in path or "" if c in _METACHARACTERS or not c.isprintable()), None)
        if unsafe_character is not None:
            yield ctx.finding(
                f"{ctx.key(key)} holds {unsafe_character!a}, which a remote shell would interpret",
                key,
                notes=["DeepSpeed writes paths into the remote command without quoting them"],
                fix=Fix("remove it, or use letters, digits and `@+=:,./-_`", {key: None}, effect="the default is used"),
            )


@gate("SE007 path-with-a-variable", upstream="wrong")
def path_with_variable(ctx: Context) -> Findings:
    """A path with a variable that nobody expands.

    Model, tokenizer, data and monitor paths hold no `$NAME`, and no line break or control character.

    Why: No shell ever reads these values: `$SCRATCH/data` is a folder called `$SCRATCH`. Monitors silently create it in
    the working directory of the ranks; other paths fail as not found after every rank has started.

    Example:
        data.train: $SCRATCH/corpus/*.txt

    Use instead:
        data.train: /scratch/corpus/*.txt
    """
    spec = ctx.run.spec
    paths = [("model.name_or_path", spec.model.name_or_path), ("model.tokenizer", spec.model.tokenizer)]
    paths += [("data.train", source.path) for source in spec.data.train or ()]
    paths += [("data.eval", source.path) for source in spec.data.eval or ()]
    paths += [(ctx.spec_key(f"{n}.output_path"), ctx.ds(f"{n}.output_path")) for n in ("csv_monitor", "tensorboard")]
    for key, path in paths:
        if not isinstance(path, str):
            continue
        has_dollar = "$" in path
        if has_dollar or not path.isprintable():
            yield ctx.finding(
                f"{ctx.key(key)} has {'a `$`, which nothing expands' if has_dollar else 'a control character'}",
                key,
                notes=["the text is taken as it is written"],
                fix=Fix("write the path out"),
            )


@spec_gate(
    "SE008 code-in-the-environment",
    policy="another person's spec could run any code",
    ignorable=False,
)
def code_in_environment(ctx: Context) -> Findings:
    """A variable that chooses code which every rank runs.

    `launch.env` sets no variable that makes Python, the loader, a shell, a compiler or a launcher run code, such as
    `PYTHONPATH`, `LD_PRELOAD`, `BASH_ENV`, `PATH`, `CXX`, `CUDA_HOME`, `PDSH_SSH_ARGS`, `TORCH_EXTENSIONS_DIR`.

    Why: A spec is data, and it may come from somebody else; a `sitecustomize.py` in the folder of `PYTHONPATH` runs in
    the launcher and in every rank, with all rights that you have. Only the user who starts the run can allow that, by
    `--allow-local-code` of `harness launch`, `tune`, `rehearse` and `preflight`; `ignore` of the spec does not count.
    The same holds for a variable that `--set` sets. `harness validate-config --ignore SE008` leaves the finding out.

    Example:
        launch.env.PYTHONPATH: ./lib

    Use instead:
        launch.env.PYTHONUNBUFFERED: 1
    """
    if ctx.allow_code:
        return
    for name, value in ctx.run.spec.launch.env.items():
        reason = code_loading_reason(name, value)
        if reason is not None:
            key = f"launch.env.{name}"
            yield ctx.finding(
                f"{ctx.key(key)} chooses code that every rank would run: {reason}",
                key,
                notes=["it would run with all rights that you have, on every host"],
                fix=Fix(
                    "remove it and set it in the shell that launches, or read it and start with `--allow-local-code`",
                    {key: None},
                    effect="ranks have it from their own environment",
                ),
            )


@spec_gate("MD034 spec-that-allows-its-own-code", unread="the harness refuses it", ignorable=False)
def spec_that_allows_its_own_code(ctx: Context) -> Findings:
    """A spec that allows its own code.

    `launch.env` does not set `HARNESS_ALLOWED_CODE`.

    Why: The variable names the file of yours that ranks may run. A spec may come from somebody else: only the user who
    starts the run can allow code, by `harness launch --allow-local-code`.

    Example:
        plugins.file: my_code.py
        launch.env.HARNESS_ALLOWED_CODE: 0f3c
    """
    if "HARNESS_ALLOWED_CODE" in ctx.run.spec.launch.env:
        key = "launch.env.HARNESS_ALLOWED_CODE"
        yield ctx.finding(
            f"{ctx.key(key)} would let the spec allow its own code",
            key,
            fix=Fix(f"remove {ctx.key(key)} and start with `--allow-local-code`", {key: None}, safe=True),
        )
