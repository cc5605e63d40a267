# SPDX-License-Identifier: MIT
# tests/python/test_memory.py - the peaks of resident memory that the examples report
import mmap

from spillway.demo import memory

MIB = 1 << 20


def test_a_peak_belongs_to_the_phase_that_it_lies_in():
    peaks = memory.RssPeaks()
    with mmap.mmap(-1, 64 * MIB) as block:
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1
    peaks.end("high")
    peaks.end("low")
    phases = peaks.phases()
    assert phases["high"] >= phases["low"] + 60 * MIB
    assert peaks.most >= phases["high"]
    peaks.end("high")  # the most of all its times counts
    assert peaks.phases()["high"] == phases["high"]


def test_without_a_reset_no_phase_is_told(monkeypatch):
    def refuse(*args, **options):
        raise OSError

    monkeypatch.setattr(memory, "open", refuse, raising=False)
    peaks = memory.RssPeaks()
    peaks.end("forward")
    assert peaks.phases() == {} and peaks.most > 0
