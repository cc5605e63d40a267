#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_fio_bench.sh - the comparison with fio runs, reports what it ran, and spares drives that carry something
# layer: all
# alone: make writes to the build folder
. "$(dirname "$0")/../lib.sh"

need fio make python3
"${PYTHON:-python3}" -c 'import tomllib' 2>/dev/null || skip "needs Python 3.11"
status=0
reason=$("$ROOT/tools/fio_engine/fetch.sh" "$SPW_BUILD/fio-src" 2>&1) || status=$?
[ $status -ne 77 ] || skip "${reason##*$'\n'}"
[[ $SPW_BUILD == /* ]] || SPW_BUILD=$ROOT/$SPW_BUILD
one='' two='' three='' four='' carries='' # make_* set them
bench=(env BUILD="$SPW_BUILD" BENCH_OUT="$TEST_TMP/out" BENCH_ROUNDS=2 BENCH_SECONDS=0.1 BENCH_SIZE=32M BENCH_NO_HUGE_PAGES=1)

begin "every runner gives figures, with the command line beside them"
for name in one two three four; do
    make_file $name 64M
done
expect_exit 0 "${bench[@]}" BENCH_DEVICES="$one,$two,$three,$four" BENCH_ONLY='spill-depth-16|step-backward|four-drives-write' \
    "$ROOT/tests/bench/bench.sh"
cat >"$TEST_TMP/check.py" <<'END'
import json
import shlex
import sys

data = json.load(open(sys.argv[1]))
ran = {(s["section"], s["runner"]): s for s in data["series"]}
runners = ["fio io_uring", "fio libaio", "spillway in fio", "spillway bench"]
wanted = [(section, runner) for section in ("spill-depth-16", "step-backward", "four-drives-write") for runner in runners]
wanted += [("four-drives-write", f"spillway in fio, {what}") for what in ("striped volume", "store")]
for key in wanted:
    entry = ran.pop(key)
    assert not entry["refused"] and not entry["failures"], entry
    assert len(entry["rounds"]) == 2 and all(r["bytes"] > 0 and r["ios"] > 0 and r["cpu_seconds"] >= 0 for r in entry["rounds"]), entry
    assert abs(entry["bandwidth"]["median"] - sum(r["bandwidth"] for r in entry["rounds"]) / 2) < 1, entry
    assert entry["bandwidth"]["min"] <= entry["bandwidth"]["median"] <= entry["bandwidth"]["max"], entry
    best = [max(ran_[number]["bandwidth"] for ran_ in peers) for peers in
            [[s["rounds"] for s in data["series"] if s["peer"] and s["section"] == key[0]]] for number in (0, 1)]
    ratio = sum(r["bandwidth"] / b for r, b in zip(entry["rounds"], best)) / 2
    rows = {row["name"]: row for row in data["rows"]}
    name = f"{entry['job'].removesuffix('.fio')}: {key[0]}: {key[1]}"
    assert (name in rows) != entry["peer"], name
    if not entry["peer"]:
        assert rows[name]["command"] == entry["command"] and name in open(sys.argv[2]).read(), entry
        assert abs(rows[f"{name} / best of fio"]["value"] - ratio) < 1e-9, (entry, best)
    words = shlex.split(entry["command"])
    assert "--runtime=100ms" in words and "--iodepth=" + entry["settings"]["iodepth"] in words, words
assert not ran, ran.keys()
END
for drive in "$one" "$two" "$three" "$four"; do
    expect_true "the benchmark's own store is gone" "$SPW_BUILD/spillway" probe --devices "$drive"
    expect_output "nothing known"
done
expect_exit 0 python3 "$ROOT/python/spillway/bench/results.py" render "$TEST_TMP/out" "$TEST_TMP/none.md"
cp "$OUTPUT" "$TEST_TMP/results.md"
expect_true "the report holds what was run" python3 "$TEST_TMP/check.py" "$TEST_TMP/out/bench.json" "$TEST_TMP/results.md"

begin "a command of the report can be repeated"
command=$(python3 -c 'import json, sys
print([s["command"] for s in json.load(open(sys.argv[1]))["series"] if s["runner"] == "spillway in fio"][0])' "$TEST_TMP/out/bench.json")
expect_true "the command" bash -c "cd '$ROOT' && $command"
expect_output '"total_ios"'

begin "a verify job that fails, fails the benchmark"
printf '#!/bin/sh\ncase "$*" in\n*verify*) exit 1 ;;\nesac\nexec %s "$@"\n' "$(command -v fio)" >"$TEST_TMP/fio"
chmod +x "$TEST_TMP/fio"
expect_exit 1 env PATH="$TEST_TMP:$PATH" "${bench[@]}" BENCH_DEVICES="$one" BENCH_ONLY=verify-sequential "$ROOT/tests/bench/bench.sh"
expect_output "FAILED: verify: verify-sequential"

begin "drives that are missing, or carry something, are refused and not touched"
expect_exit 1 "${bench[@]}" BENCH_DEVICES="$TEST_TMP/nothing" "$ROOT/tests/bench/bench.sh"
expect_output "does not exist"
expect_exit 1 "${bench[@]}" BENCH_DEVICES="$one" BENCH_ONLY=no-such-job "$ROOT/tests/bench/bench.sh"
expect_output "nothing to run"
expect_exit 0 "$SPW_BUILD/spillway" format --devices "$two"
unchanged "$two" expect_exit 1 "${bench[@]}" BENCH_DEVICES="$two" "$ROOT/tests/bench/bench.sh"
expect_output "carries: spillway store"
if is_root; then
    make_loop carries 64M
    mkfs.ext4 -q "$carries"
    unchanged "$carries" expect_exit 1 "${bench[@]}" BENCH_DEVICES="$carries" "$ROOT/tests/bench/bench.sh"
    expect_output "carries: ext4"
    mkdir "$TEST_TMP/mounted"
    mount "$carries" "$TEST_TMP/mounted"
    on_exit umount "$TEST_TMP/mounted"
    expect_exit 1 env BENCH_ALLOW_DESTRUCTIVE=1 "${bench[@]}" BENCH_DEVICES="$carries" "$ROOT/tests/bench/bench.sh"
    expect_output "mounted"
fi
