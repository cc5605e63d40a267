# SPDX-License-Identifier: MIT
# spillway/store.py - objects striped over drives, and making, examining and removing stores
"""The block store: put, get and free objects of any length on a set of drives.

>>> spillway.format_store(["/dev/nvme1n1", "/dev/nvme2n1"])
>>> with spillway.Store(["/dev/nvme1n1", "/dev/nvme2n1"]) as store:
...     thing = store.put(b"any buffer")
...     bytes(store.get(thing, 10))
...     store.free(thing)
b'any buffer'

Nothing survives ``close()`` but what is committed, as training state is: see spillway.optimizer.
"""
from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import inspect
import os
import sys
import weakref
from ctypes import byref, c_char_p, c_int, c_ssize_t, c_uint64, c_void_p
from typing import (Any, Callable, Dict, Iterable, Iterator, List, Literal, Mapping, Optional,
                    Sequence, Tuple, TypeVar, Union)

from ._core import library
from ._core.counted import StoreStats as StoreStats
from ._core.counted import StoreStruct
from ._core.handle import Handle, close_all, handles
from ._core.library import (Size, SpillwayError, blocking, bytes_text, check, fast, number, size,
                            to_dataclass)
from ._core.missing_drive import lost_are_named

Path = Union[str, "os.PathLike[str]"]
Backend = Literal["auto", "io_uring", "libaio", "nvme", "vfio"]
Stripe = Literal["pull"]
ReadClass = Literal["urgent", "prefetch", "background"]
# "newest", a number, or None: none.
CommitName = Union[int, Literal["newest"], None]
# One, or what chooses one by the drives and the partition.
Commit = Union[CommitName, Callable[[Sequence[Path], int], CommitName]]

_BACKENDS: Dict[Backend, int] = {"auto": 0, "io_uring": 1, "libaio": 2, "nvme": 3, "vfio": 4}
_STRIPES: Dict[Stripe, int] = {"pull": 0}
_CLASSES: Dict[ReadClass, int] = {"urgent": 0, "prefetch": 1, "background": 2}
_ARENA_BYTES = 64 << 20
_GPU = "/dev/nvidiactl"
_KINDS = ("block device", "file", "NVMe character device", "NVMe namespace behind vfio")
_URGENT_READ = 0
_COMMIT_KEEP_PREVIOUS = 1
_COMMIT_NEWEST, _COMMIT_NONE = (1 << 64) - 1, (1 << 64) - 2
_UNKNOWN_NS = (1 << 64) - 1
_COMMITS: Dict[Literal["newest"], int] = {"newest": _COMMIT_NEWEST}


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
class CommitInfo:
    """What is committed in a partition: the number of the last commit, and of the one before if
    that is kept."""

    number: int
    previous: Optional[int]


@dataclasses.dataclass(frozen=True)
class ProbeInfo:
    """One candidate drive: what it is, what it holds, and whether a store could be made on it.
    Lengths are bytes. ``transport`` (``pcie``, ``tcp``, ...) and ``address`` say how an NVMe drive
    is reached, and are empty for others."""

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
    transport: str
    address: str


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


@dataclasses.dataclass(frozen=True)
class StorePressure:
    """How much is under way in a store, and how long more of it would take.

    Gets by priority: the caller waits ("urgent"), will wait ("prefetch"), or does not
    ("background"). Lengths are bytes. Times are seconds until a put, or a get, of the length that
    was asked about would have ended; ``None`` as long as no drive was measured. They hold while the
    drives stay as fast as they were lately and nothing else is requested.
    """

    put_bytes: int
    get_bytes: Mapping[ReadClass, int]
    put_bytes_per_second: int
    get_bytes_per_second: int
    put_seconds: Optional[float]
    get_seconds: Mapping[ReadClass, Optional[float]]
    in_flight: int
    depth: int


_DriveStatsStruct = library.counters("spw_drive_stats", DriveStats,
                                      ("in_flight", "in_flight_max", "depth"))


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
        ("buf", c_void_p), ("obj", ctypes.py_object), ("len", c_ssize_t), ("itemsize", c_ssize_t),
        ("readonly", c_int), ("ndim", c_int), ("format", c_char_p), ("shape", c_void_p),
        ("strides", c_void_p), ("suboffsets", c_void_p), ("internal", c_void_p),
    ]


_GetBuffer = ctypes.pythonapi.PyObject_GetBuffer
_GetBuffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), c_int]
_GetBuffer.restype = c_int
_ReleaseBuffer = ctypes.pythonapi.PyBuffer_Release
_ReleaseBuffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_ReleaseBuffer.restype = None


@contextlib.contextmanager
def _bytes_of(buffer: Any, writable: bool) -> Iterator[Tuple[Optional[int], int]]:
    """The address and length of any contiguous buffer, pinned while the context lasts. Nothing is
    copied.

    :raises BufferError: it has none
    """
    view = _PyBuffer()
    _GetBuffer(buffer, byref(view), 1 if writable else 0)  # PyBUF_WRITABLE, PyBUF_SIMPLE
    try:
        yield view.buf, view.len
    finally:
        _ReleaseBuffer(byref(view))


def format_store(paths: Sequence[Path], *, partitions: int = 1, chunk_bytes: Size = 0,
                 force: bool = False, erase: bool = False) -> StoreInfo:
    """Make a new, empty store on drives (block devices, or existing files of at least 16 MiB). What
    they held is lost.

    :param partitions: how many processes can use the store at once, each its own part
    :param chunk_bytes: unit of striping, a power of two, as a number or like "1MiB"; 0 chooses
    :param force: overwrite file systems and other signatures; a drive in use is refused even then
    :param erase: overwrite what is at the ends of a drive on which nothing is known; ``force`` does
        not stand for it
    :raises SpillwayError: EEXIST a drive carries something, known or not; EBUSY one is in use;
        ENOSPC one is too small; ENOTUNIQ one is given twice; ESPIPE one is zoned
    """
    opts = library.options(library.FormatOpts)
    opts.partitions = number("partitions", partitions, 32)
    opts.chunk_bytes = size("chunk_bytes", chunk_bytes)
    opts.force, opts.erase = force, erase
    info = library.StoreInfoStruct(size=ctypes.sizeof(library.StoreInfoStruct))
    array, count = _path_array(paths)
    with _own_is_named(array):
        check(blocking.spw_format(array, count, byref(opts), byref(info)))
    return to_dataclass(StoreInfo, info)


def check_store(paths: Sequence[Path]) -> StoreInfo:
    """Read and verify the superblocks of a store. Reads only; works while the store is open
    elsewhere.

    :raises SpillwayError: as opening it would
    """
    info = library.StoreInfoStruct(size=ctypes.sizeof(library.StoreInfoStruct))
    array, count = _path_array(paths)
    check(blocking.spw_check(array, count, byref(info), None))
    return to_dataclass(StoreInfo, info)


def committed(paths: Sequence[Path], partition: int = 0) -> Optional[CommitInfo]:
    """What is committed in a partition, without opening it. Reads only; works while the store is
    open elsewhere.

    :return: None: nothing is
    :raises SpillwayError: EINVAL no such partition; and as opening it would
    """
    info = library.CommitInfoStruct()
    array, count = _path_array(paths)
    result = blocking.spw_committed(array, count, number("partition", partition, 32), byref(info),
                                    ctypes.sizeof(info))
    return _commit_info(result, info)


def _commit_info(result: int, info: Any) -> Optional[CommitInfo]:
    if result == -errno.ENODATA:
        return None
    check(result)
    return CommitInfo(info.number, info.previous if info.has_previous else None)


def wipe_store(paths: Sequence[Path], erase: bool = False) -> None:
    """Remove a store from drives, so that they are free again.

    :param erase: also one in which something is committed
    :raises SpillwayError: EMEDIUMTYPE a drive holds no store; EBUSY it is in use; EEXIST something
        is committed in it
    """
    opts = library.options(library.WipeOpts)
    opts.erase = erase
    array, count = _path_array(paths)
    with _own_is_named(array):
        check(blocking.spw_wipe(array, count, byref(opts)))


def probe(path: Path) -> ProbeInfo:
    """What a drive is and whether a store could be made on it. Reads only; a drive that cannot be
    opened says why in ``reason``."""
    info = library.ProbeInfoStruct(size=ctypes.sizeof(library.ProbeInfoStruct))
    check(blocking.spw_probe(os.fsencode(path), byref(info)))
    kind = info.geometry.kind
    return to_dataclass(ProbeInfo, info, info.geometry,
                        kind=_KINDS[kind] if 0 <= kind < len(_KINDS) else "unknown")


@contextlib.contextmanager
def _own_is_named(array: Iterable[bytes], partition: Optional[int] = None) -> Iterator[None]:
    """Where drives are refused because this process itself has a store on them open, as where a
    cell of a notebook runs again, the error says which, and what to do.

    :param partition: that is wanted; None: any
    """
    try:
        yield
    except SpillwayError as error:
        real = {os.path.realpath(path) for path in map(os.fsdecode, array)}
        own = [store for store in list(handles) if isinstance(store, Store) and not store.closed
               and any(os.path.realpath(path) in real for path in store.paths)
               and partition in (None, store.stats().partition)]
        if error.errno != errno.EBUSY or not own:
            raise
        raise SpillwayError(errno.EBUSY, own[0]._says_it_is_open()) from error


def _own_store_of(thing: Any) -> Any:
    """The store that an offload() opened."""
    return inspect.getattr_static(thing, "_own_store", None)


def place_of_caller() -> str:
    """FILE:LINE of who called into this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("spillway."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _needs_arena(paths: Iterable[bytes]) -> bool:
    return os.path.exists(_GPU) or any(path.startswith(b"pci:") for path in paths)


class Store(Handle):
    """An open store. Any thread may use it; close it (or leave its ``with``) to give the drives
    back.

    :param paths: all drives of the store, in any order
    :param partition: which part of the drives this process takes; None takes a free one
    :param queue_depth: chunks in flight per drive, beside a quarter as many of urgent reads; for a
        second after one of these, writes of a sixth of it in bytes. 0: the default, 24
    :param arena_bytes: DMA memory for copies and prefetching (bytes, or like "256MiB"), as a rule
        all of it resident. None: 64 MiB; but 256 where there is a GPU, whose tensors pass through
        half of it, and for drives behind vfio, which reach no other memory without a copy. What
        does not fit is read into ordinary memory
    :param backend: "auto", "io_uring", "libaio", "nvme" (passthrough to whole NVMe namespaces) or
        "vfio" (drives named pci:0000:3d:00.0/1, driven from this process)
    :param stripe: "pull", the only way: a drive takes the next chunk when it has a free slot
    :param checksums: verify every chunk that is read
    :param hugetlb: use huge pages where the system has them
    :param workers: threads that sum and copy what is put and got; one carries as much as two of the
        fastest drives. 0: chosen by drives, partitions and CPUs
    :param commit: which commit to restore: "newest", or its number. None: none: the partition is
        empty. Other commits are discarded for good. Or a function of paths and partition that
        returns one of these, as spillway.torch.newest_of_all()
    :param read_only: to look at what is committed: nothing is written, and no commit discarded.
        With drives missing, what the others have can be read
    :param shared: with ``read_only``: also while another process has the partition open, or this
        one. When that commits again, what is read may be gone, which the checksums tell
    :raises SpillwayError: ENXIO a drive is missing; EMEDIUMTYPE one holds no store or another;
        EBUSY in use; ENODATA there is no such commit; and others, in words
    """

    _closed_words = "the store is closed; open it again with spillway.Store(paths)"
    _copied_words = ("a Store cannot be copied or pickled: open one in each process, on a "
                     "partition of its own")

    paths: Tuple[str, ...] = ()
    opened_at = ""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        partition: Optional[int] = 0,
        queue_depth: int = 0,
        arena_bytes: Optional[Size] = None,
        backend: Backend = "auto",
        stripe: Stripe = "pull",
        checksums: bool = True,
        hugetlb: bool = True,
        workers: int = 0,
        commit: Commit = "newest",
        read_only: bool = False,
        shared: bool = False,
    ) -> None:
        self._dependents: "weakref.WeakSet[Any]" = weakref.WeakSet()
        array, count = _path_array(paths)
        opts = library.options(library.StoreOpts)
        opts.partition = library.PARTITION_ANY
        if partition is not None:  # not given by the caller
            opts.partition = number("partition", partition, 31)
        if queue_depth:
            opts.queue_depth = number("queue_depth", queue_depth, 32)
        if arena_bytes is not None:
            opts.arena_bytes = size("arena_bytes", arena_bytes)
        elif not _needs_arena(array):
            opts.arena_bytes = _ARENA_BYTES
        opts.backend = choice("backend", backend, _BACKENDS)
        if str(stripe) == "static":
            raise ValueError('stripe="static", RAID 0 order, is gone: use "pull", the default, '
                             "which places more on faster drives")
        opts.stripe = choice("stripe", stripe, _STRIPES)
        self.commit_chosen = commit != "newest"  # the caller considered others
        if callable(commit):
            if partition is None:
                raise ValueError("the commit is chosen by what the partition has: give its number")
            commit = commit(paths, opts.partition)
        opts.commit_number = _commit_number(commit)
        opts.no_checksums, opts.no_hugetlb = not checksums, not hugetlb
        opts.workers = number("workers", workers, 32)
        opts.read_only, opts.shared = read_only, shared
        tune = library.Tune()
        path = os.fsencode(os.environ.get("SPILLWAY_TUNE", ""))
        check(blocking.spw_tune_read(path, array, count, byref(opts.log), byref(tune),
                                     ctypes.sizeof(tune)))
        opts.tune = ctypes.pointer(tune)
        handle = c_void_p()
        try:
            with _own_is_named(array, partition), lost_are_named(array, count, opts):
                check(blocking.spw_store_open(array, count, byref(opts), byref(handle)))
        except BaseException:  # Ctrl-C meanwhile is raised when it is open
            if handle.value:
                blocking.spw_store_close(handle)
            raise
        self.arena_bytes: int = opts.arena_bytes
        # Who has pinned the arena for a device, and how: a table of calls and the device.
        self.arena_users: List[Tuple[Any, Any]] = []
        self.checksums = bool(checksums)
        self.paths = tuple(map(os.fsdecode, array))
        self.opened_at = place_of_caller()
        super().__init__(handle.value)

    def __repr__(self) -> str:
        where = ", ".join(self.paths) or "no drive"
        if self._handle is None:
            return f"<spillway.Store on {where}: closed>"
        stats = self.stats()
        return (f"<spillway.Store on {where}: partition {stats.partition}, "
                f"{bytes_text(stats.used_bytes)} of {bytes_text(stats.capacity_bytes)} used, "
                f"by {self.description.partition(':')[0]}>")

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _says_it_is_open(self) -> str:
        """With the names that it goes by in the program, or in the notebook."""
        names = [name for name, value in list(vars(sys.modules["__main__"]).items())
                 if name[0] != "_" and (value is self or _own_store_of(value) is self)]
        that = names[0] if names else "that object"
        return (f"{', '.join(self.paths)}: this process has the store open itself, since "
                f"{self.opened_at}. Use {that} again, or {that}.close() first; leaving "
                "`with spillway.Store(...)` closes a store, too")

    def _before_close(self) -> None:
        for dependent in list(self._dependents):
            if not dependent.closed:
                dependent._before_close()

    def _before_end(self) -> None:
        close_all(self._dependents)

    def _end(self, handle: int) -> None:
        blocking.spw_store_close(handle)

    def add_dependent(self, dependent: Any) -> None:
        """``dependent.close()`` is called before the store closes, which then waits for
        drop_dependent(); also where the garbage collector ends the store first."""
        self._dependents.add(dependent)
        self._uses.append(None)

    def has_open(self, kind: Any) -> bool:
        """Whether something of this kind uses the store now."""
        return any(isinstance(other, kind) and not other.closed for other in self._dependents)

    def drop_dependent(self, dependent: Any) -> None:
        """It is closed, and uses the store no longer."""
        self._dependents.discard(dependent)
        self._end_use()

    def put(self, buffer: Any) -> int:
        """Store the bytes of any contiguous buffer as a new object. Waits until they are on the
        drives.

        :return: the object, for get and free
        :raises SpillwayError: ENOSPC nothing is stored and nothing changes; EIO no drive takes it
        """
        with _bytes_of(buffer, writable=False) as (address, length):
            return self.call(_put, address, length)

    def get_into(self, thing: int, buffer: Any, offset: int = 0) -> None:
        """Fill a writable buffer with the object's bytes from ``offset`` on.

        :raises SpillwayError: ENOENT no such object; ERANGE beyond its end; EBADMSG a drive
            returned other bytes than were written
        :raises ValueError: a number is negative, or has more than 64 bits
        """
        thing, offset = number("thing", thing, 64), number("offset", offset, 64)
        with _bytes_of(buffer, writable=True) as (address, length):
            self.call(_get, thing, offset, address, length)

    def get(self, thing: int, length: int, offset: int = 0) -> bytearray:
        """``length`` bytes of the object from ``offset`` on. Errors as get_into()."""
        buffer = bytearray(number("length", length, 63))
        self.get_into(thing, buffer, offset)
        return buffer

    def free(self, thing: int) -> None:
        """Forget an object; its space is free at once.

        :raises SpillwayError: ENOENT no such object
        :raises ValueError: ``thing`` is negative, or has more than 64 bits
        """
        check(self.call(fast.spw_store_free, number("thing", thing, 64)))

    # ---- Durable objects -------------------------------------------------------------------------

    @property
    def committed(self) -> Optional[CommitInfo]:
        """What is durable now: what opening the store has restored, or was committed since; None:
        nothing is."""
        info = library.CommitInfoStruct()
        result = self.call(blocking.spw_store_committed, byref(info), ctypes.sizeof(info))
        return _commit_info(result, info)

    def commit(self, things: Sequence[int], number: int, record: bytes = b"", *,
               keep_previous: bool = False) -> None:
        """Make objects durable, in place of those committed before. They may be freed then: the
        commit keeps their bytes. Not for a store that an optimizer or another state commits in.

        :param number: above that of the commit before
        :param record: any bytes that belong to it
        :param keep_previous: what was committed before stays, too, until commit_release(), or until
            the store is opened with ``commit=number``
        :raises SpillwayError: EINVAL the number, or an object twice; ENOENT no such object; a drive
            failed: what was committed before is durable still
        """
        array = (c_uint64 * len(things))(*(library.number("thing", thing, 64) for thing in things))
        check(self.call(blocking.spw_store_commit, array, len(things),
                        library.number("number", number, 63), record, len(record),
                        _COMMIT_KEEP_PREVIOUS if keep_previous else 0))

    def commit_release(self) -> None:
        """What was committed before the last, if it was kept, is not needed any more.

        :raises SpillwayError: EBUSY a later commit failed while it took the place of the last: what
            is kept is all that is sure until another succeeds; a drive failed: it is kept still
        """
        check(self.call(blocking.spw_store_commit_release))

    def restored(self) -> Tuple[bytes, List[Tuple[int, int]]]:
        """Of the commit that opening the store has restored: its record, and (object, length) of
        each of its objects, in their order. They are the caller's, to be freed.

        :raises SpillwayError: ENODATA nothing is committed
        """
        info = library.CommitInfoStruct()
        check(self.call(blocking.spw_store_committed, byref(info), ctypes.sizeof(info)))
        record = (ctypes.c_char * info.record_bytes)()
        check(self.call(blocking.spw_store_committed_record, record, info.record_bytes))
        things, lengths = (c_uint64 * info.objects)(), (c_uint64 * info.objects)()
        check(self.call(blocking.spw_store_committed_objects, things, lengths, info.objects))
        return record.raw, list(zip(things, lengths))

    def stats(self) -> StoreStats:
        """Counters so far."""
        struct = StoreStruct()
        self.call(fast.spw_store_stats, byref(struct), ctypes.sizeof(struct))
        return to_dataclass(StoreStats, struct)

    def drive_stats(self) -> List[DriveStats]:
        """Counters of each drive, in the order of the store."""
        drives = []
        for index in range(self.stats().drives):
            struct = _DriveStatsStruct()
            size = ctypes.sizeof(struct)
            check(self.call(fast.spw_store_drive_stats, index, byref(struct), size))
            drives.append(to_dataclass(DriveStats, struct))
        return drives

    def pressure(self, length: Size = 0) -> StorePressure:
        """How much is under way, and how long until a put or a get of ``length`` bytes would end.

        For callers that can choose between waiting and computing. Takes no lock, asks no drive.

        :raises ValueError: ``length`` is not a size
        """
        struct = library.StorePressureStruct()
        self.call(fast.spw_store_pressure, size("length", length), byref(struct),
                  ctypes.sizeof(struct))
        return to_dataclass(
            StorePressure, struct, put_seconds=_seconds(struct.put_ns),
            get_bytes={cls: struct.get_bytes[index] for cls, index in _CLASSES.items()},
            get_seconds={cls: _seconds(struct.get_ns[index]) for cls, index in _CLASSES.items()})

    @property
    def description(self) -> str:
        """The I/O backend and its features, in words."""
        return self.call(fast.spw_store_description).decode(errors="replace")

    @property
    def chunk_bytes(self) -> int:
        return self.call(fast.spw_store_chunk_bytes)


def _seconds(time_ns: int) -> Optional[float]:
    return None if time_ns == _UNKNOWN_NS else time_ns / 1e9


def _put(handle: int, address: Optional[int], length: int) -> int:
    thing = c_uint64()
    try:
        run(blocking.spw_store_put, handle, address, length, None, byref(thing))
    except BaseException:
        if thing.value:
            fast.spw_store_free(handle, thing)
        raise
    return thing.value


def _get(handle: int, thing: int, offset: int, address: Optional[int], length: int) -> None:
    run(blocking.spw_store_get, handle, thing, offset, address, length, _URGENT_READ, None)


def run(function: Any, *arguments: Any) -> None:
    """``function(*arguments, &request)``, and the end of the request. Ctrl-C meanwhile is raised
    afterwards: until then drives use its memory."""
    request = c_void_p()
    try:
        check(function(*arguments, byref(request)))
    finally:
        result, interruption = end_of(request)
        if interruption is not None:
            raise interruption
    check(result)


def end_of(request: c_void_p) -> Tuple[int, Optional[BaseException]]:
    """Wait for a request and release it. How it ended: 0 if there is none, -EINTR where that got
    lost; and what a handler of a signal, as of Ctrl-C, raised meanwhile."""
    result = -errno.EINTR if request.value else 0
    interruption = None
    while request.value:
        try:
            # does not release it: may be asked again
            blocking.spw_request_wait_any(byref(request), 1, -1)
            ended, request.value = request.value, None
            result = fast.spw_request_test(ended)
        except BaseException as error:
            interruption = error
    return result, interruption


def _commit_number(commit: CommitName) -> int:
    if commit is None:
        return _COMMIT_NONE
    if isinstance(commit, str):
        return choice("commit", commit, _COMMITS)
    return number("commit", commit, 63)


_Word = TypeVar("_Word", bound=str)


def choice(name: str, value: _Word, choices: Mapping[_Word, int]) -> int:
    """:raises ValueError: it is none of them"""
    try:
        return choices[value]
    except (KeyError, TypeError):  # or nothing that a dict has
        words = ", ".join(f'"{word}"' for word in choices)
        raise ValueError(f"{name} must be one of {words}, not {value!r}") from None
