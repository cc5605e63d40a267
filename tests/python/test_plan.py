# SPDX-License-Identifier: MIT
# tests/python/test_plan.py - does a model train on a machine: what is said, and that it adds up
# layer: test all
import dataclasses
import json

import pytest
import torch
from torch import nn

from spillway.plan.__main__ import main
from spillway.plan import KINDS, Machine, Model, optimizer_of, plan, transformer

GIB = 1 << 30
MACHINE = Machine(64 * GIB, 4 << 40, 10e9, 5e9, 1e14, 1e15)
GPU = dataclasses.replace(MACHINE, device_bytes=24 * GIB, bus_rate=25e9)
MODEL = Model("model", 1000 ** 3, 2, 100 << 20, 50 << 20, 40 * GIB, 2 * GIB, 2, 1e15)
needs_meta = pytest.mark.skipif(not hasattr(torch, "get_default_device"),
                                reason="this PyTorch cannot build modules without memory: 2.3 can")


def rows_of(answer):
    return {row.kind: row for row in answer.rows}


def test_as_little_as_possible_is_on_drives():
    optimizer = optimizer_of("adamw", 2)
    assert optimizer.bytes_per_parameter == 12
    before = None
    for memory, expected in ((100 * GIB, 0), (50 * GIB, 1), (10 * GIB, 2), (9 * GIB, 2),
                             (7 * GIB, 3), (6 * GIB, 4)):
        answer = plan(MODEL, optimizer, dataclasses.replace(MACHINE, memory_bytes=memory))
        on_drives = [row.kind for row in answer.rows if row.on_drives]
        assert set(on_drives) == set(KINDS[:expected]) and answer.fits, memory
        assert answer.memory_bytes <= memory
        assert before is None or answer.drive_seconds >= before
        before = answer.drive_seconds


def test_what_is_missing_is_said_in_bytes():
    optimizer = optimizer_of("adamw", 2)
    answer = plan(MODEL, optimizer, dataclasses.replace(MACHINE, memory_bytes=GIB))
    assert not answer.fits
    assert answer.missing_memory_bytes == answer.memory_bytes - GIB > 0
    small = dataclasses.replace(MACHINE, memory_bytes=10 * GIB, drive_bytes=GIB)
    answer = plan(MODEL, optimizer, small)
    assert answer.missing_memory_bytes == 0
    assert answer.missing_drive_bytes == answer.drive_bytes - GIB > 0


def test_of_the_largest_parameter_two_are_in_memory():
    """An embedding is in no layer, and may be larger than three of them."""
    model = dataclasses.replace(MODEL, largest_parameter_bytes=GIB // 2)
    answer = plan(model, optimizer_of("adamw", 2), MACHINE, KINDS)
    assert rows_of(answer)["parameters"].memory_bytes == GIB
    small = dataclasses.replace(MACHINE, memory_bytes=answer.memory_bytes - 7)
    assert plan(model, optimizer_of("adamw", 2), small, KINDS).missing_memory_bytes == 7
    gpt = transformer(2, 64, 32, 1, 1, 50257, 4)
    assert gpt.largest_parameter_bytes == 4 * 64 * 50257 > 3 * gpt.largest_scope_bytes


def test_bytes_of_a_step_are_those_of_the_manual():
    answer = rows_of(plan(MODEL, optimizer_of("adamw", 2), MACHINE, KINDS))
    state = 12 * 1000 ** 3
    assert (answer["optimizer"].read_bytes, answer["optimizer"].written_bytes) == (state, state)
    assert answer["optimizer"].drive_bytes == 2 * state
    assert answer["gradients"].written_bytes == 2 * 2 * 1000 ** 3
    assert answer["parameters"].read_bytes == (2 * 2 + 1) * 2 * 1000 ** 3
    assert answer["activations"].read_bytes == 2 * 40 * GIB
    with pytest.raises(ValueError, match="'weights' is none of"):
        plan(MODEL, optimizer_of("adamw", 2), MACHINE, ("weights",))


def test_parameters_that_stay_in_host_memory():
    """Each pass reads what is away, and each end of it leaves memory once."""
    adamw, size = optimizer_of("adamw", 2), 2 * 1000 ** 3
    one = dataclasses.replace(MODEL, micro_batches=1)
    for stays, written in ((200 << 20, size), (size // 4, size), (3 * size // 4, size // 2),
                           (size, 0), (9 * GIB, 0)):
        found = rows_of(plan(MODEL, adamw, MACHINE, KINDS, stays))["parameters"]
        away = max(0, size - stays)
        assert found.memory_bytes == min(stays, size) and found.on_drives
        assert (found.read_bytes, found.written_bytes) == (5 * away, written), stays
        assert found.drive_bytes == 2 * size
        once = rows_of(plan(one, adamw, MACHINE, KINDS, stays))["parameters"]
        assert once.read_bytes == 2 * away
    fewer, all_of_it = (plan(MODEL, adamw, MACHINE, KINDS, stays) for stays in (None, 2 * GIB))
    seconds = size * (5 / MACHINE.read_rate + 1 / MACHINE.write_rate)
    assert fewer.drive_seconds - all_of_it.drive_seconds == pytest.approx(seconds)
    assert all_of_it.memory_bytes - fewer.memory_bytes == size - (300 << 20)
    # No more than offload() takes of what is free, and never less than two.
    half = dataclasses.replace(MACHINE, memory_bytes=GIB)
    found = rows_of(plan(MODEL, adamw, half, KINDS, 2 * GIB))["parameters"]
    assert found.memory_bytes == GIB // 8 * 7
    tiny = dataclasses.replace(MACHINE, memory_bytes=1 << 20)
    assert rows_of(plan(MODEL, adamw, tiny, KINDS, GIB))["parameters"].memory_bytes == 100 << 20
    # What is not on drives needs none of it.
    assert plan(MODEL, adamw, MACHINE, ("optimizer",), 1) == plan(MODEL, adamw, MACHINE,
                                                                  ("optimizer",))
    for machine in MACHINE, GPU:
        with pytest.raises(ValueError, match="host_bytes is 104857599, too few by 1: two of the"):
            plan(MODEL, adamw, machine, KINDS, (100 << 20) - 1)


def test_what_bounds_a_step_and_how_long_drives_last():
    optimizer = optimizer_of("adamw", 2)
    answer = plan(MODEL, optimizer, MACHINE, ("optimizer",))
    assert answer.bound == "compute" and answer.step_seconds == answer.compute_seconds == 10
    assert answer.drive_seconds == pytest.approx(12 / 10 + 12 / 5)
    assert answer.years == pytest.approx(1e15 / (12e9 / 10 * 86400) / 365.25)
    slow = dataclasses.replace(MACHINE, write_rate=1e9, endurance_bytes=0)
    answer = plan(MODEL, optimizer, slow, ("optimizer",))
    assert answer.bound == "drives" and answer.step_seconds == pytest.approx(13.2)
    assert answer.years is None


class Layer(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.layers = nn.ModuleList(Layer(64) for _ in range(3))
        self.head = nn.Linear(64, 1000)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def huge():
    return nn.Sequential(*(nn.Linear(1 << 16, 1 << 16) for _ in range(64)))


def no_module():
    return 7


@needs_meta
def test_a_module_is_measured_without_memory():
    """What it saves is what it saves with memory."""
    from spillway.plan._module import model_of

    found = model_of(f"{__name__}:Small", ["4,32:int64"], 3)
    real = Small()
    seen = {param.data_ptr() for param in real.parameters()}
    kept = []

    def pack(tensor):
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        real(torch.zeros(4, 32, dtype=torch.int64))
    assert found.activation_bytes == sum(tensor.untyped_storage().nbytes() for tensor in kept)
    assert found.parameters == sum(param.numel() for param in real.parameters())
    layer = sum(4 * param.numel() for param in real.layers[0].parameters())
    assert found.largest_scope_bytes == layer
    assert found.largest_parameter_bytes == 4 * 1000 * 64
    assert 0 < found.largest_activation_bytes < found.activation_bytes / 2
    products = 3 * (2 * 64 * 256) + 64 * 1000
    assert found.flops == 3 * 3 * 2 * 4 * 32 * products


@needs_meta
def test_a_module_larger_than_any_memory(capsys):
    words = [f"{__name__}:huge", "--input", "16,65536:float32", "--tflops", "100", "--memory",
             "96GiB", "--drive-size", "1PiB", "--json"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["model"]["parameters"] == 64 * ((1 << 32) + (1 << 16))
    assert said["fits"] and said["memory_bytes"] <= 96 * GIB


def test_a_transformer():
    gpt3 = transformer(96, 12288, 2048, 1, 1, 50257, 2)
    assert gpt3.parameters == pytest.approx(174.6e9, rel=0.005)
    assert gpt3.activation_bytes == 96 * 34 * 2048 * 12288 + 4 * 2048 * 50257


@pytest.mark.parametrize("words, wanted", [
    (["--model", "layers=2,hidden=64", "--tflops", "1", "--memory", "1GiB"], "It trains"),
    (["--model", "layers=40,hidden=5120", "--tflops", "1", "--memory", "16GiB"],
     "no drives are named: --drives, or --drive-size"),
    (["--model", "layers=40,hidden=5120", "--memory", "16GiB", "--drive-size", "1GiB"],
     "of room on drives are missing"),
    (["--model", "layers=40,hidden=5120", "--memory", "1GiB", "--drive-size", "9TB"],
     "of memory are missing."),
    (["--model", "layers=40,hidden=5120", "--tflops", "1", "--memory", "16GiB",
      "--drive-size", "4TB", "--endurance", "600TB"], "drives last 6 days"),
    (["--model", "layers=40,hidden=5120", "--tflops", "1", "--memory", "32GiB", "--drive-size",
      "4TB", "--on-drives", "optimizer,gradients,parameters", "--host-bytes", "16GiB"],
     "parameters      23.5 GiB  on drives    16.0 GiB    46.9 GiB    14.9 GiB    14.9 GiB"),
])
def test_the_page(words, wanted, capsys):
    status = main(words)
    out = capsys.readouterr().out
    assert out.startswith("It ")
    assert wanted in out and ("It trains" in out) == (status == 0)
    assert len(out.splitlines()) <= 24 and max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("words, wanted", [
    ([], "one of them"), (["--tflops", "1"], "one of them"),
    (["--tflops", "-1"], "not a number above 0"),
    (["--tflops", "1", "--model", "layers=2"], "hidden= is missing"),
    (["--tflops", "1", "--model", "depth=2"], "none of"),
    (["--tflops", "1", "--model", "layers=0,hidden=1"], "above 0"),
    (["--tflops", "1", "--model", "layers=1,hidden=1", "--memory", "lots"], "a size"),
    (["--tflops", "1", "--model", "layers=1,hidden=1", "--on-drives", "all"], "none of"),
    *((["--model", "layers=1,hidden=1", rate, "0"], "above 0")
      for rate in ("--read", "--write", "--bus")),
    (["--tflops", "1", "--model", "layers=1,hidden=1", "--optimizer", "muon"], "adamw"),
    (["--tflops", "1", "--model", "layers=1,hidden=1", "--micro-batches", "0"], "least 1"),
    (["--tflops", "1", "--model", "layers=1,hidden=1,element-bytes=0"], "element-bytes must be"),
    (["--tflops", "1", "--model", "layers=1,hidden=1,sequence=0"], "sequence must be above 0"),
    (["--device", "24GB", "--micro-batches", "0"], "least 1"),
    (["--model", "layers=1,hidden=64", "--host-bytes", "lots"], "a size"),
    (["--model", "layers=1,hidden=64", "--host-bytes", "5", "--on-drives", "parameters"],
     "host_bytes is 5, too few by"),
    (["--device", "24GB", "--host-bytes", "5", "--on-drives", "parameters,optimizer"],
     "host_bytes is 5, too few by"),
])
def test_wrong_words_are_explained(words, wanted, capsys):
    try:
        status = main(words)
    except SystemExit as ended:
        status = ended.code
    assert status == 2 and wanted in capsys.readouterr().err



def placed(answer):
    return {row.kind: row.place for row in answer.rows}


def test_places_on_a_machine_with_a_device():
    """What a step waits for least; less of the device's memory never makes it shorter."""
    adamw, before = optimizer_of("adamw", 2), 0.0
    for device, wanted in (
            (64, dict.fromkeys(KINDS, "device")),
            (24, {**dict.fromkeys(KINDS, "device"), "activations": "host"}),
            (10, {"parameters": "device", "gradients": "device", "optimizer": "drives",
                  "activations": "host"}),
            (5, {**dict.fromkeys(KINDS, "drives"), "activations": "host"})):
        answer = plan(MODEL, adamw, dataclasses.replace(GPU, device_bytes=device * GIB))
        assert placed(answer) == wanted, device
        assert answer.fits and answer.device_bytes <= device * GIB
        assert answer.step_seconds >= before
        before = answer.step_seconds
    small = dataclasses.replace(GPU, device_bytes=5 * GIB, memory_bytes=10 * GIB)
    assert placed(plan(MODEL, adamw, small)) == dict.fromkeys(KINDS, "drives")
    # Those of one pass are stepped as they come.
    once = plan(dataclasses.replace(MODEL, micro_batches=1), adamw, small)
    assert placed(once) == dict.fromkeys(KINDS, "drives") | {"gradients": "host"}
    gradients = rows_of(once)["gradients"]
    assert gradients.memory_bytes < gradients.bytes and gradients.written_bytes == 0
    assert gradients.bus_out_bytes == gradients.bytes


def test_activations_have_the_rest_of_what_is_given():
    adamw, size = optimizer_of("adamw", 2), 2 * 1000 ** 3
    small = dataclasses.replace(GPU, device_bytes=5 * GIB)
    enough = size + MODEL.activation_bytes
    answer = plan(MODEL, adamw, small, None, enough)
    assert placed(answer) == {**dict.fromkeys(KINDS, "drives"), "activations": "host"}
    found = rows_of(answer)
    assert (found["parameters"].read_bytes, found["parameters"].memory_bytes) == (0, size)
    assert found["parameters"].bus_in_bytes == 4 * size
    assert answer.drive_seconds < plan(MODEL, adamw, small).drive_seconds
    fewer = plan(MODEL, adamw, small, None, enough - 1)
    assert placed(fewer)["activations"] == "drives"
    assert rows_of(fewer)["parameters"].read_bytes == 0
    # Parameters that are on the device leave all of it.
    large = dataclasses.replace(GPU, device_bytes=10 * GIB)
    for given, place in ((MODEL.activation_bytes, "host"), (MODEL.activation_bytes - 1, "drives")):
        found = placed(plan(MODEL, adamw, large, None, given))
        assert (found["parameters"], found["activations"]) == ("device", place)
    # Too few for parameters on drives: those are on the device, which is too small.
    assert plan(MODEL, adamw, small, None, 1 << 20).missing_device_bytes > 0


def test_what_passes_the_bus():
    """Parameters twice a pass, gradients and activations once, new parameters of the host once."""
    adamw, size = optimizer_of("adamw", 2), 2 * 1000 ** 3

    def of(*kinds):
        return rows_of(plan(MODEL, adamw, GPU, kinds))

    found = of("optimizer")
    assert (found["parameters"].bus_in_bytes, found["gradients"].bus_out_bytes) == (size, size)
    found = of("optimizer", "gradients")
    assert found["gradients"].bus_out_bytes == 2 * size
    found = of("optimizer", "parameters")
    assert found["parameters"].bus_in_bytes == 4 * size
    assert found["parameters"].read_bytes == 5 * size
    one = dataclasses.replace(MODEL, micro_batches=1)
    once = plan(one, adamw, GPU, ("optimizer", "parameters"))
    assert rows_of(once)["parameters"].read_bytes == 2 * size
    assert found["parameters"].written_bytes == size
    assert found["parameters"].device_bytes == 200 << 20
    found = of("optimizer", "activations")["activations"]
    assert found.bus_in_bytes == found.bus_out_bytes == found.read_bytes == 2 * 40 * GIB
    with pytest.raises(ValueError, match="the optimizer is on drives, too"):
        of("gradients")


def test_what_bounds_a_step_on_a_device():
    adamw = optimizer_of("adamw", 2)
    slow_bus = dataclasses.replace(GPU, bus_rate=1e8)
    answer = plan(MODEL, adamw, slow_bus, ("optimizer",))
    assert answer.bound == "bus" and answer.step_seconds == answer.bus_seconds > 100
    slow_host = dataclasses.replace(GPU, host_rate=1e8)
    answer = plan(MODEL, adamw, slow_host, ("optimizer",))
    assert answer.bound == "host" and answer.step_seconds == pytest.approx(120)
    none = dataclasses.replace(GPU, device_bytes=GIB, memory_bytes=GIB)
    answer = plan(MODEL, adamw, none)
    assert answer.missing_device_bytes > 0 and not answer.fits


def test_sizes_of_models_for_a_device(capsys):
    words = ["--device", "24GB", "--memory", "64GiB", "--drive-size", "2TB", "--tflops", "80"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2,048 tokens in a step" and len(lines) == 3 + 7
    assert lines[3].startswith("  1.3B ") and lines[3].endswith("nothing")
    assert "of room on drives are missing" in lines[-1]
    assert max(map(len, lines)) <= 100
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["fits"] for one in said] == [True] * 6 + [False]
    assert main([*words, "--model", "layers=32,hidden=4096"]) == 0
    out = capsys.readouterr().out
    assert "tokens per second" in out and "TB a day" in out and "on GPU" in out
    assert main(["--device", "1GB", "--memory", "1GiB", "--model", "layers=32,hidden=4096"]) == 1
    assert "of the GPU's memory are missing" in capsys.readouterr().out


@needs_meta
@pytest.mark.parametrize("name, inputs, wanted", [
    ("absent:build", [], "no such factory"), (f"{__name__}:absent", [], "no such factory"),
    (f"{__name__}", [], "no such factory"), (f"{__name__}:no_module", [], "no torch.nn.Module"),
    (f"{__name__}:GIB", [], "cannot be called"), (f"{__name__}:Small", ["x"], "an input is like"),
    (f"{__name__}:Small", ["2,3:text"], "an input is like"),
    (f"{__name__}:Small", [], "does not run on the meta device"),
])
def test_modules_that_are_none(name, inputs, wanted, capsys):
    words = [word for shape in inputs for word in ("--input", shape)]
    assert main([name, *words, "--tflops", "1"]) == 2
    assert wanted in capsys.readouterr().err
