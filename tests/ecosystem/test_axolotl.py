# SPDX-License-Identifier: MIT
# tests/ecosystem/test_axolotl.py - axolotl with our plugin: same losses, less memory
import json
import os
import runpy
import shutil
import sys

import pytest

pytest.importorskip("axolotl", reason="it has an environment of its own: make test-programs")
os.environ["AXOLOTL_DO_NOT_TRACK"] = "1"  # nor wait for a network that is not there

import spillway  # noqa: E402
from axolotl.cli.args import TrainerCliArgs  # noqa: E402
from axolotl.cli.config import load_cfg  # noqa: E402
from axolotl.cli.train import do_train  # noqa: E402
from axolotl.integrations.base import PluginManager  # noqa: E402
from places import Forked  # noqa: E402
from small import drives_are_fast, example, logged, make_small, weights, written  # noqa: E402, F401
from spillway.integrations.axolotl import NAME  # noqa: E402

SPILL = {"mode": "spill", "min_bytes": 0}
WITHOUT = {"plugins": None, "spillway": None}
CHECKPOINTS = {"gradient_checkpointing": True}
KINDS = {
    "full": {},
    "checkpoints": CHECKPOINTS,
    "reentrant": {**CHECKPOINTS, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    "lora": {"adapter": "lora", "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.1,
             "lora_target_linear": True, **{f"lora_{kernel}_kernel": False for kernel in (
                 "mlp", "qkv", "o")}},  # which need a GPU
    "packed": {"sample_packing": True, "pad_to_sequence_len": True},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    make_small(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def settings(folder, drives):
    """Of the example; a function of what is different."""
    return lambda **more: example("axolotl.yaml", folder, drives, **{
        "sequence_len": 128, "micro_batch_size": 2, "save_strategy": "steps", "save_steps": 2,
        "dataset_prepared_path": str(folder / "prepared"), "seed": 5, **more})


def typed(module, *arguments):
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")


def in_child(made, function):
    """axolotl changes much of the process that it trains in: (status, output, errors)"""
    process = Forked(made, function)
    out, errors = process.communicate()
    return process.returncode, out, errors


def trained(made, folder, config):
    """By what its command calls: (each loss, what was trained, our counters)"""
    path = written(folder, config)

    def train():
        do_train(load_cfg(path), TrainerCliArgs())
        plugin = PluginManager.get_instance().plugins.get(NAME)
        stats = plugin and plugin.callback.stats
        print("\n" + json.dumps(stats and {name: getattr(stats, name) for name in (
            "steps", "bytes_spilled", "bytes_forwarded", "step_peak_bytes")}))

    status, out, errors = in_child(made, train)
    assert status == 0, errors
    losses = logged(folder / "out/checkpoint-6/trainer_state.json")
    assert len(losses) == 6
    result = losses, weights(folder / "out"), json.loads(out.splitlines()[-1])
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_losses(settings, made, folder, drives, kind):
    *expected, stats = trained(made, folder, settings(**KINDS[kind], **WITHOUT))
    assert stats is None
    shutil.rmtree(folder / "out")
    *found, stats = trained(made, folder, settings(**KINDS[kind], spillway={
        "devices": drives, **SPILL}))
    assert found == expected and stats["steps"] == 12
    assert stats["bytes_spilled"] + stats["bytes_forwarded"] > 0


@pytest.mark.usefixtures("drives_are_fast")
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_less_memory(settings, made, folder, drives, kind):
    """Than what plain training holds, which mode "observe" counts."""
    peaks = {}
    for mode in ("observe", "spill"):
        *_, stats = trained(made, folder, settings(**KINDS[kind], spillway={
            "devices": drives, **SPILL, "mode": mode, "prefetch_bytes": "64KiB"}))
        peaks[mode] = stats["step_peak_bytes"]
        shutil.rmtree(folder / "out")
    assert peaks["spill"] < 0.8 * peaks["observe"], peaks


def test_the_command_of_the_page(settings, made, folder):
    path = written(folder, settings(max_steps=2, save_strategy="no", save_steps=None))
    status, out, errors = in_child(made, lambda: typed("spillway.integrations.axolotl", path))
    assert status == 0 and "trains with spillway" in out, errors
    status, _, errors = in_child(made, lambda: typed("axolotl.cli.train", path))
    assert status == 0, errors
    said = [line for line in errors.splitlines() if "spillway: activations" in line]
    assert len(said) == 1 and said[0].endswith(" 4 steps")
    assert (folder / "out/model.safetensors").exists()


REFUSED = [
    ({"spillway": None}, "there is no block `spillway:`"),
    ({"spillway": {"device": ["a"]}}, "did you mean 'devices'?"),
    ({"spillway": {"devices": ["a"], "mode": "slow"}}, "mode must be one of"),
    ({"spillway": {"mode": "spill"}, "activation_offloading": None}, "a store is needed"),
    ({"activation_offloading": True, **CHECKPOINTS}, "remove one of the two"),
    ({"activation_offloading": "legacy", **CHECKPOINTS}, "remove one of the two"),
    ({"gradient_checkpointing": "offload"}, "remove one of the two"),
    ({"layer_offloading": True}, "remove one of the two"),
]


@pytest.mark.parametrize("different, word", REFUSED)
def test_what_cannot_be_is_refused_before_anything_is_loaded(settings, made, folder, different,
                                                             word):
    if different.get("spillway") == {"mode": "spill"}:
        different = {"spillway": {"mode": "fastest"}}
    path = written(folder, settings(base_model="model", **different))
    status, _, errors = in_child(made, lambda: load_cfg(path))
    assert status == 1 and word in errors
    status, _, errors = in_child(made, lambda: typed("spillway.integrations.axolotl", path))
    assert status == 1 and word in errors and "Traceback" not in errors


def test_a_plugin_that_is_not_loaded_is_told(settings, made, folder, drives):
    """axolotl 0.19 trains without what raises an ImportError; its own check must not."""
    path = written(folder, settings())

    def without_the_library():
        for name in [name for name in sys.modules if name.split(".")[0] == "spillway"]:
            del sys.modules[name]
        os.environ["SPILLWAY_LIBRARY"] = "/nowhere/libspillway.so"
        typed("spillway.integrations.axolotl", path)

    status, out, errors = in_child(made, without_the_library)
    assert status == 1 and "trains with" not in out
    assert "SPILLWAY_LIBRARY=/nowhere/libspillway.so cannot be loaded" in errors
    without = written(folder, settings(plugins=None), "without.yaml")
    status, _, errors = in_child(made, lambda: typed("spillway.integrations.axolotl", without))
    assert status == 1 and "among its plugins" in errors


def test_a_store_in_use(settings, made, folder, drives):
    path = written(folder, settings())
    with spillway.Store(drives):
        status, _, errors = in_child(made, lambda: typed("spillway.integrations.axolotl", path))
        assert status == 1 and "open in other processes" in errors
        status, _, errors = in_child(made, lambda: typed("axolotl.cli.train", path))
    assert status == 1 and "open in other processes" in errors
    assert not (folder / "out/checkpoint-2").exists()


def test_a_training_goes_on_without_the_store(settings, made, folder, drives):
    """From a checkpoint of one that spilled."""
    *expected, _ = trained(made, folder, settings(**WITHOUT))
    shutil.rmtree(folder / "out")
    trained(made, folder, settings(spillway={"devices": drives, **SPILL}))
    (folder / "out/checkpoint-2").rename(folder / "checkpoint-2")
    shutil.rmtree(folder / "out")
    *found, _ = trained(made, folder, settings(
        **WITHOUT, resume_from_checkpoint=str(folder / "checkpoint-2")))
    assert found == expected


def test_another_configuration_of_the_process_trains_without(settings, made, folder, drives):
    """axolotl calls the plugins of earlier configurations, too."""
    first, second = (written(folder, settings(**more), name) for name, more in (
        ("first.yaml", {}), ("second.yaml", WITHOUT)))

    def one_after_the_other():
        load_cfg(first)
        plugin = PluginManager.get_instance().plugins[NAME]
        assert len(plugin.add_callbacks_pre_trainer(load_cfg(first), None)) == 1
        assert plugin.add_callbacks_pre_trainer(load_cfg(second), None) == []

    status, _, errors = in_child(made, one_after_the_other)
    assert status == 0, errors
