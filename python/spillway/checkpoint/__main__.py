# SPDX-License-Identifier: MIT
# spillway/checkpoint/__main__.py - `python -m spillway.checkpoint`, `spillway state export`
from __future__ import annotations

import argparse
import errno
import json
import os
import sys
import time
from typing import List, Optional, Union

from .._core.library import SpillwayError, bytes_text, size
from .._optim.checkpoint import decoded
from ..checkpoint import Exported, export
from ..state import committed_extra
from ..store import Commit, Store, committed

_FAILED, _REFUSED, _INTERRUPTED = 1, 3, 130
_REFUSALS = (errno.EBUSY, errno.EEXIST, errno.ENOTUNIQ, errno.ESPIPE, errno.ESTALE)
# Progress of long work: shown after, and every, this many seconds.
_PATIENCE, _INTERVAL = 2.0, 0.5
# Room for two buffers, and for the store's own copies.
_ARENA_BYTES = 64 << 20

_DESCRIPTION = """\
Writes the model that a training run has committed in a store to a file that others read. All
drives of the store are named; nothing is written to them. The file is there as a whole or not at
all, and every byte that was read was verified."""
_EXAMPLES = """\
examples:
  python -m spillway.checkpoint export /dev/nvme1n1 /dev/nvme2n1 --to model.safetensors
  python -m spillway.checkpoint export a.img b.img --to model.pt --what all
  python -m spillway.checkpoint export a.img b.img --to model.safetensors --shard 2GB --partition 1

exit status: 0 done, 1 failed, 2 wrong usage, 3 refused for safety (the file is there, or the
store is in use)"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spillway.checkpoint",
        description="A committed step of a training run as files that others read.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="export")
    verb = verbs.add_parser("export", description=_DESCRIPTION, epilog=_EXAMPLES,
                            help="write the model of a committed step to a file",
                            formatter_class=argparse.RawDescriptionHelpFormatter)
    verb.add_argument("drives", nargs="+", metavar="DRIVE", help="all drives of the store")
    verb.add_argument("--to", required=True, metavar="FILE", help="the file to make")
    verb.add_argument("--format", choices=("safetensors", "torch"),
                      help="safetensors, or torch: what torch.load(weights_only=True) reads "
                      "(default: torch for names ending in .pt, .pth or .bin)")
    verb.add_argument("--what", choices=("parameters", "masters", "all"), default="parameters",
                      help="parameters as the model has them (default); masters: of float32, where "
                      "there are any; all: what the optimizer keeps, too")
    verb.add_argument("--shard", default="5GB", metavar="SIZE", type=_size,
                      help="of safetensors: several files and an index, each of so much (5GB)")
    verb.add_argument("--partition", type=int, metavar="N",
                      help="what this one has alone (default: all ranks, rank 0 in partition 0)")
    verb.add_argument("--step", type=int, metavar="STEP",
                      help="which, if the one before is kept, too (default: the last)")
    verb.add_argument("--overwrite", action="store_true", help="in place of a file that is there")
    verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _size(text: str) -> int:
    try:
        return size("--shard", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class _Shown:
    """How far it is, on a terminal."""

    def __init__(self) -> None:
        self._bytes = 0
        self._next = time.monotonic() + _PATIENCE
        self._shown = False

    def __call__(self, count: int) -> None:
        self._bytes += count
        now = time.monotonic()
        if now >= self._next and sys.stderr.isatty():
            print(f"\r{bytes_text(self._bytes)} written ... ", end="", file=sys.stderr, flush=True)
            self._next, self._shown = now + _INTERVAL, True

    def end(self) -> None:
        if self._shown:
            print(file=sys.stderr)


def _format_of(arguments: argparse.Namespace) -> str:
    if arguments.format:
        return str(arguments.format)
    return "torch" if arguments.to.endswith((".pt", ".pth", ".bin")) else "safetensors"


def _exported(arguments: argparse.Namespace) -> Exported:
    shown = _Shown()
    commit: Commit = "newest" if arguments.step is None else arguments.step
    try:
        with Store(arguments.drives, partition=arguments.partition or 0, arena_bytes=_ARENA_BYTES,
                   hugetlb=False, commit=commit, read_only=True) as store:
            if arguments.partition is None:
                _check_is_all(arguments.drives, decoded(committed_extra(store)).rank[1]
                              if store.committed else 0)
            return export(store, arguments.to, _format_of(arguments),  # type: ignore[arg-type]
                          arguments.what, shard_bytes=arguments.shard,
                          overwrite=arguments.overwrite, progress=shown,
                          ranks="all" if arguments.partition is None else "one")
    finally:
        shown.end()


def _check_is_all(drives: List[str], count: int) -> None:
    """
    :param count: of ranks that have made the commit of partition 0
    :raises ValueError: another partition has one of its own
    """
    partition = 1
    while count <= 1:
        try:
            is_there = committed(drives, partition) is not None
        except SpillwayError:  # no such partition, or drives are missing
            return
        if is_there:
            raise ValueError(f"partition {partition} of the store has a commit, too: say which, by "
                             "--partition")
        partition += 1


def _fail(error: Union[OSError, ValueError], arguments: argparse.Namespace) -> int:
    number = getattr(error, "errno", None) or errno.EINVAL
    words = str(getattr(error, "strerror", None) or error)
    named: Optional[str] = getattr(error, "filename", None)
    if named:
        words = f"{named}: {words}"
    if isinstance(error, FileExistsError):
        words += ": --overwrite replaces it"
    if arguments.json:
        print(json.dumps({"error": words, "errno": number}))
    print(f"spillway: {words}", file=sys.stderr)
    return _REFUSED if number in _REFUSALS else _FAILED


def main(words: List[str]) -> int:
    """Return: the exit status."""
    arguments = _parser().parse_args(words)
    try:
        exported = _exported(arguments)
    except (OSError, ValueError, TypeError) as error:
        return _fail(error, arguments)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        print("spillway: interrupted, nothing was written", file=sys.stderr)
        return _INTERRUPTED
    if arguments.json:
        print(json.dumps({"step": exported.step, "files": exported.files,
                          "tensors": exported.tensors, "bytes": exported.bytes}))
    else:
        first = os.path.basename(exported.files[0])
        more = f" and {len(exported.files) - 1} more" if len(exported.files) > 1 else ""
        print(f"step {exported.step}: {exported.tensors} tensors, "
              f"{bytes_text(exported.bytes)}, in {first}{more}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
