# SPDX-License-Identifier: MIT
# tests/peers/ds_io.py - DeepSpeed's own test program of asynchronous I/O, deepspeed.nvme
"""It writes or reads files and lets the handle validate them; it says so if a process fails. What
its options do not show, the bytes, is compared by the handle of onspillway.py and here."""
import os

import pytest
from deepspeed.nvme import test_ds_aio
from deepspeed.ops.op_builder import AsyncIOBuilder

BYTES = 3 << 20

OPTIONS = [[], ["--single_submit"], ["--sequential_requests"], ["--io_parallel=4"],
           ["--different_file_each_iteration"], ["--use_accelerator_pin_memory"],
           ["--block_size=4K", "--queue_depth=4"], ["--multi_process=2"]]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "as it is")
@pytest.mark.parametrize("way", ["write", "read"])
def test_ds_io(tmp_path, monkeypatch, capfd, way, options):
    more = ["--read"] if way == "read" else []
    monkeypatch.setattr("sys.argv", ["ds_io", f"--folder={tmp_path}", f"--io_size={BYTES}",
                                     "--loops=2", "--validate", *more, *options])
    test_ds_aio.ds_io_main()
    assert f"E2E {way.capitalize()} Speed" in capfd.readouterr().out
    files = list(tmp_path.iterdir())
    assert files and all(file.stat().st_size == BYTES for file in files)


def test_what_is_written_is_read(tmp_path):
    """By two handles, of the bytes that a file shows."""
    import torch

    path = os.path.join(tmp_path, "file")
    data = torch.randint(256, (BYTES,), dtype=torch.uint8)
    load = AsyncIOBuilder().load
    assert load().aio_handle().sync_pwrite(data, path) == 1
    with open(path, "rb") as file:
        assert file.read() == data.numpy().tobytes()
    back = torch.empty_like(data)
    assert load().aio_handle().sync_pread(back, path) == 1
    assert torch.equal(data, back)
