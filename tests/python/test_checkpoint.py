# SPDX-License-Identifier: MIT
# tests/python/test_checkpoint.py - a committed step leaves as files that others read, and returns
# layer: test all
import collections
import contextlib
import errno
import inspect
import json
import os
import signal
import subprocess
import sys
import zipfile

import pytest
import torch
from torch import nn

import spillway
import spillway.torch
from conftest import BUILD, SEED, make_store, run_python
from spillway import checkpoint
from spillway._export import output as output_module
from spillway._export.committed import fields_of, parameters_of
from spillway.checkpoint import __main__ as program
from spillway._export.safetensors import SafetensorsReader
from spillway._optim.tiles import item_bytes
from spillway.state import State

TYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
MAPS_FILES = "mmap" in inspect.signature(torch.load).parameters
needs_map = pytest.mark.skipif(not MAPS_FILES, reason="this PyTorch cannot map a file")


class Model(nn.Module):
    """Several types, an odd number of elements, one without any, and one that gets no gradient."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(SEED)
        self.first = nn.Linear(37, 301).to(dtype)
        self.odd = nn.Parameter(torch.randn(7).to(dtype))
        self.last = nn.Linear(301, 5, bias=False)
        self.nothing = nn.Parameter(torch.zeros(0, 3))
        self.idle = nn.Parameter(torch.randn(11, 3))

    def forward(self, x):
        middle = self.first(x.to(self.odd.dtype)).float().tanh()
        return (self.last(middle).sum() + self.odd.float().pow(2).sum()) / 100


def opened(drives, **options):
    return spillway.Store(drives, arena_bytes=8 << 20, **options)


def over(store, model, **options):
    return spillway.torch.Optimizer(torch.optim.AdamW, model.named_parameters(), store, lr=0.01,
                                    **{"tile": 1009, "masters": True, **options})


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 37)).backward()
        optimizer.step()


@pytest.fixture(params=[(torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, "compact")],
                ids=["float32", "masters", "compact"])
def trained(formatted, request):
    """(drives with step 3, the model, its optimizer's state_dict)"""
    dtype, masters = request.param
    model = Model(dtype)
    with opened(formatted) as store:
        optimizer = over(store, model, masters=masters)
        train(model, optimizer, 3)
        optimizer.commit(extra={"words": "kept", "list": [1, 2.5, None]})
        state = optimizer.state_dict()
    return formatted, model, state


def exported(drives, path, *arguments, **options):
    with opened(drives, read_only=True) as store:
        return checkpoint.export(store, path, *arguments, **options)


def read(path):
    """A file of safetensors, by its description alone."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + length])
    metadata = header.pop("__metadata__")
    data, at = content[8 + length:], 0
    tensors = {}
    for name, said in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = said["data_offsets"]
        assert begin == at and begin % item_bytes(TYPES[said["dtype"]]) == 0
        at = end
        flat = torch.frombuffer(bytearray(data[begin:end] or b"\0" * 8), dtype=TYPES[said["dtype"]])
        tensors[name] = flat[:0 if begin == end else None].view(said["shape"])
    assert at == len(data) and length % 8 == 0
    return tensors, metadata


def assert_same(one, other):
    assert list(one) == list(other) or set(one) == set(other)
    for name, value in one.items():
        assert value.dtype is other[name].dtype and torch.equal(value, other[name]), name


def masters_of(model, state):
    """By name: what the optimizer steps."""
    return {name: state["state"].get(number, {}).get("master", param.detach())
            for number, (name, param) in enumerate(model.named_parameters())}


@pytest.mark.parametrize("shapes", [((0,), (65,)), ((65,), (0,), (65,)), ((65,), (0,))])
def test_parameters_without_elements(formatted, folder, shapes):
    params = {f"p{number}": nn.Parameter(torch.randn(shape).bfloat16())
              for number, shape in enumerate(shapes)}
    with opened(formatted) as store:
        optimizer = spillway.torch.Optimizer(torch.optim.AdamW, params.items(), store,
                                             masters="compact", lr=0.01)
        for _ in range(2):
            for param in params.values():
                param.grad = torch.randn(param.shape).bfloat16()
            optimizer.step()
        optimizer.commit()
        state = optimizer.state_dict()["state"]
    for what in ("parameters", "masters", "all"):
        exported(formatted, folder / what, "safetensors", what)
        tensors, _ = read(folder / what)
        for number, (name, param) in enumerate(params.items()):
            if param.numel() == 0:
                continue
            wanted = state[number]["master"] if what == "masters" else param.detach()
            assert torch.equal(tensors[name].view(-1), wanted.view(-1)), (what, name)
            if what == "all":
                for field in ("master", "exp_avg", "exp_avg_sq"):
                    assert torch.equal(tensors[f"optimizer.{field}.{name}"].view(-1),
                                       state[number][field].view(-1)), field


# ---- Safetensors ---------------------------------------------------------------------------------


def test_safetensors_have_the_bits_of_the_model(trained, folder):
    drives, model, state = trained
    path = folder / "model.safetensors"
    done = exported(drives, path)
    tensors, metadata = read(path)
    assert_same(tensors, dict(model.state_dict()))
    assert metadata == {"format": "pt", "step": "3"}
    assert done == checkpoint.Exported(3, [str(path)], len(tensors), path.stat().st_size)
    exported(drives, folder / "masters.safetensors", what="masters")
    assert_same(read(folder / "masters.safetensors")[0], masters_of(model, state))
    exported(drives, folder / "all.safetensors", what="all")
    tensors, _ = read(folder / "all.safetensors")
    for number, (name, _) in enumerate(model.named_parameters()):
        for field, value in state["state"].get(number, {}).items():
            if value.dim() > 0:
                assert torch.equal(tensors[f"optimizer.{field}.{name}"], value)


def test_several_files_have_an_index(trained, folder):
    drives, model, _ = trained
    path = folder / "model.safetensors"
    done = exported(drives, path, shard_bytes=5000)
    assert not path.exists() and len(done.files) > 2
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    tensors = {}
    for name in dict.fromkeys(index["weight_map"].values()):
        found, _ = read(folder / name)
        assert all(index["weight_map"][tensor] == name for tensor in found)
        tensors.update(found)
    assert_same(tensors, dict(model.state_dict()))
    assert sorted(done.files) == sorted(map(str, folder.glob("model*")))
    assert_same(dict(SafetensorsReader(str(path))), tensors)
    with pytest.raises(FileExistsError):
        exported(drives, path, shard_bytes=5000)
    exported(drives, path, shard_bytes=5000, overwrite=True)


def test_several_files_replace_one(trained, folder):
    """Which would be read rather than they."""
    drives, model, _ = trained
    path = folder / "model.safetensors"
    path.write_bytes(b"an older model")
    with pytest.raises(FileExistsError):
        exported(drives, path, shard_bytes=5000)
    exported(drives, path, shard_bytes=5000, overwrite=True)
    assert not path.exists()
    assert_same(dict(SafetensorsReader(str(path))), dict(model.state_dict()))


def test_the_package_reads_them(trained, folder):
    of_others = pytest.importorskip("safetensors.torch")
    drives, model, _ = trained
    exported(drives, folder / "model.safetensors")
    assert_same(of_others.load_file(folder / "model.safetensors"), dict(model.state_dict()))
    theirs = {name: value.clone() for name, value in model.state_dict().items()}
    of_others.save_file(theirs, folder / "theirs.safetensors")
    assert_same(dict(SafetensorsReader(str(folder / "theirs.safetensors"))), theirs)


# ---- PyTorch -------------------------------------------------------------------------------------


def test_pytorch_loads_a_state_dict(trained, folder):
    drives, model, _ = trained
    path = folder / "model.pt"
    exported(drives, path, "torch")
    assert_same(torch.load(path, weights_only=True), dict(model.state_dict()))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
    Model(model.odd.dtype).load_state_dict(torch.load(path, weights_only=True))
    if MAPS_FILES:
        mapped = torch.load(path, weights_only=True, mmap=True)
        assert_same(mapped, dict(model.state_dict()))
        assert all(value.data_ptr() % 64 == 0 for value in mapped.values() if value.numel())


@needs_map
def test_all_of_it_goes_to_plain_pytorch(formatted, folder):
    """Which goes on with the same bits."""
    model = Model()
    with opened(formatted) as store:
        optimizer = over(store, model)
        train(model, optimizer, 3)
        optimizer.commit(extra={"words": "kept", "list": [1, 2.5, None]})
        exported_at = torch.get_rng_state()
        train(model, optimizer, 2)
    exported(formatted, folder / "all.pt", "torch", "all")
    # Before 2.1 PyTorch takes no number with that.
    content = torch.load(folder / "all.pt", weights_only=MAPS_FILES)
    assert content["step"] == 3 and content["extra"] == {"words": "kept", "list": [1, 2.5, None]}
    other = Model()
    other.load_state_dict(content["model"])
    plain = torch.optim.AdamW(other.parameters(), lr=0.5, foreach=False)
    plain.load_state_dict(content["optimizer"])
    torch.set_rng_state(exported_at)
    train(other, plain, 2)
    assert_same(dict(other.state_dict()), dict(model.state_dict()))


# ---- Back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["parameters", "masters"])
@pytest.mark.parametrize("format", ["safetensors", pytest.param("torch", marks=needs_map)])
def test_parameters_come_back(trained, folder, format, what):
    drives, model, state = trained
    dtype = model.odd.dtype
    exported(drives, folder / "model", format, what)
    other = Model(dtype)
    paths = make_store(folder, 2, 64 << 20, "other")
    with opened(paths) as store:
        optimizer = over(store, other)
        with torch.no_grad():
            for param in other.parameters():
                param.fill_(7)
        assert checkpoint.import_(optimizer, folder / "model") == []
        assert_same(dict(other.state_dict()), dict(model.state_dict()))
        optimizer.commit(step=1)
    exported(paths, folder / "again", what="masters")
    wanted = masters_of(model, state) if what == "masters" else {
        name: value.float() for name, value in model.state_dict().items()}
    assert_same(read(folder / "again")[0], wanted)


@needs_map
def test_all_of_it_comes_back(trained, folder):
    drives, model, state = trained
    exported(drives, folder / "all.pt", "torch", "all")
    other = Model(model.odd.dtype)
    paths = make_store(folder, 2, 64 << 20, "other")
    with opened(paths) as store:
        optimizer = over(store, other)
        checkpoint.import_(optimizer, folder / "all.pt", "all")
        assert optimizer.steps == 3
        assert_same(dict(other.state_dict()), dict(model.state_dict()))
        for number, entry in optimizer.state_dict()["state"].items():
            assert_same(entry, state["state"][number])


def test_what_does_not_fit_changes_nothing(trained, folder):
    drives, model, _ = trained
    before = {name: value.clone() for name, value in model.state_dict().items()}
    exported(drives, folder / "model.safetensors")
    whole = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:8 + length])
    with opened(drives) as store:
        optimizer = over(store, model)
        optimizer.resume()

        def refused(change, words):
            changed = json.loads(json.dumps(header))
            change(changed)
            text = json.dumps(changed).encode()
            (folder / "changed").write_bytes(len(text).to_bytes(8, "little") + text +
                                             whole[8 + length:])
            with pytest.raises(ValueError, match=words):
                checkpoint.import_(optimizer, folder / "changed")

        def rename(changed):
            changed["other"] = changed.pop("odd")

        refused(rename, "there is no odd")
        refused(lambda changed: changed["idle"].update(shape=[3, 11]), r"idle is \(3, 11\)")
        refused(lambda changed: changed["idle"].update(dtype="I32"), "does not fit into")
        assert_same(dict(model.state_dict()), before)


# ---- What is not trusted -------------------------------------------------------------------------


def safetensors(header, data=b"\0" * 8, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize("content, words", [
    (b"", "not a safetensors file"),
    (b"\0" * 7, "not a safetensors file"),
    (safetensors({}, b"", 1 << 62), "not a safetensors file"),
    (safetensors({}, b"", 200_000_000), "not a safetensors file"),
    (safetensors({"a": tensor()}, b"\0" * 7), "cut off"),
    (safetensors({"a": tensor()}, b"\0" * 9), "cut off"),
    (safetensors(b"{not json"), "header is damaged"),
    (safetensors(b"[" * 90_000), "header is damaged"),
    (safetensors(b"[1, 2]"), "header is damaged"),
    (safetensors({"a": [1]}), "header is damaged"),
    (safetensors({"a": tensor("F33")}), "no type F33"),
    (safetensors({"a": tensor(["F32"])}), "header is damaged"),
    (safetensors({"a": tensor(shape=[3])}), "its shape needs 12"),
    (safetensors({"a": tensor(shape=[1 << 62, 1 << 62])}), "its shape needs"),
    (safetensors({"a": tensor(shape=[-2])}), "an invalid number"),
    (safetensors({"a": tensor(shape=[2.0])}), "an invalid number"),
    (safetensors({"a": tensor(shape=[True, 2])}), "an invalid number"),
    (safetensors({"a": tensor(offsets=[8, 16])}), "does not begin"),
    (safetensors({"a": tensor(offsets=[8, 0])}), "its shape needs"),
    (safetensors({"a": tensor(), "b": tensor()}), "does not begin"),
    (safetensors({"a": tensor(offsets=[0, 8, 8])}), "header is damaged"),
])
def test_a_header_that_lies_is_refused(folder, content, words):
    (folder / "file").write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        SafetensorsReader(str(folder / "file"))
    assert str(folder / "file") in str(caught.value)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "", "..", 7])
def test_an_index_names_files_beside_it_alone(folder, name):
    (folder / "model.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ValueError, match="not a file name"):
        SafetensorsReader(str(folder / "model"))


@needs_map
def test_files_that_are_none(folder, formatted):
    (folder / "zip").write_bytes(b"PK\3\4" + b"\0" * 100)
    torch.save([1, 2], folder / "list")
    torch.save({"a": "no tensor"}, folder / "text")
    with opened(formatted) as store:
        optimizer = over(store, nn.Linear(2, 2), masters=False)
        for name in ("zip", "list", "text"):
            with pytest.raises(ValueError):
                checkpoint.import_(optimizer, folder / name)
        with pytest.raises(FileNotFoundError):
            checkpoint.import_(optimizer, folder / "absent")
        with pytest.raises(ValueError, match="no state of an optimizer"):
            checkpoint.import_(optimizer, folder / "text", "all")


DESCRIBED = {"parameters": [["a", [2], 0, 2]], "dtype": "float32", "tile": 2,
             "fields": [["master", "float32", 0]]}


@pytest.mark.parametrize("change", [
    {"fields": [["master", "float32", 4096]]}, {"fields": [["master", "float33", 0]]},
    {"fields": [["master", "int8", 0]]}, {"fields": 7}, {"dtype": None},
    {"parameters": [["a", [2], 0, 3]]}, {"parameters": [["a", [2], -1, 1]]},
    {"parameters": [["a", [2], 0, 1]]}, {"parameters": [["a", [2], 0, 1 << 40]]},
    {"parameters": [["a", [2], 0, 2], ["a", [2], 0, 2]]}, {"parameters": [[7, [2], 0, 2]]},
])
def test_records_that_lie_are_refused(formatted, folder, change):
    with opened(formatted) as store, \
            contextlib.closing(State(store, record_bytes_max=4096)) as state:
        state.add("state/group0/float32/0", 4096, json.dumps({**DESCRIBED, **change}).encode())
        state.attach()
        state.commit(1, b"")
    with opened(formatted, read_only=True) as store:
        with pytest.raises(spillway.SpillwayError) as caught:
            fields_of([store])
        assert caught.value.errno == errno.EUCLEAN
        with pytest.raises(spillway.SpillwayError, match="not of an optimizer"):
            checkpoint.export(store, folder / "file")


def test_parameters_that_are_records_by_themselves(formatted):
    """As of offload(parameters=True). They are what the model has; masters are more."""
    def described(shape, stride, dtype="bfloat16"):
        return json.dumps({"shape": shape, "stride": stride, "dtype": dtype}).encode()

    def committed(*records):
        with opened(formatted, commit=None) as store, \
                contextlib.closing(State(store, record_bytes_max=4096)) as state:
            master = json.dumps({**DESCRIBED, "dtype": "bfloat16"}).encode()
            for name, shape in (("state/group0/bfloat16/0", master), *records):
                state.add(name, 4096, shape)
            state.attach()
            state.commit(1, b"")
        with opened(formatted, read_only=True) as store:
            fields = fields_of([store])
        return [[(tensor.name, tensor.shape, tensor.stored, tensor.dtype) for tensor in
                 parameters_of(fields, masters)] for masters in (False, True)]

    half, whole = torch.bfloat16, torch.float32
    assert committed(("parameter/group0/a", described([2], [1])),
                     ("parameter/group0/b/c", described([3, 1, 4], [4, 9, 1]))) == [
        [("a", (2,), half, half), ("b/c", (3, 1, 4), half, half)],
        [("a", (2,), whole, whole), ("b/c", (3, 1, 4), half, half)]]
    assert committed(("parameter/group0/a", described([2], [2]))) == [
        [("a", (2,), whole, half)], [("a", (2,), whole, whole)]]
    for shape in (described([3, 4], [1, 3]), described([4096, 2], [2, 1]), b"{}"):
        with pytest.raises(spillway.SpillwayError, match="not of an optimizer"):
            committed(("parameter/group0/b", shape))


# ---- When it fails -------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["safetensors", "torch"])
def test_an_export_that_ends_early_leaves_nothing(trained, folder, format, monkeypatch):
    drives, _, _ = trained
    path = folder / "out" / "model"
    path.parent.mkdir()

    class Stop(BaseException):
        pass

    calls = []

    def stop(_):
        calls.append(None)
        if len(calls) > 6:  # among tensors
            raise Stop

    real_write = os.write
    written = []

    def write_until_full(fd, content):
        written.append(len(content))
        if len(written) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(fd, content[:1])

    with pytest.raises(Stop) as stopped:
        exported(drives, path, format, progress=stop)
    with opened(drives, read_only=True) as store:  # it is closed, though the error is still here
        assert stopped.type is Stop
        monkeypatch.setattr(output_module.os, "write", write_until_full)
        with pytest.raises(OSError) as caught:
            checkpoint.export(store, path, format)
        assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(path)
        monkeypatch.undo()
        assert list(path.parent.iterdir()) == []
        no_room = collections.namedtuple("Room", "f_bavail f_frsize")(1, 512)
        monkeypatch.setattr(output_module.os, "statvfs", lambda _: no_room)
        with pytest.raises(OSError, match="too small by [0-9]+ bytes"):
            checkpoint.export(store, path, format)
        monkeypatch.undo()
        assert list(path.parent.iterdir()) == []
        checkpoint.export(store, path, format)  # the arena is as it was
        with pytest.raises(FileExistsError):
            checkpoint.export(store, path, format)
    assert list(path.parent.iterdir()) == [path]


KILLED = """
import os, signal, sys, spillway, spillway.checkpoint
written = 0
def kill(count):
    global written
    written += count
    if written > 20000:
        os.kill(os.getpid(), signal.SIGKILL)
with spillway.Store(sys.argv[2:], read_only=True, arena_bytes=8 << 20) as store:
    spillway.checkpoint.export(store, sys.argv[1], progress=kill, overwrite=True)
"""


def test_a_killed_export_leaves_the_file_that_was_there(trained, folder):
    drives, model, _ = trained
    path = folder / "model.safetensors"
    exported(drives, path, what="masters")
    before = path.read_bytes()
    done = run_python("-c", KILLED, path, *drives)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert path.read_bytes() == before
    assert (folder / "model.safetensors.partial").stat().st_size < len(before)
    exported(drives, path, overwrite=True)
    assert_same(read(path)[0], dict(model.state_dict()))
    assert not (folder / "model.safetensors.partial").exists()


def test_a_killed_export_of_several_files_leaves_no_mixture(trained, folder):
    """Either all files of the step, or no index."""
    drives, model, _ = trained
    path = folder / "model.safetensors"
    exported(drives, path, shard_bytes=9000)
    kept = []
    real_keep = output_module.Output.keep

    def keep_one(output):
        if kept:
            raise KeyboardInterrupt
        kept.append(output.path)
        real_keep(output)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_module.Output, "keep", keep_one)
        with pytest.raises(KeyboardInterrupt):
            exported(drives, path, shard_bytes=9000, overwrite=True)
    assert len(kept) == 1 and not (folder / "model.safetensors.index.json").exists()
    exported(drives, path, shard_bytes=9000, overwrite=True)
    assert_same(dict(SafetensorsReader(str(path))), dict(model.state_dict()))


def test_a_drive_that_is_missing(folder):
    drives = make_store(folder, 2, 64 << 20)
    for copies, step in ((2, 1), (1, 2)):
        model = Model()
        with opened(drives, commit=None) as store:
            optimizer = over(store, model, copies=copies)
            train(model, optimizer, step)
            optimizer.commit()
        path = folder / f"model{copies}"
        if copies == 2:
            exported(drives[:1], path)
            assert_same(read(path)[0], dict(model.state_dict()))
        else:
            with pytest.raises(spillway.SpillwayError) as caught:
                exported(drives[:1], path)
            assert caught.value.errno == errno.ENXIO and not path.exists()


def test_what_is_in_use_is_not_exported(trained, folder):
    drives, model, _ = trained
    with opened(drives) as store:
        optimizer = over(store, model)
        optimizer.resume()
        train(model, optimizer, 1)
        optimizer.commit()
        train(model, optimizer, 1)
        with pytest.raises(spillway.SpillwayError, match="open the store again") as caught:
            checkpoint.export(store, folder / "file")
        assert caught.value.errno == errno.EALREADY
    with opened(drives, commit=None) as store:
        with pytest.raises(spillway.SpillwayError, match="nothing is committed"):
            checkpoint.export(store, folder / "file")
        for wrong in ({"format": "gguf"}, {"what": "some"}):
            with pytest.raises(ValueError, match="must be"):
                checkpoint.export(store, folder / "file", **wrong)


# ---- Memory --------------------------------------------------------------------------------------

BOUNDED = """
import sys, torch, spillway, spillway.torch, spillway.checkpoint
path, format, tile, *drives = sys.argv[1:]
tile = int(tile)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(24)))
with spillway.Store(drives, arena_bytes=32 << 20, hugetlb=False) as store:
    params = model.bfloat16().named_parameters()
    optimizer = spillway.torch.Optimizer(torch.optim.SGD, params, store, lr=1.0, masters=True,
                                         tile=tile)
    optimizer.commit(step=1)
    optimizer.close()
def memory(which):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(which))
with spillway.Store(drives, arena_bytes=32 << 20, hugetlb=False, read_only=True) as store:
    spillway.checkpoint.export(store, path + ".first", format)  # what is allocated once
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = memory("VmHWM")
    stats = store.stats()
    spillway.checkpoint.export(store, path, format)
    after = store.stats()
    print(memory("VmHWM") - before, after.bytes_read - stats.bytes_read,
          after.bytes_copied - stats.bytes_copied)
"""


@pytest.mark.parametrize("format", ["safetensors", "torch"])
def test_memory_is_that_of_two_tiles(formatted, folder, format):
    """However large the model is. Each byte is read once, and not copied."""
    tile_bytes, model_bytes = 4 << 20, 24 << 22
    done = run_python("-c", BOUNDED, folder / "model", format, tile_bytes // 4, *formatted)
    assert done.returncode == 0, done.stderr
    memory, read_bytes, copied = map(int, done.stdout.split())
    assert memory < 2 * tile_bytes
    assert model_bytes <= read_bytes < 1.1 * model_bytes
    assert copied < 0.01 * model_bytes


# ---- The command ---------------------------------------------------------------------------------


@pytest.fixture
def command(capsys):
    """(exit status, standard output, standard error)"""
    def run(*words):
        try:
            status = program.main([str(word) for word in words])
        except SystemExit as ended:
            status = ended.code
        return (status, *capsys.readouterr())

    return run


def test_the_command(trained, folder, command):
    drives, model, _ = trained
    path = folder / "model.safetensors"
    status, out, err = command("export", *drives, "--to", path)
    assert (status, err) == (0, "")
    assert out.startswith("step 3: ") and "model.safetensors" in out
    assert_same(read(path)[0], dict(model.state_dict()))
    status, out, err = command("export", *drives, "--to", path, "--json")
    assert status == 3 and "--overwrite" in err and json.loads(out)["errno"] == errno.EEXIST
    status, out, _ = command("export", *drives, "--to", folder / "model.pt", "--json")
    assert status == 0 and json.loads(out)["files"] == [str(folder / "model.pt")]
    assert_same(torch.load(folder / "model.pt", weights_only=True), dict(model.state_dict()))
    with opened(drives):
        status, _, err = command("export", *drives, "--to", folder / "other")
        assert status == 3 and "open" in err
    assert command("export", *drives, "--to", folder / "other", "--step", 2)[0] == 1
    assert command("export", folder / "absent", "--to", folder / "other")[0] == 1
    assert not (folder / "other").exists()


def test_ctrl_c_leaves_nothing(trained, folder, command, monkeypatch):
    drives, _, _ = trained
    monkeypatch.setattr(program._Shown, "__call__", interrupt)
    status, _, err = command("export", *drives, "--to", folder / "file")
    assert status == 130 and "nothing was written" in err
    assert not list(folder.glob("file*"))


def interrupt(*_):
    raise KeyboardInterrupt


def test_wrong_words_are_explained(command):
    status, out, _ = command("export", "--help")
    assert status == 0 and "examples:" in out and "exit status" in out
    for words in ((), ("exprot",), ("export", "a.img"), ("export", "--to", "file"),
                  ("export", "a.img", "--to", "file", "--shard", "many"),
                  ("export", "a.img", "--to", "file", "--format", "gguf")):
        status, _, err = command(*words)
        assert status == 2 and "usage:" in err, words


def test_spillway_state_export_is_that_command(trained, folder):
    """And so is the module, run by its name."""
    drives, model, _ = trained
    for number, words in enumerate((
            [BUILD / "spillway", "state", "export", *drives, "--format", "safetensors"],
            [sys.executable, "-m", "spillway.checkpoint", "export", *drives])):
        path = folder / f"model{number}.safetensors"
        done = subprocess.run([*map(str, words), "--to", str(path)], capture_output=True, text=True,
                              env={**os.environ, "SPILLWAY_PYTHON": sys.executable})
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("step 3: ")
        assert_same(read(path)[0], dict(model.state_dict()))


# ---- Several at a time ---------------------------------------------------------------------------


@pytest.mark.parametrize("when, first, second", [
    ("while", {}, {}), ("while", {"shard_bytes": 5000}, {}), ("while", {}, {"shard_bytes": 5000}),
    ("while", {"shard_bytes": 5000}, {"shard_bytes": 9000}),
    ("before", {}, {}), ("before", {}, {"shard_bytes": 5000}),
    ("before", {"shard_bytes": 5000}, {"shard_bytes": 9000})])
def test_two_exports_of_one_name_at_a_time(formatted, folder, monkeypatch, first, second, when):
    """The second one is refused with a message, and what the first has written is whole."""
    with opened(formatted) as store:
        over(store, Model()).commit(1)
    path = folder / "model.safetensors"
    with opened(formatted, read_only=True) as store:
        checkpoint.export(store, path, **first)
    wanted = {file.name: file.read_bytes() for file in folder.glob("model*")}
    for name in wanted:
        (folder / name).unlink()
    with opened(formatted, read_only=True) as store:
        if when == "before":  # it ends after the second has seen that there is nothing yet
            def other(*_):
                monkeypatch.undo()
                checkpoint.export(store, path, **first)

            monkeypatch.setattr(checkpoint, "check_room", other)
            with pytest.raises(FileExistsError, match="is there already"):
                checkpoint.export(store, path, **second)
        else:
            def another(_):
                with pytest.raises(OSError, match="another export writes it: have one rank"):
                    checkpoint.export(store, path, **second)

            checkpoint.export(store, path, progress=another, **first)
    assert {file.name: file.read_bytes() for file in folder.glob("model*")} == wanted
