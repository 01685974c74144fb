"""Going on from a checkpoint: verified, compared, loaded safely, and agreed on by all ranks before and after."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from harness.checkpoints import manifest
from harness.checkpoints.compare import compare
from harness.checkpoints.manifest import Manifest
from harness.checkpoints.verify import verify
from harness.errors import Refused
from harness.findings import Finding
from harness.runtime.checkpoint import contents, random_states, shape, shards
from harness.runtime.ranks import Ranks
from harness.runtime.refusals import refusal, say
from harness.runtime.replay import replay_adam
from harness.runtime.schedule import take_up
from harness.runtime.state import State

PICKLED = (".pt", ".pth", ".bin", ".pkl")


def restore(job: contents.Trained, folder: Path, allowed: Collection[str] = ()) -> State:
    """Put engine, optimizer, schedule and random states back as they were when `folder` was saved. A collective.

    `allowed` are keys or sections of the spec whose change since then is meant. Raises Refused on all ranks: CK101
    damaged, CK102 another shape, CK103 other data, CK104 nothing loaded, CK107 settings that must not change, CK108
    edited manifest, CK111 a shard with code in it, CK112 a path that leads elsewhere.
    """
    ranks = job.ranks
    saved = ranks.together(lambda: read_manifest(folder))
    _look(job, saved)
    why = shape.needed(job, saved)
    told = ranks.together(lambda: _fits(job, saved, allowed))
    if ranks.is_first and told:
        say(told)
    if why:
        shape.load(job, saved)
    elif ranks.any(not shards.load_engine(job.engine, folder, saved.tag)):
        raise refusal("CK104", f"DeepSpeed loaded nothing from `{folder}`", fix="name another checkpoint")
    replay_adam(job.engine)
    take_up(job.engine)
    mine = folder / f"rank-{ranks.rank:05d}.pt"
    if saved.world == ranks.world:  # others have no random states of their own, and go on with fresh ones
        states = ranks.together(lambda: shards.load(mine))
        random_states.put(states)
    state = ranks.together(lambda: _state(saved))
    ranks.barrier()
    return state


def read_manifest(folder: Path) -> Manifest:
    """The manifest, after a look at the name and the size of every file. Raises Refused with all that is wrong."""
    found = [f for f in verify(folder, deep=False) if f.is_error]
    if found:
        raise Refused(found)
    return manifest.read(folder)


def _look(job: contents.Trained, saved: Manifest) -> None:
    """Every byte and every pickle, each rank its part; `checkpoint.verify: sizes` leaves the bytes out."""
    ranks, deep = job.ranks, job.orders.run.spec.checkpoint.verify == "full"
    mine = my_part(saved, ranks)

    def look() -> None:
        found = verify(saved.folder, deep=True, only=mine) if deep else []
        if found:
            raise Refused(found)
        for name in mine:
            foreign = shards.foreign(saved.folder / name) if name.endswith(PICKLED) else []
            if foreign:
                raise shards.unsafe(saved.folder / name, foreign)

    ranks.together(look)


def my_part(saved: Manifest, ranks: Ranks) -> list[str]:
    """The files that this rank looks at: large ones are spread first, so that all have about the same to read."""
    loads, parts = [0] * ranks.world, [[] for _ in range(ranks.world)]  # type: tuple[list[int], list[list[str]]]
    for name, record in sorted(saved.files.items(), key=lambda item: (-item[1].bytes, item[0])):
        rank = loads.index(min(loads))
        loads[rank] += record.bytes + 1
        parts[rank].append(name)
    return parts[ranks.rank]


def _fits(job: contents.Trained, saved: Manifest, allowed: Collection[str]) -> list[Finding]:
    """What is to be told of changed settings. Raises Refused when this run must not go on from the checkpoint; whether
    it can, in its shape, is not asked here.
    """
    comparison = compare(
        saved,
        contents.spec_of(job.orders),
        world=job.ranks.world,
        sha256=contents.hashes(job),
        dtype=contents.dtype_of(job.engine),
        allowed=allowed,
    )
    found = comparison.findings(str(saved.folder), reshaping=True)
    errors = [f for f in found if f.is_error]
    if errors:
        raise Refused(errors)
    return found


def _state(saved: Manifest) -> State:
    try:
        return State.from_json(saved["state"])
    except (KeyError, TypeError, ValueError) as error:
        raise refusal(
            "CK101", f"`{saved.folder}` holds a state of training that this version cannot read: {error}"
        ) from None
