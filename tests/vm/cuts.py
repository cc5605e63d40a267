# SPDX-License-Identifier: MIT
# tests/vm/cuts.py - every state in which a power cut may leave drives with a volatile cache
"""It is told from what QEMU logged of their writes and flushes.

What a drive has flushed is on it. Of what it was told since, any part may be: every subset where
there are few writes, else prefixes, all but one, one alone, and random ones; in any order; and each
write may be torn between 512 byte sectors. The writer waits for all drives to have flushed before
it goes on, and in each step all are flushed equally often (that it is so is checked), so all are
cut between the same two flushes.
"""
import argparse
import itertools
import os
import random
import subprocess

import blocklog
import kernel
import machine

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SECTOR = 512
RANDOM_CUTS = 40  # per segment
ALL_SUBSETS_MAX = 6  # writes of which every subset is tried
DISCARD_MAX = 1 << 20  # longer ones are of data, which no one looks at after a cut


class Step:
    """A command in the machine. @before, @after: the names of what may be there when power is cut
    in it. @is_cut: or only to be done."""

    def __init__(self, name, command, before, after, is_cut=True):
        self.name, self.command = name, command
        self.before, self.after, self.is_cut = before, after, is_cut
        self.entries = None  # of each drive


class Story:
    """What is done on drives, and what may be found on them. The steps are run in a machine, then
    their cuts are looked at on the host."""

    title = ""
    drives = 0
    drive_bytes = 0
    env = {}

    def __init__(self, build):
        self.build = os.path.abspath(build)

    def steps(self):
        raise NotImplementedError

    def done(self, vm, step):
        """In the machine, after a step."""

    def begin(self, folder):
        """On the host, before the first look. @folder: to be empty again after end()."""

    def look(self, paths):
        """Return (what is there, words about it). Must leave of the images what the next look
        needs."""
        raise NotImplementedError

    def legal(self, step, ended):
        """What may be there. @ended: the step's last flush is over."""
        raise NotImplementedError

    def name(self, step, state):
        """In a word, for the counts."""
        raise NotImplementedError

    def end(self):
        pass


def record(story, todo):
    """Run all steps in a machine; note what its drives were told in each."""
    folder = machine.place_for_drives(story.build)
    logs = {number: os.path.join(folder, f"log{number}") for number in range(story.drives)}
    try:
        options = machine.Options(drives=story.drives, drive_bytes=story.drive_bytes, nodes=1,
                                  logs=logs, memory_mib=2048)
        with machine.Machine(kernel.Kernel(story.build), options, story.build) as vm:
            seen = [0] * story.drives
            for step in todo:
                env = {"SPW_BUILD": story.build, **story.env}
                status, text = vm.execute(step.command, env, ROOT)
                if status != 0:
                    raise RuntimeError(f"{step.name}: exit status {status}: {text}")
                told = [blocklog.entries_of(logs[number]) for number in range(story.drives)]
                step.entries = [entries[seen[number]:] for number, entries in enumerate(told)]
                seen = [len(entries) for entries in told]
                story.done(vm, step)
    finally:
        for path in logs.values():
            if os.path.exists(path):
                os.unlink(path)
        os.rmdir(folder)


class Images:
    """The drives as files, with what is durable. A cut is put on them, looked at and taken back."""

    def __init__(self, folder, drives, drive_bytes):
        self.paths = [os.path.join(folder, f"drive{number}") for number in range(drives)]
        self.files = []
        for path in self.paths:
            with open(path, "wb") as file:
                file.truncate(drive_bytes)
            self.files.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        self.undo = []

    def write(self, drive, offset, data):
        os.pwrite(self.files[drive], data, offset)

    def write_for_now(self, drive, offset, data):
        self.undo.append((drive, offset, os.pread(self.files[drive], len(data), offset)))
        self.write(drive, offset, data)

    def take_back(self):
        while self.undo:
            self.write(*self.undo.pop())

    def make_durable(self, drive, entry):
        if entry.data is not None:
            self.write(drive, entry.offset, entry.data)
        elif entry.length and entry.length <= DISCARD_MAX:
            self.write(drive, entry.offset, bytes(entry.length))

    def close(self):
        for file, path in zip(self.files, self.paths):
            os.close(file)
            os.unlink(path)


def segments(step):
    """Between flush n and n + 1 of all drives: [(drive, entry)], in the order of each drive. A
    write with FUA is as good as flushed."""
    parts = [[[]] for _ in step.entries]
    for drive, entries in enumerate(step.entries):
        for entry in entries:
            if entry.is_flush:
                parts[drive].append([])
            elif entry.data is not None or entry.length <= DISCARD_MAX:
                parts[drive][-1].append(entry)
    counts = {len(part) for part in parts}
    if len(counts) > 1:
        flushes = sorted(count - 1 for count in counts)
        raise RuntimeError(f"{step.name}: the drives were flushed {flushes} times, "
                           "not each as often")
    return [[(drive, entry) for drive, part in enumerate(parts) for entry in part[number]]
            for number in range(counts.pop())]


def data_of(entry):
    """What it writes: zeroes, if it is a discard."""
    return entry.data if entry.data is not None else bytes(entry.length)


def pieces_of(entry):
    data = data_of(entry)
    return [(entry.offset + at, data[at:at + SECTOR]) for at in range(0, len(data), SECTOR)]


def whole(writes, chosen):
    return [(writes[number], None) for number in chosen]


def half_of(entry, first):
    """The sectors of its first half, or of its second one."""
    sectors = range(entry.length // SECTOR)
    middle = len(sectors) // 2
    return set(sectors[:middle] if first else sectors[middle:])


def cuts(writes, dice):
    """Lists of ((drive, entry), sectors that arrive, or None for all)."""
    count = len(writes)
    every = range(count)
    if count <= ALL_SUBSETS_MAX:
        for size in range(count + 1):
            for chosen in itertools.combinations(every, size):
                yield whole(writes, chosen)
    else:
        spread = list(every) if count <= 64 else sorted(dice.sample(list(every), 64))
        yield whole(writes, every)
        for number in spread:
            yield whole(writes, range(number))
            yield whole(writes, [other for other in every if other != number])
            yield whole(writes, [number])
    # Torn: the first sectors of one, or the last, while the others are all there, or none is.
    for number in every if count <= 16 else dice.sample(list(every), 16):
        sectors = writes[number][1].length // SECTOR
        places = {1, sectors - 1, sectors // 2, dice.randrange(1, sectors)} if sectors > 1 else ()
        for at in sorted(places):
            for arrived in (set(range(at)), set(range(at, sectors))):
                yield [(writes[number], arrived)]
                others = whole(writes, [other for other in every if other != number])
                yield others + [(writes[number], arrived)]
    # All torn at once: what was in their places on all drives is gone, and what was to be there has
    # not come.
    for first in (True, False) if count else ():
        yield [(write, half_of(write[1], first)) for write in writes]
    for _ in range(RANDOM_CUTS if count else 0):
        cut = []
        for number in dice.sample(list(every), count):
            fate = dice.randrange(3)
            if fate:
                sectors = writes[number][1].length // SECTOR
                some = {i for i in range(sectors) if dice.random() < 0.5} if fate == 2 else None
                cut.append((writes[number], some))
        yield cut


def lay(images, cut):
    for (drive, entry), arrived in cut:
        if arrived is None:
            images.write_for_now(drive, entry.offset, data_of(entry))
            continue
        for number, (offset, data) in enumerate(pieces_of(entry)):
            if number in arrived:
                images.write_for_now(drive, offset, data)


def cut_step(story, images, step, dice):
    """Every cut of one step. Return the number of cuts by what came of them."""
    found = {}
    parts = segments(step)
    for number, writes in enumerate(parts):
        legal = story.legal(step, number == len(parts) - 1)
        for cut in cuts(writes, dice) if step.is_cut else ():
            lay(images, cut)
            state, words = story.look(images.paths)
            images.take_back()
            if state not in legal:
                raise RuntimeError(f"cut between flush {number} and {number + 1} of "
                                   f"{len(parts) - 1}, {len(cut)} of {len(writes)} writes "
                                   f"arrived: {state or words}")
            name = story.name(step, state)
            found[name] = found.get(name, 0) + 1
        for drive, entry in writes:
            images.make_durable(drive, entry)
    state, words = story.look(images.paths)
    if state not in story.legal(step, True):
        raise RuntimeError(f"when it was done there was {state or words}")
    return found


def cut_all(story, todo, seed):
    """Return: how many steps failed."""
    folder = machine.place_for_drives(story.build)
    images = Images(folder, story.drives, story.drive_bytes)
    failed = 0
    try:
        story.begin(folder)
        for number, step in enumerate(todo):
            if step.is_cut:
                print(f"begin - power cut: {step.name}", flush=True)
            try:
                found = cut_step(story, images, step, random.Random(seed + number))
            except RuntimeError as error:
                print(f"  SPW_SEED={seed}: {error}\nnot ok - power cut: {step.name}", flush=True)
                failed += 1
                break  # what follows has no sound state to begin with
            if step.is_cut:
                counts = ", ".join(f"{count} {name}" for name, count in sorted(found.items()))
                print(f"  {sum(found.values())} images: {counts}")
                print(f"ok - power cut: {step.name}", flush=True)
    finally:
        story.end()
        images.close()
        os.rmdir(folder)
    return failed


def main(doc, kind):
    """Of a program that is a story of class @kind. Return: the exit status."""
    parser = argparse.ArgumentParser(description=doc,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="the build folder (build)")
    story = kind(parser.parse_args().build)
    seed = int(os.environ.get("SPW_SEED") or random.SystemRandom().getrandbits(32))
    todo = story.steps()
    try:
        record(story, todo)
    except (kernel.Unavailable, machine.MachineError, RuntimeError, ValueError,
            subprocess.SubprocessError) as error:
        print(f"begin - {story.title}\n  {error}\nnot ok - {story.title}")
        return 1
    return 1 if cut_all(story, todo, seed) else 0
