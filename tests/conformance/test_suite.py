# SPDX-License-Identifier: Apache-2.0
"""The suite's own parts, without DeepSpeed: draws, files, and how answers are judged."""

from __future__ import annotations

from collections import Counter

import pytest

from . import compare, known, outcome, report
from .case import Case, drop, file_text, get, put, spec_of
from .draw import draw
from .faults import FAMILIES
from .ours import Verdict, verdict
from .pairs import PAIRS

SAMPLE = [draw(1, n) for n in range(150)]


def answer(**changes):
    """What a plain run on 2 ranks answers, with some facts changed."""
    facts = {
        "stage": 2, "optimizer": "DeepSpeedZeroOptimizer", "base_optimizer": "FusedAdam", "offload_optimizer": "none",
        "offload_param": "none", "dtypes": ["float32"], "autocast": [False, None], "micro": 2, "accumulation": 1,
        "global": 4, "data": 2, "tensor": 1, "pipeline": 1, "sequence": 1, "clipping": 1.0, "scheduler": None,
        "hyper": {"weight_decay": 0.0}, "hpz": 1, "effective": {"gradient_clipping": 1.0}, "masters": ["float32"],
    }  # fmt: skip
    rank = {
        "losses": [4.8, 4.7, 4.6], "lr": [[0.01]] * 3, "norms": [1.0, 1.0, 1.0], "skipped": [0, 0, 0], "replica": 0,
        "global_steps": 3, "saved": True, "facts": {**facts, **changes}, "digest": 1.0,
    }  # fmt: skip
    reference = {"ratio": 1.0, "cosine": 1.0, "losses": [4.8, 4.7, 4.6]}
    return {"outcome": "ran", "ranks": [rank, {**rank, "replica": 1}], "reference": reference}


MEANT = {
    "zero_optimization": {"stage": 2},
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
}
CASE = Case("x-0", "json", MEANT, 2)


def settled(case, findings=(), **changes):
    said = Verdict(tuple(findings), None, None)
    asked = compare.asked_of(MEANT, 2, case.degrees)
    return outcome.settle(case, said, answer(**changes), MEANT, asked, {"save": True}).kind


def test_a_case_follows_from_its_number():
    assert draw(1, 7) == draw(1, 7)
    assert draw(1, 7) != draw(2, 7)
    assert Case.of(draw(1, 7).to_json()) == draw(1, 7)


def test_a_sample_has_every_family_and_feature_good_and_bad():
    faults = Counter(f.partition(":")[0] for c in SAMPLE for f in c.faults)
    assert set(FAMILIES) <= set(faults)
    good = [c for c in SAMPLE if not c.faults]
    features = Counter(f for c in good for f in c.features)
    assert {"stage-0", "stage-1", "stage-2", "stage-3", "tensor", "pipeline", "sequence", "bf16", "fp32"} <= set(
        features
    )
    assert 0.1 < len(good) / len(SAMPLE) < 0.4
    single = [c for c in SAMPLE if len(c.faults) == 1]
    assert len(single) > len(SAMPLE) / 2
    assert {c.form for c in SAMPLE} == {"spec", "json"}
    assert {c.world for c in SAMPLE} == {1, 2, 3, 4}


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_every_pair_gives_a_file(name):
    import random

    changed = PAIRS[name](random.Random(1), dict(MEANT), CASE)  # noqa: S311
    assert file_text(changed)[1]


@pytest.mark.parametrize("number", range(0, 150, 3))
def test_our_side_never_crashes(number):
    assert verdict(SAMPLE[number]).crash == ""


def test_a_spec_says_what_the_json_says():
    case = Case("x-1", "spec", {**MEANT, "bf16": {"enabled": True}, "aio": {"block_size": 4096}}, 2, pipeline=2)
    spec = spec_of(case)
    assert get(spec, "zero.stage") == 2
    assert get(spec, "train.per_device_train_batch_size") == 2
    assert get(spec, "precision.bf16") is True
    assert get(spec, "optimizer.learning_rate") == 0.01
    assert get(spec, "deepspeed.aio.block_size") == 4096
    assert get(spec, "parallel.pipeline_parallel_size") == 2


def test_dotted_paths():
    config = {"a": 1}
    put(config, "a.b", 2)
    assert config == {"a": {"b": 2}}
    drop(config, "a.b")
    drop(config, "no.where")
    assert config == {"a": {}}


def test_what_runs_as_asked_is_good_when_accepted_and_an_alarm_when_refused():
    assert settled(CASE) == "agree-good"
    assert settled(CASE, [("XX999", "error", "no")]) == "false-alarm"
    assert settled(CASE, [("XX999", "warning", "careful")]) == "agree-good"


@pytest.mark.parametrize(
    "changes",
    [
        {"stage": 0},
        {"offload_optimizer": "cpu"},
        {"dtypes": ["bfloat16"]},
        {"micro": 4},
        {"global": 8},
        {"data": 1},
        {"clipping": 0.5},
        {"scheduler": "WarmupLR", "base_optimizer": "SGD"},
        {"changed_by_initialize": {"w": 0.3}},
        {"masters": ["bfloat16"]},
    ],
)
def test_each_silent_difference_is_a_miss_when_accepted(changes):
    assert settled(CASE, **changes) == "missed"
    assert settled(CASE, [("XX999", "error", "no")], **changes) == "agree-bad"


def test_training_is_compared_with_plain_torch():
    for change in ({"ratio": 0.5}, {"cosine": 0.5}, {"losses": [4.8, 4.7, 4.0]}):
        body = answer()
        body["reference"] |= change
        found = compare.differences(MEANT, compare.asked_of(MEANT, 2, CASE.degrees), body, {"save": True})
        assert any(d.large for d in found), change


def test_skipping_every_step_and_ranks_that_drift_are_seen():
    body = answer()
    body["ranks"][0]["skipped"] = [1, 2, 3]
    body["ranks"][1]["digest"] = 2.0
    found = [d.what for d in compare.differences(MEANT, compare.asked_of(MEANT, 2, CASE.degrees), body, {})]
    assert any("every step was skipped" in w for w in found)
    assert any("other weights" in w for w in found)


def test_an_option_that_is_read_otherwise_must_be_told():
    meant = {**MEANT, "prescale_gradients": "false"}
    body = answer(effective={"prescale_gradients": True})
    found = compare.differences(meant, compare.asked_of(meant, 2, CASE.degrees), body, {"save": True})
    assert [d.large for d in found] == [False]


def test_the_triangle_as_the_user_means_it():
    plain = {"tensor": 1, "pipeline": 1, "sequence": 1}
    assert compare.asked_of({"train_batch_size": 8, "gradient_accumulation_steps": 2}, 2, plain)["micro"] == 2
    assert compare.asked_of({"train_batch_size": 7}, 2, plain)["micro"] is None
    assert compare.asked_of({"train_micro_batch_size_per_gpu": 2}, 4, {**plain, "tensor": 2})["data"] == 2


def test_a_failure_is_bad_whatever_the_phase():
    said = Verdict((), None, None)
    for did in ("fails", "hangs", "leaves"):
        body = {"outcome": did, "phase": "initialize", "error": {"type": "X", "message": "y"}, "ranks": []}
        assert outcome.settle(CASE, said, body, MEANT, {}, {}).kind == "missed"


def test_known_entries_have_reasons_and_the_report_names_stale_ones():
    assert all(k.reason and k.name for k in known.KNOWN)
    said = Verdict((), None, None)
    good = outcome.settle(CASE, said, answer(), MEANT, compare.asked_of(MEANT, 2, CASE.degrees), {"save": True})
    text = report.markdown([good], {"date": "2026-01-01", "seed": 1})
    assert all(f"`{k.name}` in `known.py` matched nothing" in text for k in known.KNOWN)
    assert outcome.Outcome.of(good.to_json()) == good
