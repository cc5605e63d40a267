# SPDX-License-Identifier: MIT
# spillway/_core/library.py - finds libspillway.so and describes its C interface to ctypes
"""Of two handles on the library ``fast`` keeps the interpreter lock during a call and is for
functions that never block; ``blocking`` releases it. The library calls into Python only from
spw_state_committed(), which ``blocking`` calls; so holding the lock cannot deadlock. ``log`` is
where it logs to.
"""
from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import operator
import os
import re
import subprocess
from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_int,
                    c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p)
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, Type, Union

from .log import LibraryLog

VERSION = "0.1.0"
PARTITION_ANY = 0xFFFFFFFF


class SpillwayError(OSError):
    """A call into the library failed. ``errno`` says what kind of failure; the message names the
    drive, the cause and the remedy."""
    __module__ = "spillway"  # tracebacks show the name under which it is caught


STRUCTS: Dict[str, Type[Structure]] = {}  # by their names in C


def struct(name: str, /, **members: Any) -> Any:
    """A struct of the headers, by its name there."""
    STRUCTS[name] = type(name, (Structure,), {"_fields_": list(members.items())})
    return STRUCTS[name]


Log = struct("spw_log", write=c_void_p, context=c_void_p)
LogLine = struct("spw_log_line", level=c_int, lost=c_uint32, reserved=c_uint32 * 2,
                 text=c_char * 512)
Geometry = struct(
    "spw_geometry", size=c_size_t, kind=c_int, size_bytes=c_uint64, logical_block_bytes=c_uint32,
    physical_block_bytes=c_uint32, memory_align_bytes=c_uint32, transfer_bytes_max=c_uint32,
    segments_max=c_uint32, numa_node=c_int, rotational=c_bool, polls=c_bool, discards=c_bool,
    model=c_char * 64, serial=c_char * 64, nvme_char_path=c_char * 64, transport=c_char * 16,
    reserved=c_uint64 * 6)
FormatOpts = struct("spw_format_opts", size=c_size_t, partitions=c_uint32, chunk_bytes=c_uint64,
                     force=c_bool, log=Log, erase=c_bool)
WipeOpts = struct("spw_wipe_opts", size=c_size_t, erase=c_bool, log=Log)
StoreInfoStruct = struct(
    "spw_store_info", size=c_size_t, store_uuid=c_char * 37, format_version=c_uint32,
    drives=c_uint32, partitions=c_uint32, block_bytes=c_uint32, chunk_bytes=c_uint64,
    capacity_bytes=c_uint64, partition_capacity_bytes=c_uint64, partitions_in_use=c_uint32)
CommitInfoStruct = struct(
    "spw_commit_info", size=c_size_t, number=c_uint64, record_bytes=c_uint64, objects=c_uint32,
    has_previous=c_bool, previous=c_uint64, mirrored=c_bool, runs=c_uint64, runs_single=c_uint64)
ProbeInfoStruct = struct("spw_probe_info", size=c_size_t, path=c_char * 256, geometry=Geometry,
                          holds=c_char * 160, usable=c_bool, has_store=c_bool, reason=c_char * 256,
                          error=c_int, unknown_data=c_bool, address=c_char * 256)
TuneSettings = struct("spw_tune_settings", block_bytes=c_uint64, depth=c_uint32, backend=c_int,
                       wait=c_int, reserved=c_uint32)
Tune = struct("spw_tune", size=c_size_t, read=TuneSettings, write=TuneSettings)
StoreOpts = struct(
    "spw_store_opts", size=c_size_t, partition=c_uint32, queue_depth=c_uint32, arena_bytes=c_uint64,
    requests_max=c_uint32, objects_max=c_uint32, stripe=c_int, backend=c_int, no_checksums=c_bool,
    inline_mode=c_bool, no_hugetlb=c_bool, log=Log, read_deadline_ms=c_uint32,
    write_deadline_ms=c_uint32, tune=POINTER(Tune), commit_number=c_uint64, read_only=c_bool,
    workers=c_uint32, null_bytes_per_second=c_uint64, shared=c_bool)
ArenaOpts = struct("spw_arena_opts", size=c_size_t, bytes=c_uint64, numa_node=c_int,
                    no_hugetlb=c_bool, log=Log)
CacheOpts = struct(
    "spw_cache_opts", size=c_size_t, mode=c_int, min_bytes=c_uint64, staging_bytes=c_uint64,
    prefetch_bytes=c_uint64, spill_last_scope=c_bool, tensors_max=c_uint32, log=Log,
    memory_bytes=c_uint64, trace=c_void_p, wear_bytes_per_day=c_uint64, wear_years=c_double,
    endurance_bytes=c_uint64)
WearStruct = struct(
    "spw_wear", size=c_size_t, basis=c_int, has_health=c_bool, percentage_used=c_uint32,
    life_bytes=c_double, left_bytes=c_double, bytes_per_day=c_double, years=c_double,
    reason=c_char * 256)
StorePressureStruct = struct(
    "spw_store_pressure", size=c_size_t, put_bytes=c_uint64, get_bytes=c_uint64 * 3,
    put_bytes_per_second=c_uint64, get_bytes_per_second=c_uint64, put_ns=c_uint64,
    get_ns=c_uint64 * 3, in_flight=c_uint32, depth=c_uint32)
StateOpts = struct("spw_state_opts", size=c_size_t, memory_bytes=c_uint64,
                    record_bytes_max=c_uint64, log=Log, copies=c_uint32,
                    device_every=c_uint32)
DeviceTimes = struct("spw_device_times", stall_ns=c_uint64, bytes_out=c_uint64, out_ns=c_uint64,
                      bytes_in=c_uint64, in_ns=c_uint64, stall_out_ns=c_uint64,
                      reserved=c_uint64 * 2)
PlanResult = struct(
    "spw_plan_result", size=c_size_t, feasible=c_bool, peak_bytes=c_uint64,
    peak_keep_all_bytes=c_uint64, memory_bytes=c_uint64, stall_ns=c_uint64, wall_ns=c_uint64,
    bytes_written=c_uint64, bytes_read=c_uint64, bytes_forwarded=c_uint64,
    tensors_spilled=c_uint32, points=c_uint32, limited=c_bool, scopes_again=c_uint32,
    again_ns=c_uint64, spans=c_uint32, tensors_host=c_uint32, bytes_host=c_uint64,
    host_peak_bytes=c_uint64)
OtherWay = struct("spw_plan_other_way", possible=c_bool, fits=c_bool, wall_ns=c_uint64,
                   peak_bytes=c_uint64, reserved=c_uint64 * 1)
PlanReason = struct(
    "spw_plan_reason", way=c_int, bytes_kept=c_uint64, bytes_spilled=c_uint64,
    bytes_again=c_uint64, next=c_int, ways=OtherWay * 4, bytes_host=c_uint64,
    reserved=c_uint64 * 1)
CacheReason = struct(
    "spw_cache_reason", scope_key=c_uint64, micro_batch=c_uint32, may_again=c_bool,
    again_ns=c_uint64, saved_bytes=c_uint64, reason=PlanReason, reserved=c_uint64 * 2)
Counter = struct(
    "spw_counter", size=c_size_t, name=c_char_p, group=c_char_p, help=c_char_p, kind=c_int,
    unit=c_int, view=c_int, offset_bytes=c_uint32, len_bytes=c_uint32)
MemoryPoint = struct("spw_memory_point", ns=c_uint64, bytes=c_uint64, keep_all_bytes=c_uint64)


def counters(name: str, cls: Any, narrow: Iterable[str]) -> Any:
    """The C struct ``name`` whose members after ``size`` are the fields of a dataclass, in that
    order: uint64_t where it says int, uint32_t if named in ``narrow``, bool, and char[256] where it
    says str."""
    types = {"int": c_uint64, "bool": c_bool, "str": c_char * 256}
    members = {field.name: types[str(field.type)] for field in dataclasses.fields(cls)}
    return struct(name, size=c_size_t, **{**members, **dict.fromkeys(narrow, c_uint32)})


def to_dataclass(cls: Any, *structs: Any, **given: Any) -> Any:
    """A dataclass with the values of the structs' members of the same names."""
    for name in (field.name for field in dataclasses.fields(cls) if field.name not in given):
        value = next(getattr(struct, name) for struct in structs if hasattr(struct, name))
        given[name] = os.fsdecode(value) if isinstance(value, bytes) else value
    return cls(**given)


# Of spw_state_committed(): (context, name, len, shape, shape_len, object)
Each = CFUNCTYPE(c_int, c_void_p, c_char_p, c_uint64, c_void_p, c_size_t, c_uint64)

# spw_object and spw_tensor are structs of one uint64_t: passed as one.
_PATHS = POINTER(c_char_p)
_HANDLE = POINTER(c_void_p)
_NUMBER = POINTER(c_uint64)
_PROTOTYPES = {
    "spw_version": (c_char_p, []),
    "spw_strerror": (c_char_p, [c_int]),
    "spw_last_error": (c_char_p, []),
    "spw_log_ring_open": (c_int, [c_uint, _HANDLE]),
    "spw_log_ring_write": (None, [c_void_p, c_int, c_char_p]),
    "spw_log_ring_read": (c_int, [c_void_p, POINTER(LogLine)]),
    "spw_size_parse": (c_int, [c_char_p, _NUMBER]),
    "spw_format_opts_init": (None, [POINTER(FormatOpts), c_size_t]),
    "spw_format": (c_int, [_PATHS, c_uint, POINTER(FormatOpts), POINTER(StoreInfoStruct)]),
    "spw_check": (c_int, [_PATHS, c_uint, POINTER(StoreInfoStruct), c_void_p]),
    "spw_committed": (
        c_int, [_PATHS, c_uint, c_uint32, POINTER(CommitInfoStruct), c_size_t]),
    "spw_wipe_opts_init": (None, [POINTER(WipeOpts), c_size_t]),
    "spw_wipe": (c_int, [_PATHS, c_uint, POINTER(WipeOpts)]),
    "spw_probe": (c_int, [c_char_p, POINTER(ProbeInfoStruct)]),
    "spw_wear": (c_int, [c_char_p, c_double, c_double, c_double, POINTER(WearStruct), c_size_t]),
    "spw_tune_read": (c_int, [c_char_p, _PATHS, c_uint, POINTER(Log), POINTER(Tune), c_size_t]),
    "spw_store_opts_init": (None, [POINTER(StoreOpts), c_size_t]),
    "spw_store_open": (c_int, [_PATHS, c_uint, POINTER(StoreOpts), _HANDLE]),
    "spw_store_close": (None, [c_void_p]),
    "spw_store_put": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, _NUMBER, _HANDLE]),
    "spw_store_put_copies": (
        c_int, [c_void_p, c_void_p, c_size_t, c_uint, c_void_p, _NUMBER, _HANDLE]),
    "spw_store_get": (
        c_int, [c_void_p, c_uint64, c_uint64, c_void_p, c_size_t, c_int, c_void_p, _HANDLE]),
    "spw_store_holds": (c_int, [c_void_p, c_uint64, c_void_p, c_uint64, c_size_t]),
    "spw_store_free": (c_int, [c_void_p, c_uint64]),
    "spw_store_alloc": (c_int, [c_void_p, c_size_t, _HANDLE]),
    "spw_store_release": (None, [c_void_p, c_void_p]),
    "spw_store_arena": (c_int, [c_void_p, _HANDLE, POINTER(c_size_t)]),
    "spw_store_register": (c_int, [c_void_p, c_void_p, c_size_t]),
    "spw_store_unregister": (c_int, [c_void_p, c_void_p]),
    "spw_request_wait": (c_int, [c_void_p]),
    "spw_request_wait_any": (c_int, [_HANDLE, c_uint, c_int64]),
    "spw_request_test": (c_int, [c_void_p]),
    "spw_request_raise": (None, [c_void_p, c_int]),
    "spw_store_commit": (
        c_int, [c_void_p, _NUMBER, c_uint32, c_uint64, c_char_p, c_size_t, c_uint]),
    "spw_store_commit_release": (c_int, [c_void_p]),
    "spw_store_committed": (c_int, [c_void_p, POINTER(CommitInfoStruct), c_size_t]),
    "spw_store_committed_record": (c_int, [c_void_p, c_void_p, c_size_t]),
    "spw_store_committed_objects": (c_int, [c_void_p, _NUMBER, _NUMBER, c_uint32]),
    "spw_counter_get": (c_int, [c_int, c_uint, POINTER(Counter), c_size_t]),
    "spw_store_stats": (None, [c_void_p, c_void_p, c_size_t]),
    "spw_store_pressure": (None, [c_void_p, c_uint64, POINTER(StorePressureStruct), c_size_t]),
    "spw_store_drive_stats": (c_int, [c_void_p, c_uint, c_void_p, c_size_t]),
    "spw_store_description": (c_char_p, [c_void_p]),
    "spw_store_chunk_bytes": (c_uint64, [c_void_p]),
    "spw_trace_create": (c_int, [c_char_p, c_char_p, _HANDLE]),
    "spw_trace_finish": (c_int, [c_void_p]),
    "spw_cache_opts_init": (None, [POINTER(CacheOpts), c_size_t]),
    "spw_cache_open": (c_int, [c_void_p, POINTER(CacheOpts), _HANDLE]),
    "spw_cache_close": (None, [c_void_p]),
    "spw_cache_step": (None, [c_void_p]),
    "spw_cache_step_rest": (c_int, [c_void_p, c_bool]),
    "spw_cache_stage": (None, [c_void_p, c_uint32, c_int]),
    "spw_cache_stage_next": (None, [c_void_p, c_uint32, c_int, c_uint32, c_int]),
    "spw_cache_scope_enter": (None, [c_void_p, c_uint64]),
    "spw_cache_scope_leave": (None, [c_void_p]),
    "spw_cache_again_begin": (None, [c_void_p]),
    "spw_cache_again_end": (None, [c_void_p]),
    "spw_arena_opts_init": (None, [POINTER(ArenaOpts), c_size_t]),
    "spw_arena_open": (c_int, [POINTER(ArenaOpts), _HANDLE]),
    "spw_arena_close": (None, [c_void_p]),
    "spw_arena_memory": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "spw_cache_host_memory": (c_int, [c_void_p, c_void_p]),
    "spw_cache_device_times": (c_int, [c_void_p, POINTER(DeviceTimes)]),
    "spw_cache_device_mark": (c_uint64, [c_void_p]),
    "spw_cache_device_marked": (None, [c_void_p, c_uint64, c_uint64]),
    "spw_cache_stats": (None, [c_void_p, c_void_p, c_size_t]),
    "spw_cache_reset_peak": (None, [c_void_p]),
    "spw_cache_profile": (c_uint, [c_void_p, POINTER(MemoryPoint), c_uint]),
    "spw_cache_explain": (c_int, [c_void_p, POINTER(CacheReason), c_uint, POINTER(PlanResult)]),
    "spw_state_opts_init": (None, [POINTER(StateOpts), c_size_t]),
    "spw_state_open": (c_int, [c_void_p, POINTER(StateOpts), _HANDLE]),
    "spw_state_close": (None, [c_void_p]),
    "spw_state_add": (
        c_int, [c_void_p, c_char_p, c_uint64, c_char_p, c_size_t, POINTER(c_uint32)]),
    "spw_state_add_transient": (c_int, [c_void_p, c_char_p, c_uint64, POINTER(c_uint32)]),
    "spw_state_add_former": (
        c_int, [c_void_p, c_char_p, c_uint64, c_char_p, c_size_t, POINTER(c_uint32)]),
    "spw_state_add_object": (
        c_int, [c_void_p, c_char_p, c_uint64, c_char_p, c_size_t, POINTER(c_uint32)]),
    "spw_state_object": (c_int, [c_void_p, c_uint32, _NUMBER]),
    "spw_state_set_object": (c_int, [c_void_p, c_uint32, c_uint64]),
    "spw_state_attach": (c_int, [c_void_p]),
    "spw_state_attach_empty": (c_int, [c_void_p]),
    "spw_state_attached": (c_int, [c_void_p, _NUMBER]),
    "spw_state_extra": (c_int, [c_void_p, c_void_p, POINTER(c_size_t)]),
    "spw_state_pass": (c_int, [c_void_p, POINTER(c_uint32), c_uint32]),
    "spw_state_update": (
        c_int, [c_void_p, POINTER(c_uint32), c_uint32, POINTER(c_bool)]),
    "spw_state_device_took": (c_int, [c_void_p, c_uint32, c_uint64]),
    "spw_state_take": (c_int, [c_void_p, c_uint32, _HANDLE]),
    "spw_state_give": (c_int, [c_void_p, c_uint32, c_bool]),
    "spw_state_clear": (c_int, [c_void_p, c_uint32]),
    "spw_state_commit": (c_int, [c_void_p, c_uint64, c_char_p, c_size_t, c_bool]),
    "spw_state_commit_release": (c_int, [c_void_p]),
    "spw_state_committed": (c_int, [c_void_p, Each, c_void_p]),
    "spw_state_committed_extra": (c_int, [c_void_p, c_void_p, POINTER(c_size_t)]),
    "spw_state_stats": (None, [c_void_p, c_void_p, c_size_t]),
    "spw_state_masters_pack": (
        c_uint64, [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_size_t, _NUMBER, _NUMBER]),
    "spw_state_masters_unpack": (
        c_int, [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_size_t, c_uint64]),
}


def _candidates() -> Iterator[str]:
    """Where the library may be, best first."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package, package.parent.parent / "build"):
        yield str(folder / "libspillway.so")
    # PREFIX/lib/python3/dist-packages: make install puts the library into PREFIX/lib
    if package.parent.name.endswith("-packages"):
        yield str(package.parents[2] / "libspillway.so")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        query = ["pkg-config", "--variable=libdir", "spillway"]
        found = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        if found.stdout.strip():
            yield str(Path(found.stdout.strip()) / "libspillway.so")
    yield "libspillway.so." + VERSION.split(".")[0]


def _find() -> str:
    named = os.environ.get("SPILLWAY_LIBRARY")
    tried = []
    for path in [named] if named else _candidates():
        try:
            ctypes.CDLL(path)
            return path
        except OSError as error:  # which names the path
            tried.append(str(error))
    if named:
        raise ImportError(f"SPILLWAY_LIBRARY={named} cannot be loaded: {tried[0]}")
    raise ImportError(
        "libspillway.so was not found; build it (make), install it (make install), or name it in "
        "SPILLWAY_LIBRARY. Tried:\n  " + "\n  ".join(tried))


def _load(path: str, kind: Type[ctypes.CDLL]) -> Any:
    library = kind(path)
    for name, (result, arguments) in _PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise ImportError(
                f"{path} has no {name}: it is not the library of this package, {VERSION}"
            ) from error
        function.restype = result
        function.argtypes = arguments
    return library


path = _find()
blocking = _load(path, ctypes.CDLL)
fast = _load(path, ctypes.PyDLL)
version: str = fast.spw_version().decode()
if version.split(".")[:2] != VERSION.split(".")[:2]:
    raise ImportError(
        f"{path} is version {version}, this package is version {VERSION}: install the matching one")
log = LibraryLog(fast, Log, LogLine)


# The library advises options of its command; here they are arguments.
_ARGUMENTS = {"--force": "force=True", "--erase": "erase=True", "--chunk": "chunk_bytes=",
              "--partitions": "partitions="}
_OPTION = re.compile("|".join(f"{option}\\b" for option in _ARGUMENTS))


def options(kind: Type[Structure]) -> Any:
    """A struct of options that has the defaults, and the log."""
    opts: Any = kind()
    getattr(fast, kind.__name__ + "_init")(ctypes.byref(opts), ctypes.sizeof(opts))
    opts.log = log.sink
    return opts


def error_of(result: int) -> SpillwayError:
    """The exception for a negative result, with the words of this thread's last failure."""
    words = (fast.spw_last_error() or fast.spw_strerror(result)).decode(errors="replace")
    return SpillwayError(-result, _OPTION.sub(lambda option: _ARGUMENTS[option[0]], words))


def check(result: int) -> int:
    """The result of a call, or its failure as an exception; what it logged is handed on."""
    error = error_of(result) if result < 0 else None
    log.drain()
    if error is not None:
        raise error
    return result


# Bytes, or in words as on the command line: "4k", "1.5MiB", "2GB".
Size = Union[int, str]


def size(name: str, value: Size, otherwise: str = "") -> int:
    """A number of bytes. Every one that a caller gives goes through here.

    :param otherwise: what else it may be, for the error
    :raises ValueError: not a size, negative or too large
    :raises TypeError: it is neither a whole number nor words
    """
    if not isinstance(value, str):
        return number(name, value, 64)
    length = c_uint64()
    if "\0" in value or fast.spw_size_parse(value.encode(), ctypes.byref(length)) < 0:
        raise ValueError(
            f'{name} must be bytes, or a size like "4k", "1.5MiB", "2G" (powers of 1024) or "4GB" '
            f"(of 1000){otherwise}, not {value!r}")
    return length.value


def bytes_text(count: float) -> str:
    """In words, for people."""
    for length, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count:.0f} B"


def number(name: str, value: int, bits: int) -> int:
    """``value``, if it fits: ctypes takes any number and leaves off what does not. Every number
    that a caller gives goes through here, but those of bytes.

    :raises ValueError: it does not fit
    :raises TypeError: not a whole number
    """
    value = operator.index(value)
    if value < 0:
        raise ValueError(f"{name} must not be negative")
    if value >= 1 << bits:
        raise ValueError(f"{name} must be less than {1 << bits}")
    return value
