# SPDX-License-Identifier: Apache-2.0
"""`--redact`: no secret survives, and what explains the failure does. Needs nothing; seconds."""

from __future__ import annotations

import string

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.views.log_diagnosis import diagnosis_as_json, render_diagnosis
from harness.views.redaction import Redactor, redact_answer
from harness.views.style import Style
from tests.support.tracebacks import diagnose_text

HEX = "0123456789abcdef"
WORD = string.ascii_letters + string.digits


def text_of(alphabet: str, low: int, high: int) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=low, max_size=high)


octet = st.integers(2, 250).map(str)
TOKENS = st.one_of(
    text_of(WORD, 30, 40).map(lambda t: f"hf_{t}"),
    text_of(WORD, 30, 60).map(lambda t: f"sk-{t}"),
    text_of(WORD, 30, 60).map(lambda t: f"sk-proj-{t}"),
    text_of(string.ascii_uppercase + string.digits, 16, 16).map(lambda t: f"AKIA{t}"),
    text_of(WORD, 36, 36).map(lambda t: f"ghp_{t}"),
    text_of(HEX, 40, 40),
)
ADDRESSES = st.one_of(
    st.tuples(octet, octet, octet, octet).filter(lambda octets: octets[0] != "127").map(".".join),  # loopback is kept
    st.lists(text_of(HEX, 4, 4), min_size=8, max_size=8).map(":".join),
    st.lists(text_of(HEX, 2, 2), min_size=6, max_size=6).map(":".join),
)
USERS = text_of(string.ascii_lowercase, 6, 10).map(lambda t: f"zq{t}")
HOSTS = st.one_of(
    st.tuples(text_of(string.ascii_lowercase, 4, 8), st.integers(0, 999)).map(lambda t: f"node-{t[0]}-{t[1]}"),
    text_of(string.ascii_lowercase, 6, 9).map(lambda t: f"zh{t}.example-lab.internal"),
    st.tuples(octet, octet, octet, octet).map(lambda t: f"ip-{'-'.join(t)}"),
)
EMAILS = st.tuples(USERS, text_of(string.ascii_lowercase, 5, 9)).map(lambda t: f"{t[0]}@{t[1]}.org")
PLACES = [
    "[rank1]: RuntimeError: {} is odd",
    "[rank1]: OSError: cannot read '{}'",
    "[rank1]: ValueError: got [{}] of the job",
    "[rank1]: ConnectionError: HTTPSConnectionPool(host='{}', port=443): Max retries exceeded",
]
SECRET_PLACES = [
    "[rank1]: RuntimeError: python train.py --token {} --x 1",
    "[rank1]: RuntimeError: {{'Authorization': 'Bearer {}'}}",
    "[rank1]: RuntimeError: WANDB_API_KEY={} is not valid",
    "[rank1]: OSError: https://me:{}@git.example.com/x failed",
    '[rank1]: KeyError: {{"password": "{}"}}',
]


def answer(log: str, width: int) -> str:
    diagnosis, opinion = redact_answer(diagnose_text(log), None)
    return render_diagnosis(diagnosis, Style(), width, opinion=opinion) + diagnosis_as_json(diagnosis, opinion)


@settings(max_examples=150, deadline=None)
@given(secret=st.one_of(TOKENS, ADDRESSES, EMAILS), place=st.sampled_from(PLACES), width=st.sampled_from([80, 120]))
def test_no_token_and_no_address_survives(secret, place, width):
    assert secret not in answer(place.format(secret) + "\n", width)


@settings(max_examples=100, deadline=None)
@given(secret=text_of(WORD, 8, 40), place=st.sampled_from(SECRET_PLACES), width=st.sampled_from([80, 120]))
def test_no_named_secret_survives(secret, place, width):
    assume(secret not in answer(place.format("Zq" * 20) + "\n", width))  # `allocati` is in a word of ours
    assert secret not in answer(place.format(f"Z{secret}") + "\n", width)


@settings(max_examples=100, deadline=None)
@given(user=USERS, host=HOSTS, width=st.sampled_from([80, 120]), root=st.sampled_from(["/home", "/Users", "/data"]))
def test_no_user_no_host_and_no_folder_survives(user, host, width, root):
    log = (
        f"{host}: [rank3]: Traceback (most recent call last):\n"
        f'{host}: [rank3]:   File "{root}/{user}/secret-project/train.py", line 7, in <module>\n'
        f"{host}: [rank3]:     main()\n"
        f'{host}: [rank3]:   File "/home/{user}/env/lib/python3.11/site-packages/deepspeed/runtime/engine.py", line 9, in f\n'
        f"{host}: [rank3]:     x()\n"
        f"{host}: [rank3]: PermissionError: [Errno 13] Permission denied: '{root}/{user}/secret-project/x.bin'\n"
    )
    text = answer(log, width)
    assert user not in text
    assert host not in text
    assert "secret-project" not in text
    for word in (
        "rank 3",
        "PermissionError",
        "train.py:7",
        "/site-packages/deepspeed/runtime/engine.py",
        "host-1",
        "LG051",
    ):
        assert word in text


@settings(max_examples=100, deadline=None)
@given(secret=TOKENS, padding=st.integers(100, 420))
def test_half_a_token_does_not_survive_the_cut_of_a_line(secret, padding):
    log = f"[rank1]: RuntimeError: {'x ' * (padding // 2)}{secret}\n"
    text = answer(log, 120)
    assert not any(secret[:length] in text for length in range(9, len(secret) + 1))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_redacted_without_an_error_and_once(text):
    redactor = Redactor()
    redactor.learn(text)
    redactor.redact(text)


def test_equal_values_get_equal_replacements():
    redactor = Redactor(["gpu-7"])
    redactor.learn("failed on host gpu-7 for alice@gpu-7, /home/alice/x")
    once = redactor.redact("gpu-7 lost gpu-8: 10.0.0.1 and 10.0.0.2, 10.0.0.1; alice, gpu-7")
    assert once == "host-1 lost host-2: address-1 and address-2, address-1; user-1, host-1"


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 3 has a total capacity of 79.15 "
        "GiB",
        "AssertionError: You are using an untested ZeRO Optimizer",
        "KeyError: 'pad_token'",
        "ValueError: pad_token=<pad> eos_token: </s> max_tokens=512 for the tokenizer",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000)",
        "nvcc 12.4 and gcc 11.4.0 at /usr/local/cuda/bin/nvcc, 127.0.0.1:29500 and 0.0.0.0",
        "set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`",
        "c10::Error and std::bad_alloc at::native::empty, 12:30:05 on 2026-11-20, 50%|##| 6/15",
        'write `"zero_optimization": {"reduce_scatter": false}` in the DeepSpeed JSON',
        "https://github.com/deepspeedai/DeepSpeed and https://huggingface.co",
        "ImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api'",
        "this is a secret sauce",
    ],
)
def test_what_explains_the_failure_stays(text):
    redactor = Redactor()
    redactor.learn(text)
    assert redactor.redact(text) == text


def test_paths_of_packages_and_of_the_system_stay():
    redactor = Redactor()
    package = "lib/python3.11/site-packages/torch/x.py:3"
    assert redactor.redact(f"/home/alice/env/{package}") == f"<env>/{package}"
    assert redactor.redact("/usr/lib/python3/dist-packages/x.py") == "/usr/lib/python3/dist-packages/x.py"
    paths = redactor.redact("/mnt/acme/run/train.py and /mnt/acme/run/data.jsonl")
    assert paths == "<folder-1>/train.py and <folder-1>/file-1.jsonl"
    assert redactor.redact("/mnt/acme/out/global_step100/") == "<folder-2>/global_step100"
