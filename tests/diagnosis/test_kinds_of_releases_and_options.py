# SPDX-License-Identifier: Apache-2.0
"""Kinds of failures between packages, options and files of a checkpoint, each with siblings. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text, traceback_text

SITE = "/opt/venv/lib/python3.11/site-packages"
TRAINER = [(f"{SITE}/transformers/trainer.py", "_inner_training_loop", "self.optimizer.step()")]


@pytest.mark.parametrize("indent", ["\t", "    ", ""])
def test_a_log_that_somebody_indented_names_its_rank(indent):
    rows = traceback_text([("/job/odd.py", "go", "x()")], "ValueError: bad").splitlines()
    diagnosis = diagnose_text("".join(f"{indent}[rank3]: {row}\n" for row in rows))
    assert (diagnosis.rank, diagnosis.where) == (3, "/job/odd.py:1 in go")
    assert diagnosis.message == "ValueError: bad"


@pytest.mark.parametrize(("code", "is_use"), [("assert not param.ds_active_sub_modules, p()", True), ("x()", False)])
def test_the_line_of_an_assertion_tells_what_a_cut_summary_does_not(code, is_use):
    frames = [(f"{SITE}/deepspeed/runtime/zero/partition_parameters.py", "free_param", code)]
    diagnosis = diagnose_text(traceback_text(frames, "AssertionError: {'id': 7, 'status': 'AVAILABLE', 'num"))
    assert diagnosis.cause == "LG102"
    assert ("`param.ds_active_sub_modules`" in diagnosis.change) is is_use


@pytest.mark.parametrize("option", ["--local_rank=0", "--local-rank=1", "--local_rank=0 --deepspeed odd.json"])
@pytest.mark.parametrize("program", ["tune.py: ", ""])
def test_a_parser_that_does_not_know_what_the_launcher_passes(option, program):
    diagnosis = diagnose_text(f"{program}error: unrecognized arguments: {option}\n")
    assert (diagnosis.cause, diagnosis.confidence) == ("LG065", "certain")
    assert f"`{option}`" in diagnosis.title
    assert "add_config_arguments" in diagnosis.change


@pytest.mark.parametrize(
    ("file", "is_known", "first"),
    [
        ("zero_pp_rank_0_mp_rank_02_optim_states.pt", True, "to start from its weights"),
        ("bf16_zero_pp_rank_5_mp_rank_00_optim_states.pt", True, "let every host see"),
        ("mp_rank_05_model_states.pt", False, "check the path"),
    ],
)
def test_optimizer_states_that_are_missing(file, is_known, first):
    diagnosis = diagnose_text(f"FileNotFoundError: [Errno 2] No such file or directory: '/odd/step7/{file}'\n")
    assert diagnosis.cause == "LG034"
    assert diagnosis.change.startswith(first)
    assert (file in diagnosis.title, diagnosis.confidence == "likely") == (is_known, True)


@pytest.mark.parametrize("code", ["engine.step()", "self.optimizer.step()", "loss = model(x)"])
def test_a_step_that_mixes_devices_is_of_deepspeed(code):
    error = (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:5 and cpu!"
    )
    diagnosis = diagnose_text(traceback_text([("/job/odd.py", "go", code)], error))
    assert diagnosis.cause == "LG081"
    assert ("a fault of DeepSpeed" in diagnosis.title) is ("step" in code)


@pytest.mark.parametrize(
    ("frame", "first"),
    [
        (None, "install a newer trl"),
        ((f"{SITE}/transformers/trainer.py", "train", "if self.is_odd:"), "install a newer trl"),
        (("/job/odd.py", "go", "trainer.is_odd"), "install the trl that the program names"),
    ],
)
@pytest.mark.parametrize("name", ["RLOOTrainer", "PPOv2Trainer"])
def test_a_trainer_of_trl_beside_another_release(frame, first, name):
    error = f"AttributeError: '{name}' object has no attribute 'is_odd'"
    diagnosis = diagnose_text(traceback_text([frame], error) if frame else f"{error}\n")
    assert diagnosis.cause == "LG089"
    assert diagnosis.change.startswith(first)


@pytest.mark.parametrize(
    "code", ["from odd.inner.part import x", "from .inner import part", "from other.inner import x"]
)
def test_a_release_that_was_packed_without_a_module_of_its_own(code):
    error = "ModuleNotFoundError: No module named 'odd.inner'"
    diagnosis = diagnose_text(traceback_text([(f"{SITE}/odd/engine.py", "load", code)], error))
    assert diagnosis.cause in ("LG227", "LG064")
    assert ("packed without" in diagnosis.title) is ("other" not in code)


@pytest.mark.parametrize(("name", "needs_launcher"), [("step", True), ("train", False)])
def test_a_placeholder_in_the_trainer_needs_a_launcher(name, needs_launcher):
    error = f"AttributeError: 'DummyOptim' object has no attribute '{name}'"
    diagnosis = diagnose_text(traceback_text(TRAINER, error))
    assert diagnosis.cause == "LG293"
    assert diagnosis.change.startswith("start the job with" if needs_launcher else "install transformers")


@pytest.mark.parametrize(
    ("file", "is_state"), [(f"{SITE}/transformers/trainer_callback.py", True), ("/job/odd.py", False)]
)
def test_a_tensor_in_the_state_of_the_trainer(file, is_state):
    frames = [(file, "save", "json.dumps(x)"), ("/usr/lib/python3.11/json/encoder.py", "default", "raise TypeError(x)")]
    diagnosis = diagnose_text(traceback_text(frames, "TypeError: Object of type Tensor is not JSON serializable"))
    assert diagnosis.cause == "LG297"
    assert ("gradient norm" in diagnosis.title) is is_state


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_a_parameter_is_no_host(kind):
    line = f"odd.layer.0.query.{kind}: copying a param with shape torch.Size([7, 7]) from checkpoint, the shape in "
    diagnosis = diagnose_text(f"{line}current model is torch.Size([0]).\n")
    assert (diagnosis.host, diagnosis.cause) == ("", "LG083")
    assert "GatheredParameters" in diagnosis.change


@pytest.mark.parametrize("is_pipeline", [True, False])
def test_a_stage_of_a_pipeline_that_trains_nothing(is_pipeline):
    stages = "stage=0 layers=3\n     0: Odd\nstage=1 layers=2\n     3: Odd\n" if is_pipeline else ""
    diagnosis = diagnose_text(f"{stages}ValueError: optimizer got an empty parameter list\n")
    assert diagnosis.cause == ("PP006" if is_pipeline else "LG147")


@pytest.mark.parametrize("device", ["GPU-1a2b3c", "MIG-77", "zero"])
def test_a_device_that_is_named_by_its_uuid(device):
    frames = [("deepspeed/launcher/runner.py", "<listcomp>", "slots = [int(x) for x in slots]")]
    error = f"ValueError: invalid literal for int() with base 10: '{device}'"
    diagnosis = diagnose_text(traceback_text(frames, error))
    assert diagnosis.cause == "LG061"
    assert ("by UUID" in diagnosis.title) is ("-" in device)


@pytest.mark.parametrize(
    ("code", "error", "is_path"),
    [
        ("config = json.loads(config_file_or_dict)", "json.decoder.JSONDecodeError: Expecting value: line 1", True),
        ("x = base64.urlsafe_b64decode(config_file_or_dict)", "binascii.Error: Incorrect padding", True),
        ("config = json.load(f)", "json.decoder.JSONDecodeError: Expecting value: line 1", False),
    ],
)
def test_a_name_that_accelerate_reads_as_json_is_no_path(code, error, is_path):
    diagnosis = diagnose_text(traceback_text([("accelerate/utils/deepspeed.py", "__init__", code)], error))
    assert ("no DeepSpeed JSON at the path" in diagnosis.title) is is_path


@pytest.mark.parametrize(
    ("frame", "is_auto"),
    [
        (None, True),
        (("transformers/integrations/deepspeed.py", "finalize", "x = model.config.hidden_size"), True),
        (("/job/odd.py", "go", "cfg.hidden_size"), False),
    ],
)
def test_auto_needs_a_size_that_a_model_of_parts_does_not_have(frame, is_auto):
    error = "AttributeError: 'OddDuoConfig' object has no attribute 'hidden_size'"
    diagnosis = diagnose_text(traceback_text([frame], error) if frame else f"{error}\n")
    assert (diagnosis.cause == "HF003") is is_auto


@pytest.mark.parametrize(("name", "is_own"), [("deepspeed.ops.odd.OddCPU", True), ("torch.optim.odd.Odd", False)])
def test_an_optimizer_of_deepspeed_that_offload_refuses(name, is_own):
    error = (
        f"ZeRORuntimeException: You are using ZeRO-Offload with a client provided optimizer (<class '{name}'>) which"
    )
    diagnosis = diagnose_text(f"{error} in most cases will yield poor performance.\n")
    assert diagnosis.cause == "LG085"
    assert ("a fault of the release" in diagnosis.title) is is_own


@pytest.mark.parametrize(("state", "is_lost"), [("INFLIGHT", True), ("NOT_AVAILABLE", False)])
def test_a_parameter_in_flight_needs_a_newer_deepspeed(state, is_lost):
    code = "assert param.ds_status == ZeroParamStatus.AVAILABLE, param.ds_summary()"
    frames = [("deepspeed/runtime/zero/partitioned_param_coordinator.py", "fetch_sub_module", code)]
    diagnosis = diagnose_text(traceback_text(frames, f"AssertionError: {{'id': 7, 'status': '{state}', 'numel': 4}}"))
    assert diagnosis.cause == "LG102"
    assert diagnosis.change.startswith("install a newer DeepSpeed") is is_lost


@pytest.mark.parametrize(
    ("error", "is_without"),
    [
        ("httpx.ConnectError: [Errno -3] Temporary failure in name resolution", True),
        ("OSError: [Errno 101] Network is unreachable", True),
        ("requests.exceptions.ConnectionError: Connection reset by peer", False),
    ],
)
def test_a_host_without_a_network_needs_a_change(error, is_without):
    diagnosis = diagnose_text(traceback_text([("urllib3/connection.py", "_new_conn", "sock.connect(x)")], error))
    assert diagnosis.cause == "LG040"
    assert decide_action(diagnosis).action == ("change and retry" if is_without else "retry")


@pytest.mark.parametrize("kind", ["dict", "Optional[dict]"])
def test_a_path_that_a_parser_takes_for_a_dictionary(kind):
    diagnosis = diagnose_text(f"tune.py: error: argument --odd_config: invalid {kind} value: 'odd.json'\n")
    assert diagnosis.cause == "LG065"
    assert diagnosis.change.startswith("install transformers 4.52.4")


@pytest.mark.parametrize("standard", [17, 20])
def test_a_standard_of_cpp_that_a_builder_passes(standard):
    line = f"/a/torch/all.h:5:2: error: #error C++{standard} or later compatible compiler is required to use PyTorch."
    diagnosis = diagnose_text(f"{line}\n")
    assert (diagnosis.confidence, f"C++{standard}" in diagnosis.title) == ("likely", True)
    assert diagnosis.change.startswith("install a newer release of the package")


@pytest.mark.parametrize(("end", "is_best"), [("100%|##| 7/7 [00:09<00:00]", True), ("  3%|#  | 1/30 [00:09]", False)])
def test_a_best_checkpoint_that_is_gone(end, is_best):
    diagnosis = diagnose_text(f"{end}\nValueError: Can't find a valid checkpoint at /odd/checkpoint-7\n")
    assert diagnosis.cause == "LG034"
    assert ("load_best_model_at_end: false" in diagnosis.change) is is_best


@pytest.mark.parametrize("where", ["__getitem__", "tokenize_odd", "main"])
def test_a_field_that_a_record_lacks(where):
    quote = f"  File \"odd.py\", line 7, in {where}\n: 'odd_field'\n    x = self.data[i][\"odd_field\"]\nKeyError: 'odd_field'\n"
    assert (diagnose_text(quote).cause == "LG234") is (where != "main")


@pytest.mark.parametrize(
    ("frames", "cause"),
    [
        ([("deepspeed/runtime/config.py", "_configure_train_batch_size", "self._batch_assertion()")], "BT001"),
        (
            [
                ("/job/odd.py", "go", 'with args.main_process_first(desc="odd"):'),
                ("/usr/lib/python3.11/contextlib.py", "__enter__", "return next(self.gen)"),
            ],
            "LG067",
        ),
        ([("/job/odd.py", "go", 'with args.main_process_first(desc="odd"):'), ("/job/odd.py", "load", "x()")], ""),
    ],
)
def test_a_check_or_a_wait_in_a_cut_traceback(frames, cause):
    assert diagnose_text(traceback_text(frames, "").rstrip() + "\n").cause == cause


@pytest.mark.parametrize("lead", ["ModuleNotFoundError: ", ""])
def test_a_module_that_transformers_moved_is_of_a_newer_or_an_older_release(lead):
    diagnosis = diagnose_text(f"{lead}No module named 'transformers.deepspeed'\n")
    assert (diagnosis.cause, diagnosis.confidence) == ("LG089", "likely")


def test_the_offload_of_parameters_needs_its_own_path():
    error = 'AssertionError: "nvme_path" in DeepSpeed Config cannot be None if remote device is nvme'
    diagnosis = diagnose_text(f"{error}\n")
    assert (diagnosis.cause, "offload_param" in diagnosis.title) == ("OF002", True)
