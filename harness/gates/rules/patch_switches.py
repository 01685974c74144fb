# SPDX-License-Identifier: Apache-2.0
"""The switches of patches, `launch.patches`."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, spec_gate
from harness.patches.patch_registry import all_patches, is_switched_off
from harness.plan.settings.patch_facts import patch_facts
from harness.spec.suggestions import nearest_name


@spec_gate(
    "EN055 correctness-patch-off",
    upstream="wrong",
    cites=(
        Cite("runtime/fp16/fused_optimizer.py", "self.initialize_optimizer_states()"),
        Cite("runtime/zero/muon/muon_optimizer.py", "use_muon", since="0.17.6"),
    ),
    when=lambda ctx: ctx.run.spec.launch.patches != "auto",
)
def correctness_patch_off(ctx: Context) -> Findings:
    """A correctness patch that this run needs is off.

    `launch.patches` switches off no patch of kind `correctness` that the run needs.

    Why: Such a patch fixes a fault of DeepSpeed that changes the weights or ends the run: `docs/patches.md` describes
    each, and its tests show the fault on 0.19.8. To train with the fault, put `ignore: {EN055: why}` into the spec.
    Patches for memory, speed and start-up need no reason.

    Example:
        zero.stage: 0
        precision.bf16: true
        launch.patches: "off"
    """
    facts = patch_facts(ctx.run, on_cpu_accelerator=ctx.accelerator == "cpu")
    switches = ctx.run.spec.launch.patches
    names = [
        patch.name
        for patch in all_patches()
        if patch.kind == "correctness" and patch.is_needed(facts) and is_switched_off(patch, switches)
    ]
    if names:
        key = "launch.patches"
        count = "1 patch" if len(names) == 1 else f"{len(names)} patches"
        listed = ", ".join(f"`{name}`" for name in names)
        yield ctx.finding(
            f"{ctx.key(key)} switches off {count} for correctness that this run needs",
            key,
            label="trains with a fault of DeepSpeed",
            notes=[f"off: {listed}", "to train with the fault, put `ignore: {EN055: why}` into the spec"],
            fix=ctx.fix_to_remove(key, effect="the run has the patches that it needs"),
        )


@spec_gate("EN056 unknown-patch")
def unknown_patch(ctx: Context) -> Findings:
    """A switch for an unknown patch, or for one without a switch.

    Every name in `launch.patches` is that of a patch with a switch.

    Why: Under a misspelt name the patch stays on. `harness doctor` and `docs/patches.md` list all names. Patches of
    kind `use` have no switch: a feature of the harness uses the private names that they list.

    Example:
        launch.patches.zero3-leaf-param: "off"
    """
    switches = ctx.run.spec.launch.patches
    if isinstance(switches, str):
        return
    kinds = {patch.name: patch.kind for patch in all_patches()}
    names = [name for name, kind in kinds.items() if kind != "use"]
    for name in switches:
        key = f"launch.patches.{name}"
        if kinds.get(name) == "use":
            reason = "has no switch: a feature of the harness needs it"
        elif name not in kinds:
            reason = "is no patch"
        else:
            continue
        similar = nearest_name(name, names)
        if similar is not None:
            sets = {key: None, f"launch.patches.{similar}": "off"}
            fix = Fix(f"did you mean `{similar}`?", sets, effect=f"`{similar}` is switched off")
        else:
            fix = ctx.fix_to_remove(key, effect="nothing is switched off")
        yield ctx.finding(f"`{name[:60]}` {reason}", key, label="no such switch", fix=fix, of_key=True)
