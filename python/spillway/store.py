# SPDX-License-Identifier: MIT
# spillway/store.py - objects striped over drives, and making, examining and removing stores
"""The block store: put, get and free objects of any length on a set of drives.

>>> spillway.format_store(["/dev/nvme1n1", "/dev/nvme2n1"])
>>> with spillway.Store(["/dev/nvme1n1", "/dev/nvme2n1"]) as store:
...     thing = store.put(b"any buffer")
...     bytes(store.get(thing, 10))
...     store.free(thing)
b'any buffer'

Nothing survives ``close()``: a store is memory on drives, not a file system.
"""
from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import os
import weakref
from ctypes import byref, c_char_p, c_uint64, c_void_p
from typing import Any, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from . import _library
from ._library import SpillwayError, blocking, check, fast, to_dataclass

Path = Union[str, "os.PathLike[str]"]

_BACKENDS = {"auto": 0, "io_uring": 1, "libaio": 2, "nvme": 3, "vfio": 4}
_STRIPES = {"pull": 0, "static": 1}
_ARENA_BYTES = 64 << 20
_GPU = "/dev/nvidiactl"
_KINDS = ("block device", "file", "NVMe character device", "NVMe namespace behind vfio")
_URGENT_READ = 0


@dataclasses.dataclass(frozen=True)
class StoreInfo:
    """What a store's superblocks say. Lengths are bytes."""

    store_uuid: str
    format_version: int
    drives: int
    partitions: int
    block_bytes: int
    chunk_bytes: int
    capacity_bytes: int
    partition_capacity_bytes: int
    partitions_in_use: int


@dataclasses.dataclass(frozen=True)
class ProbeInfo:
    """One candidate drive: what it is, what it holds, and whether a store could be made on it. Lengths are bytes."""

    path: str
    kind: str
    size_bytes: int
    logical_block_bytes: int
    physical_block_bytes: int
    numa_node: int
    model: str
    holds: str
    usable: bool
    has_store: bool
    reason: str


@dataclasses.dataclass(frozen=True)
class StoreStats:
    """Counters of an open store since it was opened; ``requests``, ``objects`` and ``used_bytes`` are of now."""

    drives: int
    drives_retired: int
    partition: int
    requests: int
    objects: int
    capacity_bytes: int
    used_bytes: int
    used_bytes_max: int
    puts: int
    gets: int
    frees: int
    bytes_put: int
    bytes_got: int
    bytes_written: int
    bytes_read: int
    bytes_from_memory: int
    bytes_copied: int
    copies_unaligned_address: int
    copies_unaligned_length: int
    copies_partial_chunk: int
    waits_for_copy_memory: int
    chunks_split: int
    chunks_moved: int
    cancelled: int
    checksum_errors: int
    read_errors: int
    write_errors: int
    bypasses: int
    timeouts: int
    bytes_trimmed: int


@dataclasses.dataclass(frozen=True)
class DriveStats:
    """Counters of one drive of an open store."""

    path: str
    retired: bool
    capacity_bytes: int
    used_bytes: int
    bytes_written: int
    bytes_read: int
    writes: int
    reads: int
    write_errors: int
    read_errors: int
    checksum_errors: int
    in_flight: int
    in_flight_max: int
    depth: int
    write_bytes_per_second: int
    read_bytes_per_second: int
    timeouts: int
    read_latency_ns_p50: int
    read_latency_ns_p99: int
    write_latency_ns_p50: int
    write_latency_ns_p99: int
    writes_no_space: int
    full: bool


_StoreStatsStruct = _library.counters(
    "spw_store_stats", StoreStats, ("drives", "drives_retired", "partition", "requests", "objects")
)
_DriveStatsStruct = _library.counters("spw_drive_stats", DriveStats, ("in_flight", "in_flight_max", "depth"))


def _path_array(paths: Iterable[Path]) -> Tuple[Any, int]:
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError("paths must be a sequence of paths, one per drive")
    encoded = [os.fsencode(path) for path in paths]
    if b"" in encoded:
        raise ValueError("the name of a drive is empty: is there a comma too many?")
    return (c_char_p * len(encoded))(*encoded), len(encoded)


class _PyBuffer(ctypes.Structure):
    """Py_buffer: fixed by Python's stable interface."""

    _fields_ = [
        ("buf", c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", c_char_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]


_GetBuffer = ctypes.pythonapi.PyObject_GetBuffer
_GetBuffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_GetBuffer.restype = ctypes.c_int
_ReleaseBuffer = ctypes.pythonapi.PyBuffer_Release
_ReleaseBuffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_ReleaseBuffer.restype = None


class _Bytes:
    """The address and length of any contiguous buffer, pinned while the context lasts. Nothing is copied."""

    def __init__(self, buffer: Any, writable: bool) -> None:
        self._view = _PyBuffer()
        _GetBuffer(buffer, byref(self._view), 1 if writable else 0)  # PyBUF_WRITABLE, PyBUF_SIMPLE; raises BufferError

    def __enter__(self) -> Tuple[Optional[int], int]:
        return self._view.buf, self._view.len

    def __exit__(self, *_: object) -> None:
        _ReleaseBuffer(byref(self._view))


def format_store(
    paths: Sequence[Path], *, partitions: int = 1, chunk_bytes: int = 0, force: bool = False, erase: bool = False
) -> StoreInfo:
    """Make a new, empty store on drives (block devices, or existing files of at least 16 MiB). What they held is lost.

    :param partitions: how many processes can use the store at once, each its own part
    :param chunk_bytes: unit of striping, a power of two; 0 chooses
    :param force: overwrite file systems and other signatures; a drive in use is refused even then
    :param erase: overwrite what is at the ends of a drive on which nothing is known; ``force`` does not stand for it
    :raises SpillwayError: EEXIST a drive carries something, known or not; EBUSY one is in use; ENOSPC one is too small; ENOTUNIQ one
        is given twice; ESPIPE one is zoned
    """
    opts = _library.FormatOpts()
    fast.spw_format_opts_init(byref(opts), ctypes.sizeof(opts))
    opts.partitions = _library.number("partitions", partitions, 32)
    opts.chunk_bytes = _library.number("chunk_bytes", chunk_bytes, 64)
    opts.force, opts.erase = force, erase
    info = _library.StoreInfoStruct(size=ctypes.sizeof(_library.StoreInfoStruct))
    array, count = _path_array(paths)
    check(blocking.spw_format(array, count, byref(opts), byref(info)))
    return to_dataclass(StoreInfo, info)


def check_store(paths: Sequence[Path]) -> StoreInfo:
    """Read and verify the superblocks of a store. Reads only; works while the store is open elsewhere.

    :raises SpillwayError: as opening it would
    """
    info = _library.StoreInfoStruct(size=ctypes.sizeof(_library.StoreInfoStruct))
    array, count = _path_array(paths)
    check(blocking.spw_check(array, count, byref(info), None))
    return to_dataclass(StoreInfo, info)


def wipe_store(paths: Sequence[Path]) -> None:
    """Remove a store from drives, so that they are free again.

    :raises SpillwayError: EMEDIUMTYPE a drive holds no store; EBUSY it is in use
    """
    array, count = _path_array(paths)
    check(blocking.spw_wipe(array, count, None))


def probe(path: Path) -> ProbeInfo:
    """What a drive is and whether a store could be made on it. Reads only; a drive that cannot be opened says why in
    ``reason``."""
    info = _library.ProbeInfoStruct(size=ctypes.sizeof(_library.ProbeInfoStruct))
    check(blocking.spw_probe(os.fsencode(path), byref(info)))
    geometry = info.geometry
    return ProbeInfo(
        path=os.fsdecode(info.path),
        kind=_KINDS[geometry.kind] if 0 <= geometry.kind < len(_KINDS) else "unknown",
        size_bytes=geometry.size_bytes,
        logical_block_bytes=geometry.logical_block_bytes,
        physical_block_bytes=geometry.physical_block_bytes,
        numa_node=geometry.numa_node,
        model=os.fsdecode(geometry.model),
        holds=os.fsdecode(info.holds),
        usable=info.usable,
        has_store=info.has_store,
        reason=os.fsdecode(info.reason),
    )


def probe_all() -> List[ProbeInfo]:
    """Every block device of this machine that has a size."""
    paths = ctypes.POINTER(c_char_p)()
    count = check(blocking.spw_probe_list(byref(paths)))
    try:
        names = [paths[i] for i in range(count)]
    finally:
        fast.spw_probe_list_free(paths)
    return [probe(os.fsdecode(name)) for name in names]


def wait_to_end(request: c_void_p) -> int:
    """How a request ended; 0 if there is none. Ctrl-C meanwhile is raised afterwards: until then drives use its memory."""
    result, interrupted = 0, None
    while request.value:
        try:
            blocking.spw_request_wait_any(byref(request), 1, -1)  # does not release it: may be asked again
            ended, request.value = request.value, None
            result = fast.spw_request_test(ended)
        except BaseException as error:  # or what another handler of a signal raises
            interrupted = error
    if interrupted is not None:
        raise interrupted
    return result


def _needs_arena(paths: Iterable[bytes]) -> bool:
    return os.path.exists(_GPU) or any(path.startswith(b"pci:") for path in paths)


class Store:
    """An open store. Any thread may use it; close it (or leave its ``with``) to give the drives back.

    :param paths: all drives of the store, in any order
    :param partition: which part of the drives this process takes; None takes a free one
    :param queue_depth: chunks in flight per drive; 0 the default
    :param arena_bytes: DMA memory for copies and prefetching, as a rule all of it resident. None: 64 MiB; but 256 where there is
        a GPU, whose tensors pass through half of it, and for drives behind vfio, which reach no other memory without a copy.
        What does not fit is read into ordinary memory
    :param backend: "auto", "io_uring", "libaio", "nvme" (passthrough to whole NVMe namespaces) or "vfio" (drives
        named pci:0000:3d:00.0/1, driven from this process)
    :param stripe: "pull" or "static"
    :param checksums: verify every chunk that is read
    :param hugetlb: use huge pages where the system has them
    :raises SpillwayError: ENXIO a drive is missing; EMEDIUMTYPE one holds no store or another; EBUSY in use; and
        others, in words
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        partition: Optional[int] = 0,
        queue_depth: int = 0,
        arena_bytes: Optional[int] = None,
        backend: str = "auto",
        stripe: str = "pull",
        checksums: bool = True,
        hugetlb: bool = True,
    ) -> None:
        self._handle: Optional[int] = None
        # Of both a list's own append and pop are used alone: whatever other threads do, one of them closes the store, and once.
        self._closing: List[int] = []  # the handle, from close() until nothing uses it any more
        self._uses: List[None] = []  # calls under way, and dependents that are not closed
        self._dependents: "weakref.WeakSet[Any]" = weakref.WeakSet()
        array, count = _path_array(paths)
        opts = _library.StoreOpts()
        fast.spw_store_opts_init(byref(opts), ctypes.sizeof(opts))
        # Any other number that the library took for "any" would be a mistake of the caller's that nobody sees.
        opts.partition = _library.PARTITION_ANY if partition is None else _library.number("partition", partition, 31)
        if queue_depth:
            opts.queue_depth = _library.number("queue_depth", queue_depth, 32)
        if arena_bytes is not None:
            opts.arena_bytes = _library.number("arena_bytes", arena_bytes, 64)
        elif not _needs_arena(array):
            opts.arena_bytes = _ARENA_BYTES
        opts.backend = _choice("backend", backend, _BACKENDS)
        opts.stripe = _choice("stripe", stripe, _STRIPES)
        opts.no_checksums, opts.no_hugetlb = not checksums, not hugetlb
        tune = _library.Tune()
        path = os.fsencode(os.environ.get("SPILLWAY_TUNE", ""))
        check(blocking.spw_tune_read(path, array, count, None, byref(tune), ctypes.sizeof(tune)))
        opts.tune = ctypes.pointer(tune)
        handle = c_void_p()
        try:
            check(blocking.spw_store_open(array, count, byref(opts), byref(handle)))
        except BaseException:  # Ctrl-C meanwhile is raised when it is open
            if handle.value:
                blocking.spw_store_close(handle)
            raise
        self._handle = handle.value
        self.arena_bytes: int = opts.arena_bytes
        _library.handles.add(self)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_dependents"):
            self.close()

    def __reduce__(self) -> Any:
        """Neither copied nor pickled: both would close it."""
        raise TypeError("a Store cannot be copied or pickled: open one in each process, on a partition of its own")

    def close(self) -> None:
        """End all I/O and give the drives back. Closing twice does nothing.

        Caches that use the store are closed first; a cache whose memory is still in use by a tensor delays the end
        until it is not.
        """
        handle, self._handle = self._handle, None
        if handle is not None:
            self._closing.append(handle)
        if self._closing:
            try:
                _library.close_all(self._dependents)
            finally:
                self._finish()

    def _finish(self) -> None:
        if self._uses:
            return
        try:
            handle = self._closing.pop()
        except IndexError:  # another thread has it
            return
        blocking.spw_store_close(handle)

    def _end_use(self) -> None:
        self._uses.pop()
        if self._closing:
            self._finish()

    def forget(self) -> None:
        """Drop the handle without closing: for a child of fork(), to which the store does not belong."""
        self._handle = None
        self._closing.clear()

    @property
    def handle(self) -> int:
        """The C handle.

        :raises SpillwayError: EBADF the store is closed
        """
        if self._handle is None:
            raise SpillwayError(errno.EBADF, "the store is closed; open it again with spillway.Store(paths)")
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle is None

    @contextlib.contextmanager
    def _use(self) -> Iterator[int]:
        """The C handle for a call. A close() by another thread meanwhile takes effect when the call has returned."""
        self._uses.append(None)
        try:
            yield self.handle
        finally:
            self._end_use()

    def add_dependent(self, dependent: Any) -> None:
        """``dependent.close()`` is called before the store closes, which then waits for drop_dependent().

        Also when the garbage collector finds both and ends the store first: weak references are gone by then.
        """
        self._dependents.add(dependent)
        self._uses.append(None)

    def drop_dependent(self, dependent: Any) -> None:
        """It is closed, and uses the store no longer."""
        self._dependents.discard(dependent)
        self._end_use()

    def put(self, buffer: Any) -> int:
        """Store the bytes of any contiguous buffer as a new object. Waits until they are on the drives.

        :return: the object, for get and free
        :raises SpillwayError: ENOSPC nothing is stored and nothing changes; EIO no drive takes it
        """
        thing, request = c_uint64(), c_void_p()
        with _Bytes(buffer, writable=False) as (address, length), self._use() as handle:
            try:
                try:
                    check(blocking.spw_store_put(handle, address, length, None, byref(thing), byref(request)))
                finally:
                    result = wait_to_end(request)
                check(result)
            except BaseException:
                if thing.value:
                    fast.spw_store_free(handle, thing)
                raise
        return thing.value

    def get_into(self, thing: int, buffer: Any, offset: int = 0) -> None:
        """Fill a writable buffer with the object's bytes from ``offset`` on.

        :raises SpillwayError: ENOENT no such object; ERANGE beyond its end; EBADMSG a drive returned other bytes than
            were written
        :raises ValueError: a number is negative, or has more than 64 bits
        """
        thing, offset = _library.number("thing", thing, 64), _library.number("offset", offset, 64)
        request = c_void_p()
        with _Bytes(buffer, writable=True) as (address, length), self._use() as handle:
            try:
                check(blocking.spw_store_get(handle, thing, offset, address, length, _URGENT_READ, None, byref(request)))
            finally:
                result = wait_to_end(request)
            check(result)

    def get(self, thing: int, length: int, offset: int = 0) -> bytearray:
        """``length`` bytes of the object from ``offset`` on. Errors as get_into()."""
        buffer = bytearray(_library.number("length", length, 63))
        self.get_into(thing, buffer, offset)
        return buffer

    def free(self, thing: int) -> None:
        """Forget an object; its space is free at once.

        :raises SpillwayError: ENOENT no such object
        :raises ValueError: ``thing`` is negative, or has more than 64 bits
        """
        thing = _library.number("thing", thing, 64)
        with self._use() as handle:
            check(fast.spw_store_free(handle, thing))

    def stats(self) -> StoreStats:
        """Counters so far."""
        struct = _StoreStatsStruct()
        with self._use() as handle:
            fast.spw_store_stats(handle, byref(struct), ctypes.sizeof(struct))
        return to_dataclass(StoreStats, struct)

    def drive_stats(self) -> List[DriveStats]:
        """Counters of each drive, in the order of the store."""
        drives = []
        for index in range(self.stats().drives):
            struct = _DriveStatsStruct()
            with self._use() as handle:
                check(fast.spw_store_drive_stats(handle, index, byref(struct), ctypes.sizeof(struct)))
            drives.append(to_dataclass(DriveStats, struct))
        return drives

    @property
    def description(self) -> str:
        """The I/O backend and its features, in words."""
        with self._use() as handle:
            return fast.spw_store_description(handle).decode(errors="replace")

    @property
    def chunk_bytes(self) -> int:
        with self._use() as handle:
            return fast.spw_store_chunk_bytes(handle)


def _choice(name: str, value: str, choices: "dict[str, int]") -> int:
    try:
        return choices[value]
    except KeyError:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}") from None
