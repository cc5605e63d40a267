# SPDX-License-Identifier: MIT
# spillway/_library.py - finds libspillway.so and describes its C interface to ctypes
"""The C library as Python sees it: where it is, its structs, its functions, its errors.

Two handles on the same library are kept. ``fast`` keeps the interpreter lock during a call and is for functions that
never block; ``blocking`` gives the lock up. The library never calls into Python (no log function is passed to it), so
holding the lock during a short call cannot deadlock.
"""
from __future__ import annotations

import atexit
import ctypes
import dataclasses
import operator
import os
import subprocess
import weakref
from ctypes import POINTER, Structure, c_bool, c_char, c_char_p, c_int, c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Type, TypeVar

VERSION = "0.1.0"
PARTITION_ANY = 0xFFFFFFFF


class SpillwayError(OSError):
    """A call into the library failed. ``errno`` says what kind of failure; the message names the drive, the cause and
    the remedy."""


class Log(Structure):
    _fields_ = [("write", c_void_p), ("context", c_void_p)]


class Geometry(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int),
        ("size_bytes", c_uint64),
        ("logical_block_bytes", c_uint32),
        ("physical_block_bytes", c_uint32),
        ("memory_align_bytes", c_uint32),
        ("transfer_bytes_max", c_uint32),
        ("segments_max", c_uint32),
        ("numa_node", c_int),
        ("rotational", c_bool),
        ("polls", c_bool),
        ("discards", c_bool),
        ("model", c_char * 64),
        ("serial", c_char * 64),
        ("nvme_char_path", c_char * 64),
        ("reserved", c_uint64 * 8),
    ]


class FormatOpts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("partitions", c_uint32),
        ("chunk_bytes", c_uint64),
        ("force", c_bool),
        ("log", Log),
        ("erase", c_bool),
    ]


class StoreInfoStruct(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("store_uuid", c_char * 37),
        ("format_version", c_uint32),
        ("drives", c_uint32),
        ("partitions", c_uint32),
        ("block_bytes", c_uint32),
        ("chunk_bytes", c_uint64),
        ("capacity_bytes", c_uint64),
        ("partition_capacity_bytes", c_uint64),
        ("partitions_in_use", c_uint32),
    ]


class ProbeInfoStruct(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("path", c_char * 256),
        ("geometry", Geometry),
        ("holds", c_char * 160),
        ("usable", c_bool),
        ("has_store", c_bool),
        ("reason", c_char * 256),
    ]


class TuneSettings(Structure):
    _fields_ = [("block_bytes", c_uint64), ("depth", c_uint32), ("backend", c_int), ("wait", c_int)]


class Tune(Structure):
    _fields_ = [("size", c_size_t), ("read", TuneSettings), ("write", TuneSettings)]


class StoreOpts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("partition", c_uint32),
        ("queue_depth", c_uint32),
        ("arena_bytes", c_uint64),
        ("requests_max", c_uint32),
        ("objects_max", c_uint32),
        ("stripe", c_int),
        ("backend", c_int),
        ("no_checksums", c_bool),
        ("inline_mode", c_bool),
        ("no_hugetlb", c_bool),
        ("log", Log),
        ("read_deadline_ms", c_uint32),
        ("write_deadline_ms", c_uint32),
        ("tune", POINTER(Tune)),
    ]


class CacheOpts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("mode", c_int),
        ("min_bytes", c_uint64),
        ("staging_bytes", c_uint64),
        ("prefetch_bytes", c_uint64),
        ("spill_last_scope", c_bool),
        ("tensors_max", c_uint32),
        ("log", Log),
        ("memory_bytes", c_uint64),
        ("trace", c_void_p),
    ]


class Offer(Structure):
    _fields_ = [
        ("storage_key", c_uint64),
        ("storage_version", c_uint64),
        ("storage_bytes", c_void_p),
        ("storage_len_bytes", c_uint64),
        ("offset_bytes", c_uint64),
        ("len_bytes", c_uint64),
        ("owner", c_uint64),
    ]


class Copy(Structure):
    _fields_ = [("staging", c_void_p), ("offset_bytes", c_uint64), ("len_bytes", c_uint64)]


class Taken(Structure):
    _fields_ = [
        ("bytes", c_void_p),
        ("owner", c_uint64),
        ("lease", c_uint64),
        ("storage_bytes_before", c_uint64),
        ("storage_bytes_total", c_uint64),
    ]


# By their names in C; counters() adds to it.
STRUCTS: Dict[str, Type[Structure]] = {
    "spw_log": Log,
    "spw_geometry": Geometry,
    "spw_format_opts": FormatOpts,
    "spw_store_info": StoreInfoStruct,
    "spw_probe_info": ProbeInfoStruct,
    "spw_tune_settings": TuneSettings,
    "spw_tune": Tune,
    "spw_store_opts": StoreOpts,
    "spw_cache_opts": CacheOpts,
    "spw_offer": Offer,
    "spw_copy": Copy,
    "spw_taken": Taken,
}


def counters(name: str, cls: Any, narrow: Iterable[str]) -> Type[Structure]:
    """The C struct ``name`` whose members after ``size`` are the fields of a dataclass, in that order: uint64_t where
    it says int, uint32_t if named in ``narrow``, bool, and char[256] where it says str."""
    narrow = set(narrow)
    types = {"int": c_uint64, "bool": c_bool, "str": c_char * 256}
    fields = [(f.name, c_uint32 if f.name in narrow else types[f.type]) for f in dataclasses.fields(cls)]
    struct = type(name, (Structure,), {"_fields_": [("size", c_size_t)] + fields})
    STRUCTS[name] = struct
    return struct


def to_dataclass(cls: Any, struct: Structure) -> Any:
    """A dataclass with the values of the struct's members of the same names."""
    values = {}
    for field in dataclasses.fields(cls):
        value = getattr(struct, field.name)
        values[field.name] = os.fsdecode(value) if isinstance(value, bytes) else value
    return cls(**values)

# spw_object and spw_tensor are structs of one uint64_t: passed as one.
_PATHS = POINTER(c_char_p)
_PROTOTYPES = {
    "spw_version": (c_char_p, []),
    "spw_strerror": (c_char_p, [c_int]),
    "spw_last_error": (c_char_p, []),
    "spw_format_opts_init": (None, [POINTER(FormatOpts), c_size_t]),
    "spw_format": (c_int, [_PATHS, c_uint, POINTER(FormatOpts), POINTER(StoreInfoStruct)]),
    "spw_check": (c_int, [_PATHS, c_uint, POINTER(StoreInfoStruct), c_void_p]),
    "spw_wipe": (c_int, [_PATHS, c_uint, POINTER(Log)]),
    "spw_probe": (c_int, [c_char_p, POINTER(ProbeInfoStruct)]),
    "spw_probe_list": (c_int, [POINTER(POINTER(c_char_p))]),
    "spw_probe_list_free": (None, [POINTER(c_char_p)]),
    "spw_tune_read": (c_int, [c_char_p, _PATHS, c_uint, POINTER(Log), POINTER(Tune), c_size_t]),
    "spw_store_opts_init": (None, [POINTER(StoreOpts), c_size_t]),
    "spw_store_open": (c_int, [_PATHS, c_uint, POINTER(StoreOpts), POINTER(c_void_p)]),
    "spw_store_close": (None, [c_void_p]),
    "spw_store_put": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, POINTER(c_uint64), POINTER(c_void_p)]),
    "spw_store_get": (
        c_int,
        [c_void_p, c_uint64, c_uint64, c_void_p, c_size_t, c_int, c_void_p, POINTER(c_void_p)],
    ),
    "spw_store_free": (c_int, [c_void_p, c_uint64]),
    "spw_store_arena": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_size_t)]),
    "spw_request_wait_any": (c_int, [POINTER(c_void_p), c_uint, c_int64]),
    "spw_request_test": (c_int, [c_void_p]),
    "spw_store_stats": (None, [c_void_p, c_void_p, c_size_t]),
    "spw_store_drive_stats": (c_int, [c_void_p, c_uint, c_void_p, c_size_t]),
    "spw_store_description": (c_char_p, [c_void_p]),
    "spw_store_chunk_bytes": (c_uint64, [c_void_p]),
    "spw_trace_create": (c_int, [c_char_p, c_char_p, POINTER(c_void_p)]),
    "spw_trace_finish": (c_int, [c_void_p]),
    "spw_cache_opts_init": (None, [POINTER(CacheOpts), c_size_t]),
    "spw_cache_open": (c_int, [c_void_p, POINTER(CacheOpts), POINTER(c_void_p)]),
    "spw_cache_close": (None, [c_void_p]),
    "spw_cache_step": (None, [c_void_p]),
    "spw_cache_stage": (None, [c_void_p, c_uint32, c_int]),
    "spw_cache_stage_next": (None, [c_void_p, c_uint32, c_int, c_uint32, c_int]),
    "spw_cache_scope_enter": (None, [c_void_p, c_uint64]),
    "spw_cache_scope_leave": (None, [c_void_p]),
    "spw_cache_offer_device": (
        c_int,
        [c_void_p, POINTER(Offer), c_uint32, c_int, POINTER(c_uint64), POINTER(Copy)],
    ),
    "spw_cache_copied": (c_int, [c_void_p, c_uint64, c_int]),
    "spw_cache_take": (c_int, [c_void_p, c_uint64, c_uint64, c_uint64, POINTER(Taken)]),
    "spw_cache_return": (None, [c_void_p, c_uint64]),
    "spw_cache_release": (c_int, [c_void_p, c_uint64]),
    "spw_cache_drain_device": (c_int, [c_void_p, POINTER(c_uint64), c_uint]),
    "spw_cache_stats": (None, [c_void_p, c_void_p, c_size_t]),
    "spw_cache_reset_peak": (None, [c_void_p]),
}


def _pkg_config_libdir() -> List[str]:
    try:
        found = subprocess.run(
            ["pkg-config", "--variable=libdir", "spillway"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [found.stdout.strip()] if found.stdout.strip() else []


def _candidates() -> Iterator[str]:
    """Where the library may be, best first."""
    package = Path(__file__).resolve().parent
    for folder in (package, package.parent.parent / "build"):
        yield str(folder / "libspillway.so")
    if package.parent.name.endswith("-packages"):  # PREFIX/lib/python3/dist-packages: make install puts the library into PREFIX/lib
        yield str(package.parents[2] / "libspillway.so")
    for folder in _pkg_config_libdir():
        yield str(Path(folder) / "libspillway.so")
    yield "libspillway.so." + VERSION.split(".")[0]


def _find() -> str:
    named = os.environ.get("SPILLWAY_LIBRARY")
    if named:
        try:
            ctypes.CDLL(named)
        except OSError as error:
            raise ImportError(f"SPILLWAY_LIBRARY={named} cannot be loaded: {error}") from error
        return named
    tried = []
    for path in _candidates():
        if "/" in path and not os.path.exists(path):
            tried.append(f"{path}: not there")
            continue
        try:
            ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error))
            continue
        return path
    raise ImportError(
        "libspillway.so was not found; build it (make), install it (make install), or name it in SPILLWAY_LIBRARY. "
        "Tried:\n  "
        + "\n  ".join(tried)
    )


_L = TypeVar("_L", bound=ctypes.CDLL)


def _load(path: str, kind: Type[_L]) -> _L:
    library = kind(path)
    for name, (result, arguments) in _PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise ImportError(f"{path} has no {name}: it is not the library of this package, {VERSION}") from error
        function.restype = result
        function.argtypes = arguments
    return library


path = _find()
blocking: Any = _load(path, ctypes.CDLL)
fast: Any = _load(path, ctypes.PyDLL)
version: str = fast.spw_version().decode()
if version.split(".")[:2] != VERSION.split(".")[:2]:
    raise ImportError(f"{path} is version {version}, this package is version {VERSION}: install the matching one")


def error_of(result: int) -> SpillwayError:
    """The exception for a negative result, with the words of this thread's last failure."""
    words = fast.spw_last_error().decode(errors="replace") or fast.spw_strerror(result).decode(errors="replace")
    return SpillwayError(-result, words)


def check(result: int) -> int:
    """The result of a call, or its failure as an exception."""
    if result < 0:
        raise error_of(result)
    return result


def number(name: str, value: int, bits: int) -> int:
    """``value``, if it fits: ctypes takes any number and leaves off what does not. Every number that a caller gives goes through here.

    :raises ValueError: it does not fit
    :raises TypeError: it is no whole number
    """
    value = operator.index(value)
    if value < 0:
        raise ValueError(f"{name} must not be negative")
    if value >= 1 << bits:
        raise ValueError(f"{name} must be less than {1 << bits}")
    return value


def close_all(owners: Iterable[Any]) -> None:
    """Close each, whatever goes wrong with another.

    :raises BaseException: what the first that failed raised
    """
    failure = None
    for owner in list(owners):
        try:
            owner.close()
        except BaseException as error:
            failure = failure or error
    if failure is not None:
        raise failure


# A child of fork() has the handles but not the library's threads: using or closing one there would wait for ever. It
# forgets them.
handles: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _forget_handles() -> None:
    for owner in list(handles):
        owner.forget()


os.register_at_fork(after_in_child=_forget_handles)


# Python does not let go of every object at its end, and the status page of a store that is not closed stays in /dev/shm.
def _close_handles() -> None:
    close_all(handles)


atexit.register(_close_handles)
