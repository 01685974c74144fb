"""A path with a variable that nobody expands.

## What it checks
Model, tokenizer, data and monitor paths hold no `$NAME`, and no line break or control character.

## Why it fails
No shell ever reads these values: `$SCRATCH/data` is a folder called `$SCRATCH`. Monitors make it without a word, in
the folder where the ranks were started; the rest is not found once every rank has started.

## Example
```yaml
data:
  train: $SCRATCH/corpus/*.txt
```

## Use instead
```yaml
data:
  train: /scratch/corpus/*.txt
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("SE007", "path-with-a-variable", upstream="wrong")
def check(ctx: Context) -> Iterator[Finding]:
    """Nothing is expanded."""
    spec = ctx.run.spec
    paths = [("model.name_or_path", spec.model.name_or_path), ("model.tokenizer", spec.model.tokenizer)]
    paths += [("data.train", source.path) for source in spec.data.train or ()]
    paths += [("data.eval", source.path) for source in spec.data.eval or ()]
    paths += [(ctx.spec_key(f"{n}.output_path"), ctx.ds(f"{n}.output_path")) for n in ("csv_monitor", "tensorboard")]
    for key, text in paths:
        if not isinstance(text, str) or ("$" not in text and text.isprintable()):
            continue
        yield ctx.finding(
            f"{ctx.key(key)} holds {'`$`' if '$' in text else 'a control character'}: nobody expands it",
            key,
            notes=["the text is taken as it is written"],
            fix=Fix("write the path out", {key: text.replace("$", "/")}, effect="another path is read"),
        )
