# SPDX-License-Identifier: MIT
# tests/vm/blocklog.py - what a drive was told, from QEMU's blklogwrites in dm-log-writes' format
import struct

MAGIC = 0x6A736677736872
SUPER = struct.Struct("<QQQI")  # magic, version, entries, sector size
ENTRY = struct.Struct("<QQQQ")  # sector, sectors, flags, length of the data: of marks only
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8


class Entry:
    """A write, a discard or a flush. Offsets are bytes."""

    def __init__(self, offset, length, flags, data):
        self.offset = offset
        self.length = length
        self.flags = flags
        self.data = data  # of a write

    @property
    def is_flush(self):
        return bool(self.flags & FLUSH) and self.length == 0

    @property
    def is_discard(self):
        return bool(self.flags & DISCARD)


def entries_of(path):
    """All entries, in order. The count in the first sector is of the last flush, so what follows is
    read as well, until nothing does."""
    with open(path, "rb") as file:
        log = file.read()
    if len(log) < 512:
        return []
    magic, version, count, sector = SUPER.unpack_from(log)
    if magic != MAGIC or version != 1 or sector not in (512, 4096):
        raise ValueError(f"{path}: no log of writes")
    entries, at = [], sector
    while at + sector <= len(log):
        first, sectors, flags, marked = ENTRY.unpack_from(log, at)
        if not sectors and not flags:
            break
        at += sector
        if flags & MARK:
            at += -(-marked // sector) * sector
            continue
        length = sectors * sector
        data = None
        if length and not flags & DISCARD:
            data = log[at:at + length]
            if len(data) < length:
                raise ValueError(f"{path}: entry {len(entries)} goes beyond the end")
            at += length
        entries.append(Entry(first * sector, length, flags, data))
    if len(entries) < count:
        raise ValueError(f"{path}: {len(entries)} entries, {count} are announced")
    return entries
