# SPDX-License-Identifier: MIT
# tests/ecosystem/test_llamafactory.py - LLaMA-Factory by its file: same losses, less memory
import json
import runpy
import shutil
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec

import pytest

pytest.importorskip("llamafactory", reason="it has an environment of its own: make test-programs")
if find_spec("torchaudio") is None:
    # Its builds are for GPUs; LLaMA-Factory imports it always, and uses it for sound alone.
    sys.modules["torchaudio"] = module_from_spec(ModuleSpec("torchaudio", None))

import spillway  # noqa: E402
from llamafactory.train.tuner import run_exp  # noqa: E402
from places import Forked, make_drives  # noqa: E402
from small import drives_are_fast, example, logged, make_small, weights, written  # noqa: E402, F401
from spillway.integrations.llamafactory import run  # noqa: E402

MODULE = "spillway.integrations.llamafactory"
SPILL = {"mode": "spill", "min_bytes": 0}
KINDS = {
    "full": {},
    "everything": {"disable_gradient_checkpointing": True},
    "not reentrant": {"use_reentrant_gc": False},
    "bf16": {"bf16": True, "use_cpu": True},
    "lora": {"finetuning_type": "lora", "lora_rank": 4, "lora_target": "all"},
    "pretraining": {"stage": "pt", "dataset": "lines"},
    "preferences": {"stage": "dpo", "dataset": "pairs", "finetuning_type": "lora"},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    make_small(folder)
    rank = {"prompt": "instruction", "chosen": "output", "rejected": "text"}
    names = {"text": {}, "lines": {"columns": {"prompt": "text"}},
             "pairs": {"ranking": True, "columns": rank}}
    (folder / "dataset_info.json").write_text(json.dumps(
        {name: {"file_name": "text.json", **more} for name, more in names.items()}))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def settings(made, folder, drives, monkeypatch):
    """Of the example; a function of what is different."""
    monkeypatch.chdir(made)
    return lambda **more: example("llamafactory.yaml", folder, drives, **{
        "cutoff_len": 128, "per_device_train_batch_size": 2, "overwrite_cache": True,
        "disable_tqdm": True, "preprocessing_num_workers": None, **more})


def plain(config):
    run_exp({key: value for key, value in config.items() if key != "spillway"})


def outcome(folder, steps=6):
    losses = logged(folder / "out/trainer_state.json")
    assert len(losses) == steps
    result = losses, weights(folder / "out")
    shutil.rmtree(folder / "out")
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_losses(settings, folder, drives, kind):
    plain(settings(**KINDS[kind]))
    expected = outcome(folder)
    callback = run(settings(**KINDS[kind], spillway={"devices": drives, **SPILL}))
    assert outcome(folder) == expected
    stats = callback.stats
    assert stats.steps == 12 and stats.bytes_spilled + stats.bytes_forwarded > 0
    assert callback.off.closed


@pytest.mark.usefixtures("drives_are_fast")
@pytest.mark.parametrize("kind, share", [("full", 1), ("everything", 0.8)])
def test_less_memory(settings, folder, drives, capsys, kind, share):
    """Than what plain training holds, which mode "observe" counts. With checkpoints, its default,
    little is left to spill of a model whose vocabulary is larger than its layers."""
    peaks = {}
    for mode in ("observe", "spill"):
        callback = run(settings(**KINDS[kind], spillway={
            "devices": drives, **SPILL, "mode": mode, "prefetch_bytes": "64KiB"}))
        peaks[mode] = callback.stats.step_peak_bytes
        shutil.rmtree(folder / "out")
    assert peaks["spill"] < share * peaks["observe"], peaks
    callback.off.report()
    assert "activations in the last step, peak" in capsys.readouterr().out


def command(folder, *arguments):
    """As `python3 -m` with them, in the folder of the files: (status, output, errors)"""
    def typed():
        sys.argv = [MODULE, *arguments]
        runpy.run_module(MODULE, run_name="__main__")

    process = Forked(folder, typed)
    out, errors = process.communicate()
    return process.returncode, out, errors


def test_the_command_of_the_page(settings, made, folder):
    path = written(folder, settings())
    status, _, errors = command(made, path, "spillway.mode=spill", "max_steps=2")
    assert status == 0, errors
    said = [line for line in errors.splitlines() if "spillway: activations" in line]
    assert len(said) == 1 and said[0].endswith(" 4 steps") and len(outcome(folder, 2)[0]) == 2


@pytest.mark.parametrize("different, word", [
    ({"spillway": None}, "there is no block `spillway:`"),
    ({"spillway": {}}, "the block must name drives"),
    ({"spillway": {"device": ["a"]}}, "did you mean 'devices'?"),
    ({"spillway": {"devices": ["a"], "mode": "slow"}}, "mode must be one of"),
    ({"spillway": {"mode": "spill", "devices": [1]}}, "must be a list of drives"),
    ({"stage": "ppo"}, "stage ppo"), ({"use_ray": True}, "use_ray"),
    ({"use_unsloth_gc": True}, "remove one of the two")])
def test_what_cannot_be_is_refused_before_anything_is_loaded(settings, made, folder, different,
                                                             word):
    path = written(folder, settings(model_name_or_path="nowhere", **different))
    status, _, errors = command(made, path)
    assert status == 1 and word in errors and "Traceback" not in errors


def test_another_trainer_is_refused(settings, monkeypatch):
    monkeypatch.setenv("USE_V1", "1")
    with pytest.raises(ValueError, match="USE_V1"):
        run(settings())


def test_a_store_in_use(settings, made, folder, drives):
    path = written(folder, settings())
    with spillway.Store(drives):
        status, _, errors = command(made, path)
    assert status == 1 and "partitions of the store are open in other processes" in errors
    assert "Traceback" not in errors and not (folder / "out/model.safetensors").exists()


def test_drives_without_a_store(settings, made, folder):
    (folder / "empty").write_bytes(bytes(1 << 20))
    path = written(folder, settings(spillway={"devices": [str(folder / "empty")]}))
    status, _, errors = command(made, path)
    assert status == 1 and "is not a drive of a spillway store" in errors
    assert "Traceback" not in errors


def test_a_training_goes_on_without_the_store(settings, folder, drives):
    """From a checkpoint of one that spilled."""
    given = {"save_strategy": "steps", "save_steps": 2}
    plain(settings(**given))
    expected = outcome(folder)
    run(settings(**given, spillway={"devices": drives, **SPILL}))
    (folder / "out/checkpoint-2").rename(folder / "checkpoint-2")
    shutil.rmtree(folder / "out")
    plain(settings(**given, resume_from_checkpoint=str(folder / "checkpoint-2")))
    assert outcome(folder) == expected


def test_two_at_a_time(settings, folder, drives):
    """The second store is another: the first training has ended with its own."""
    other = folder / "other"
    other.mkdir()
    run(settings(spillway={"devices": drives, **SPILL}))
    shutil.rmtree(folder / "out")
    callback = run(settings(spillway={"devices": make_drives(other), **SPILL}))
    assert callback.stats.steps == 12
