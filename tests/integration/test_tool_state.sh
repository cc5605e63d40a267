#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_tool_state.sh - state list, export, drop: output, JSON, exit codes, refusals
. "$(dirname "$0")/../lib.sh"
need python3

# commit PARTITION STEP: three records, of which the last was never changed
commit() {
    cat >"$TEST_TMP/commit.py" <<'END'
import contextlib, ctypes, sys
import spillway
from spillway.state import State
with spillway.Store(sys.argv[1:3], partition=int(sys.argv[3])) as store, \
        contextlib.closing(State(store, record_bytes_max=5 << 20)) as state:
    for number, len_bytes in enumerate((100000, 5000000, 4096)):
        state.add(f"layer/{number}", len_bytes, f"shape {number}".encode())
    state.attach()
    for number in range(2):
        data = bytes((i * 7 + number) % 251 for i in range(1000))
        ctypes.memmove(state.take(number), data, len(data))
        state.give(number, True)
    state.commit(int(sys.argv[4]), b"")
END
    PYTHONPATH="$ROOT/python" SPILLWAY_LIBRARY="$SPW_BUILD/libspillway.so" \
        expect_exit 0 python3 "$TEST_TMP/commit.py" "$one" "$two" "$@"
}

# json EXPRESSION: true of the document that the last expect_exit printed on standard output, as d.
json() {
    python3 -c "
import json, sys
text = open(sys.argv[1]).read()
d, end = json.JSONDecoder().raw_decode(text[text.index('{'):])
assert $1, d" "$OUTPUT" || fail "JSON: $1"
}

begin "help teaches, wrong usage exits with 2"
expect_exit 0 "$SPILLWAY" state --help
expect_output list export drop "Examples:"
for verb in list export drop; do
    expect_exit 0 "$SPILLWAY" state "$verb" --help
    expect_output "usage: spillway state $verb" "Examples:"
    expect_exit 2 "$SPILLWAY" state "$verb"
    expect_output "no drives given"
done
expect_exit 2 "$SPILLWAY" state
expect_output "list, export or drop"
expect_exit 2 "$SPILLWAY" state drp
expect_output "did you mean 'drop'"
expect_exit 2 "$SPILLWAY" state dump
expect_no_output "did you mean 'drop'"

begin "a store in which nothing is committed"
make_file one 64M
make_file two 64M
expect_exit 0 "$SPILLWAY" format --devices "$one,$two" --partitions 2
expect_exit 0 "$SPILLWAY" state list --devices "$one,$two"
expect_output "nothing is committed"
expect_exit 0 "$SPILLWAY" state list "$one" "$two" --json
json 'd == {"commits": []}'
expect_exit 2 "$SPILLWAY" state export "$one" "$two" --to "$TEST_TMP/out"
expect_output "2 partitions" "--partition"
expect_exit 1 "$SPILLWAY" state export "$one" "$two" --to "$TEST_TMP/out" --partition 1
expect_output "nothing is committed"
expect_exit 1 "$SPILLWAY" state list "$one" "$two" --partition 2
expect_output "partition 2 does not exist"

begin "what a program has committed is listed and exported"
commit 1 7
expect_exit 0 "$SPILLWAY" state list "$one" "$two"
expect_output "3 records" "PARTITION"
expect_exit 0 "$SPILLWAY" state list "$one" "$two" --records
expect_output "layer/0" "zeros"
expect_exit 0 "$SPILLWAY" state list "$one" "$two" --json
json 'len(d["commits"]) == 1'
json '{k: d["commits"][0][k] for k in ("partition", "step", "previous", "open")} == {"partition": 1, "step": 7, "previous": None, "open": False}'
json '[(r["name"], r["bytes"], r["stored"], r["shape"]) for r in d["commits"][0]["records"]] == [("layer/0", 100000, True, "shape 0"), ("layer/1", 5000000, True, "shape 1"), ("layer/2", 4096, False, "shape 2")]'
unchanged "$one" unchanged "$two" expect_exit 0 "$SPILLWAY" state export "$one" "$two" --partition 1 --to "$TEST_TMP/out"
expect_output "step 7: 3 records"
expect_equal 100000 "$(stat -c %s "$TEST_TMP/out/000000.bin")" "the first record"
expect_equal 5000000 "$(stat -c %s "$TEST_TMP/out/000001.bin")" "the second record"
python3 - "$TEST_TMP/out" <<'END' || fail "the bytes are others"
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
index = json.loads((folder / "index.json").read_text())
assert index["step"] == 7 and [r["file"] for r in index["records"]] == ["000000.bin", "000001.bin", "000002.bin"]
for number, record in enumerate(index["records"]):
    data = (folder / record["file"]).read_bytes()
    wanted = bytes((i * 7 + number) % 251 for i in range(1000)) if number < 2 else bytes(1000)
    assert len(data) == record["bytes"] and data[:1000] == wanted, number
END
expect_exit 3 "$SPILLWAY" state export "$one" "$two" --partition 1 --to "$TEST_TMP/out"
expect_output "File exists"
expect_exit 1 "$SPILLWAY" state export "$one" "$two" --partition 1 --to "$TEST_TMP/other" --step 6
expect_output "no commit 6" "the last is 7"

begin "the model is what the Python package exports"
expect_exit 2 "$SPILLWAY" state export "$one" "$two" --partition 1 --to "$TEST_TMP/model" --what masters
expect_output "--format safetensors or torch"
expect_exit 2 "$SPILLWAY" state export "$one" "$two" --partition 1 --to "$TEST_TMP/model" --format gguf
expect_output safetensors torch
SPILLWAY_PYTHON="$TEST_TMP/absent" expect_exit 1 "$SPILLWAY" state export "$one" "$two" --partition 1 --to "$TEST_TMP/model" --format torch
expect_output "cannot be started: No such file"

begin "what is committed is discarded only on request"
commit 1 8
expect_exit 3 "$SPILLWAY" wipe "$one" "$two" --yes
expect_output "partition 1 holds commit 8" "--erase"
expect_exit 3 "$SPILLWAY" format --force "$one" "$two"
expect_output "partition 1 holds commit 8"
unchanged "$one" unchanged "$two" expect_exit 3 "$SPILLWAY" state drop "$one" "$two" --partition 1
expect_output "--yes"
expect_exit 2 "$SPILLWAY" state drop "$one" "$two" --yes
expect_exit 0 "$SPILLWAY" state drop "$one" "$two" --partition 1 --yes
expect_output "holds nothing any more"
expect_exit 0 "$SPILLWAY" state list "$one" "$two"
expect_output "nothing is committed"
expect_exit 0 "$SPILLWAY" wipe "$one" "$two" --yes
