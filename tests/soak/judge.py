# SPDX-License-Identifier: MIT
# tests/soak/judge.py - whether a series of samples grows
"""A program that works round after round uses, once warm, as much in the end as before. The first
quarter of the samples is the warm-up: pools fill, the arena is touched for the first time, modules
are loaded. Then the second quarter is compared with the last one.

Memory: medians, since a sample falls into a round anywhere. They may differ by MEMORY_BYTES +
MEMORY_PART of what is used: the allocators of Python and PyTorch keep what they were given, and
3 MiB objects or a GPT's tensors leave gaps of that order. In ten minutes the objects' program
stores some 50,000 objects and the training has some 1,000 steps: 200 bytes lost for an object, or
16 KiB for a step, are found, and an hour finds a sixth of that.

Descriptors: maxima, exact but for FILES: a store that is being opened has its own and, for moments,
those of probing. Each store is closed and opened every few seconds, so one lost each time is found
within a minute.
"""
import statistics

MEMORY_BYTES = 8 << 20
MEMORY_PART = 0.03
FILES = 4
SAMPLES_MIN = 40


def quarters(values):
    count = len(values) // 4
    return values[count:2 * count], values[-count:]


def growth_of(memory, files):
    """Return (what grew, in words, or None; the figures)."""
    if len(memory) < SAMPLES_MIN:
        return None, {"judged": False, "why": f"{len(memory)} samples are fewer than {SAMPLES_MIN}"}
    early, late = (int(statistics.median(part)) for part in quarters(memory))
    files_early, files_late = (max(part) for part in quarters(files))
    allowed = int(MEMORY_BYTES + MEMORY_PART * early)
    figures = {"judged": True, "memory_early": early, "memory_late": late,
               "memory_growth_allowed": allowed, "files_early": files_early,
               "files_late": files_late, "files_growth_allowed": FILES}
    if late - early > allowed:
        return (f"memory grew from {early >> 20} to {late >> 20} MiB, "
                f"more than {allowed >> 20} MiB"), figures
    if files_late - files_early > FILES:
        return f"descriptors grew from {files_early} to {files_late}, more than {FILES}", figures
    return None, figures
