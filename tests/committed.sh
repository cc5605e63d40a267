#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/committed.sh - for tests of commands on a store with a commit; sourced after lib.sh

# commit COPIES STEP LENGTHS DRIVE...: records of these lengths, "100000 4096"; above a page their first bytes change with the step
commit() {
    cat >"$TEST_TMP/commit.py" <<'END'
import contextlib, ctypes, sys
import spillway
from spillway.state import State
copies, step, lengths = int(sys.argv[1]), int(sys.argv[2]), [int(length) for length in sys.argv[3].split()]
with spillway.Store(sys.argv[4:]) as store, \
        contextlib.closing(State(store, record_bytes_max=max(lengths), copies=copies)) as state:
    for number, length in enumerate(lengths):
        state.add(f"layer/{number}", length, b"")
    state.attach()
    for number in [number for number, length in enumerate(lengths) if length > 4096]:
        ctypes.memset(state.take(number), step + number, 1000)
        state.give(number, True)
    state.commit(step, b"")
    print("written", *(int(drive.bytes_written > 0) for drive in store.drive_stats()))
END
    PYTHONPATH="$ROOT/python" SPILLWAY_LIBRARY="$SPW_BUILD/libspillway.so" \
        expect_exit 0 python3 "$TEST_TMP/commit.py" "$@"
}

# while_open DRIVES COMMAND...: with the store on the drives, a word for each, open in another process
while_open() {
    cat >"$TEST_TMP/hold.py" <<'END'
import subprocess, sys
import spillway
with spillway.Store(sys.argv[1].split()):
    sys.exit(subprocess.run(sys.argv[2:]).returncode)
END
    PYTHONPATH="$ROOT/python" SPILLWAY_LIBRARY="$SPW_BUILD/libspillway.so" python3 "$TEST_TMP/hold.py" "$@"
}

# export_to NAME DRIVE...: what is committed, as files
export_to() {
    local to="$TEST_TMP/$1"
    shift
    rm -rf "$to"
    expect_exit 0 "$SPILLWAY" state export "$@" --to "$to"
}
