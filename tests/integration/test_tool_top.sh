#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_tool_top.sh - top, info and revive tell about a store that another process has open, and only then
. "$(dirname "$0")/../lib.sh"
need python3

make_file one 64M
make_file two 64M

begin "a store is shown while a process has it open"
expect_exit 0 "$SPILLWAY" format --devices "$one,$two"
"$SPILLWAY" bench --level=store --filename="$one:$two" --rw=write --object-size=1m --size=16m --time-based --runtime=60 \
    --allow-destructive >"$TEST_TMP/bench.log" 2>&1 &
holder=$!
stop_holder() { kill -INT "$holder" 2>/dev/null || true; }
on_exit stop_holder
# The page appears when the store is open: an event without a descriptor, so it is looked for, at most ten seconds.
for _ in $(seq 100); do
    expect_exit 0 "$SPILLWAY" info --devices "$one,$two" --json
    grep -q '"pid"' "$OUTPUT" && break
    sleep 0.1
done
expect_output "\"pid\": $holder"
expect_exit 0 "$SPILLWAY" info --devices "$one,$two"
expect_output "partition 0, in process $holder"
expect_exit 0 "$SPILLWAY" top --once
expect_output "process $holder"
# Rates and latencies are those of the last moment: of one in which the machine let no write end there are none, so again.
show_rates() {
    expect_exit 0 "$SPILLWAY" top --once --json
    python3 - "$OUTPUT" "$holder" "$one" <<'PYTHON'
import json, sys
mine = [p for p in json.load(open(sys.argv[1]))["partitions"] if p["pid"] == int(sys.argv[2])]
assert len(mine) == 1, mine
drives = mine[0]["drives"]
assert len(drives) == 2 and drives[0]["path"] == sys.argv[3], drives
assert abs(sum(d["share"] for d in drives) - 1) < 1e-6, drives
busy = sum(d["write_bytes_per_second"] for d in drives) > 0
sys.exit(0 if busy and all(d["write_latency_ns_p99"] >= d["write_latency_ns_p50"] > 0 for d in drives) else 2)
PYTHON
}
for _ in $(seq 20); do
    told=0
    show_rates || told=$?
    [ "$told" -eq 2 ] || break
done
[ "$told" -eq 0 ] || fail "what top's JSON says"

begin "wear: what is written, per day, and how long that lasts"
expect_exit 0 "$SPILLWAY" top --once
expect_output "wear, since it was opened" "--endurance names a rating" unknown
expect_exit 0 "$SPILLWAY" top --once --endurance 600
expect_output "taken for new" "/day"
expect_exit 0 "$SPILLWAY" top --once --endurance 600 --json
python3 - "$OUTPUT" "$holder" <<'PYTHON' || fail "what top's JSON says of wear"
import json, sys
mine = [p for p in json.load(open(sys.argv[1]))["partitions"] if p["pid"] == int(sys.argv[2])][0]
for drive in mine["drives"]:
    wear = drive["wear"]
    per_day = drive["bytes_written"] / mine["open_seconds"] * 86400
    assert 0.9 < wear["bytes_per_day"] / per_day < 1.1, (wear, mine)
    assert abs(wear["years"] * wear["bytes_per_day"] * 365.25 / 600e12 - 1) < 1e-9, wear
    assert wear["basis"] == "rating" and wear["percentage_used"] is None and wear["reason"], wear
PYTHON
expect_exit 2 "$SPILLWAY" top --endurance -1

begin "q ends it"
python3 - "$SPILLWAY" <<'PYTHON' || fail "q on a terminal"
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execl(sys.argv[1], "spillway", "top", "--interval", "1")
shown = b""
while b"open in process" not in shown:
    shown += os.read(terminal, 65536)
os.write(terminal, b"xq")
try:
    while os.read(terminal, 65536):
        pass
except OSError:
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
PYTHON

begin "a drive in service, or of no store, is not revived"
expect_exit 1 "$SPILLWAY" revive --devices "$one"
expect_output "is in service"
expect_exit 1 "$SPILLWAY" revive --devices "$TEST_TMP/none"
expect_output "no store that is open has this drive"
expect_exit 2 "$SPILLWAY" revive

begin "after the process has ended nothing is shown"
kill -INT "$holder"
wait "$holder" || true
expect_exit 0 "$SPILLWAY" info --devices "$one,$two" --json
if grep -q '"pid"' "$OUTPUT"; then fail "still open"; fi
expect_exit 0 "$SPILLWAY" top --once
if grep -q "process $holder" "$OUTPUT"; then fail "still shown"; fi

begin "a full /dev/shm costs the page, not the process"
if is_root && unshare --mount true 2>/dev/null; then
    expect_exit 0 unshare --mount sh -c "mount -t tmpfs -o size=16k tmpfs /dev/shm && head -c 16k /dev/zero >/dev/shm/full;
        exec '$SPILLWAY' bench --level=store --filename='$one:$two' --rw=write --object-size=1m --size=4m --allow-destructive"
    expect_output "cannot publish the store's state"
else
    skip "needs root and unshare"
fi

begin "wrong usage"
for interval in 0 -3 0.05 1e9 nan 1s; do
    expect_exit 2 "$SPILLWAY" top --interval "$interval"
    expect_output "not a number from 0.1 to 86400"
done
expect_exit 0 "$SPILLWAY" top --once --interval 0.5
expect_exit 2 "$SPILLWAY" top --twice
