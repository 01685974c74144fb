# SPDX-License-Identifier: Apache-2.0
"""Ranks and degrees; and the file that ranks re-read."""

from __future__ import annotations

import json

import pytest

from harness.render import render_ds_config
from harness.run.resolved_run import ResolvedRun, _content_digest, resolve_run
from harness.spec.hostfile import Cluster
from harness.spec.run_spec import RunSpec


def spec(**sections):
    return RunSpec.model_validate({"zero": {"stage": 0}, **sections})


@pytest.mark.parametrize(
    ("kwargs", "world"),
    [
        ({"world_size": 6, "cluster": Cluster.from_pairs([("a", 2)])}, 6),
        ({"cluster": Cluster.from_pairs([("a", 2), ("b", 2)])}, 4),
        ({}, 3),
    ],
)
def test_who_says_how_many_ranks(kwargs, world):
    assert (
        resolve_run(spec(launch={"num_gpus": 3}, cluster={"gpus_per_node": 8}), **kwargs).parallel_dims.world_size
        == world
    )


def test_cluster_hints_come_last_and_nothing_is_unknown():
    assert resolve_run(spec(cluster={"gpus_per_node": 8, "num_nodes": 2})).parallel_dims.world_size == 16
    assert resolve_run(spec()).parallel_dims.world_size is None
    assert resolve_run(spec()).parallel_dims.data is None


@pytest.mark.parametrize(("world", "degrees", "data"), [(8, (2, 2, 1), 2), (6, (4, 1, 1), None), (1, (2, 1, 1), None)])
def test_data_parallel_ranks(world, degrees, data):
    names = ("tensor_parallel_size", "pipeline_parallel_size", "sequence_parallel_size")
    run = resolve_run(spec(parallel=dict(zip(names, degrees, strict=True))), world_size=world)
    assert run.parallel_dims.data == data


def test_a_resolved_run_survives_its_file_and_notices_an_edit():
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    chosen = spec(train={"per_device_train_batch_size": 2}, data={"train": ["a", "b"]}, zero=zero)
    run = resolve_run(chosen, cluster=Cluster.from_pairs([("a", 2)]), name="x")
    body = json.loads(json.dumps(run.to_json()))
    assert ResolvedRun.from_json(body) == run
    assert render_ds_config(ResolvedRun.from_json(body)) == render_ds_config(run)
    body["spec"]["train"]["seed"] = 1
    with pytest.raises(ValueError, match="edited or not fully written"):
        ResolvedRun.from_json(body)
    with pytest.raises(ValueError, match="format_version"):
        ResolvedRun.from_json({**body, "format_version": 99})


def test_a_run_of_another_version_is_read_for_reports_with_the_defaults_that_it_had():
    body = resolve_run(spec(train={"per_device_train_batch_size": 2}), world_size=2).to_json()
    older = json.loads(json.dumps({name: value for name, value in body.items() if name != "sha256"}))
    del older["spec"]["launch"]["patches"]
    without_a_key = sign(older)
    older["spec"]["launch"]["stop_grace_seconds"] = 3.0
    with_another_default = sign(older)
    for text in (without_a_key, with_another_default):
        with pytest.raises(ValueError, match="another version"):
            ResolvedRun.from_json(text)
    assert ResolvedRun.from_json(without_a_key, any_version=True).spec == spec(train={"per_device_train_batch_size": 2})
    assert ResolvedRun.from_json(with_another_default, any_version=True).spec.launch.stop_grace_seconds == 3.0
    unknown = sign({**older, "spec": {**older["spec"], "of_a_later_version": 1}})
    with pytest.raises(ValueError, match="of_a_later_version"):
        ResolvedRun.from_json(unknown, any_version=True)


def sign(body):
    return json.loads(json.dumps({**body, "sha256": _content_digest(body)}))


@pytest.mark.parametrize(
    ("trainer", "ranks", "threads"),
    [("accelerate", 1, 1), ("llama-factory", 8, 1), ("llama-factory", 1, 0), ("trainer", 8, 0), ("", 8, 0)],
)
def test_a_launcher_that_sets_the_threads_is_known(trainer: str, ranks: int, threads: int) -> None:
    assert resolve_run(spec(), world_size=ranks)._replace(trainer=trainer).step_threads == threads
    named = resolve_run(spec(launch={"env": {"OMP_NUM_THREADS": "12"}}), world_size=ranks)
    assert named._replace(trainer=trainer).step_threads == 12
