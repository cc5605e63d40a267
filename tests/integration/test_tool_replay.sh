#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_tool_replay.sh - spillway replay: traces, drives simulated and real, reports, pictures, wrong usage
. "$(dirname "$0")/../lib.sh"
need python3

trace=$TEST_TMP/small.jsonl
nan=(--bandwidth nan)

# A step of four layers with four tensors of 1 MB each, twice; half of the memory at least must leave.
python3 - "$trace" <<'END'
import json, sys
lines, ns, tensor = [{"format": "spillway-trace", "version": 1, "model": "four <layers> & \"quotes\""}], 0, 0
for step in range(2):
    lines.append({"event": "step", "ns": ns})
    saved = []
    for layer in range(4):
        lines.append({"event": "scope_enter", "ns": ns, "scope": layer + 1})
        for _ in range(4):
            ns, tensor = ns + 2000000, tensor + 1
            saved.append(tensor)
            lines.append({"event": "offer", "ns": ns, "tensor": tensor, "storage": tensor, "version": 0, "storage_bytes": 1000001,
                          "offset": 0, "bytes": 1000001, "result": "keep"})
        lines.append({"event": "scope_leave", "ns": ns})
    lines.append({"event": "stage", "ns": ns, "micro_batch": 0, "stage": "backward", "next_micro_batch": 0, "next_stage": "forward"})
    for number in reversed(saved):
        lines.append({"event": "take", "ns": ns, "tensor": number, "offset": 3, "bytes": 999998, "wait_ns": 0})
        ns += 4000000
        lines.append({"event": "release", "ns": ns, "tensor": number})
open(sys.argv[1], "w").write("".join(json.dumps(line) + "\n" for line in lines))
END

# json EXPRESSION: true of the document that the last expect_exit printed on standard output, as d.
json() {
    python3 -c "
import json, sys
text = open(sys.argv[1]).read()
d, end = json.JSONDecoder().raw_decode(text[text.index('{'):])
assert $1, d" "$OUTPUT" || fail "JSON: $1"
}

# pictures KIND...: both are well-formed, and show compute, memory, and at least these transfers. The Chrome trace is as its format says:
# in order of time, spans of a track within each other, every transfer begun and ended once, every counter a number.
pictures() {
    expect_true "pictures are well-formed" python3 - "$TEST_TMP/step.json" "$TEST_TMP/step.svg" "$@" <<'END'
import json, sys, xml.etree.ElementTree as tree
document = json.load(open(sys.argv[1]))
assert document["displayTimeUnit"] == "ms", document.keys()
events = document["traceEvents"]
assert all(isinstance(event["pid"], int) and isinstance(event["tid"], int) and event["name"] for event in events)
timed = [event for event in events if event["ph"] != "M"]
assert {event["ph"] for event in timed} <= {"X", "b", "e", "C"} and {event["ph"] for event in timed} >= {"X", "C"}
assert all(event["ts"] >= 0 for event in timed)
assert all(one["ts"] <= other["ts"] for one, other in zip(timed, timed[1:])), "not in order"
tracks, open_spans, transfers = {}, {}, {}
for event in events:
    if event["ph"] == "M" and event["name"] == "thread_name":
        tracks[event["tid"]] = event["args"]["name"]
for event in timed:
    if event["ph"] == "X":
        spans = open_spans.setdefault(event["tid"], [])
        while spans and spans[-1] <= event["ts"]:
            spans.pop()
        end = event["ts"] + event["dur"]
        assert event["dur"] >= 0 and (not spans or end <= spans[-1] + 0.002), event # of roundings
        spans.append(end)
    elif event["ph"] == "C":
        assert event["args"] and all(isinstance(value, (int, float)) and value >= 0 for value in event["args"].values()), event
    else:
        transfers.setdefault((event["cat"], event["id"]), []).append(event)
assert all([event["ph"] for event in both] == ["b", "e"] and both[0]["args"]["bytes"] > 0 for both in transfers.values()), transfers
assert {event["tid"] for event in timed if event["ph"] in "Xbe"} <= set(tracks), tracks
assert set(tracks.values()) == {"passes", "scopes", "waiting for I/O", "writes", "reads"}, tracks
names = {event["name"] for event in timed}
assert {"scope 1", "scope 4", "forward of micro-batch 0", "backward of micro-batch 0", "activations"} | set(sys.argv[3:]) <= names, names
assert max(event["args"]["bytes"] for event in timed if event["ph"] == "C") > 1000000
root = tree.parse(sys.argv[2]).getroot()
words = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
assert {"compute", "writes", "reads", "memory", "if all were kept"} <= words, words
assert "four <layers> & \"quotes\"" in words, words
assert "nan" not in open(sys.argv[2]).read()
END
}

begin "help teaches"
expect_exit 0 "$SPILLWAY" replay --help
expect_output "Examples:" "usage: spillway replay TRACE" --bandwidth --devices --mode --chrome --svg
expect_exit 0 "$SPILLWAY" help
expect_output replay

begin "wrong usage exits with 2"
expect_exit 2 "$SPILLWAY" replay
expect_output TRACE
expect_exit 2 "$SPILLWAY" replay "$trace"
expect_output --bandwidth
expect_exit 2 "$SPILLWAY" replay "$trace" "$trace" --bandwidth 1GB
expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth 1GB --devices "$trace"
expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth 1GB --mode slowest
expect_output "fastest, budget"
expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth 1GB --mode budget
expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth 1GB --budget 1m
expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth 1GB --recompute --mode spill
expect_output --mode=budget
for wrong in 0 fast "1GB," 1GB,2GB,3GB,4GB -1; do
    expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth "$wrong"
done
expect_exit 2 "$SPILLWAY" replay "$trace" "${nan[@]}"
for wrong in 0 nan 1x 1e9 -1; do
    expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth 1GB --speed "$wrong"
    expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth 1GB --scale "$wrong"
done
expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth 1GB --steps 0
expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth 1GB --dip 3
expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth 1GB --dip 4-3
expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth 1GB --dip 8-14
expect_output --steps
# Of which nothing, or less than a byte, is left.
for wrong in 1 999 1GB,1; do
    expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth "$wrong" --dip 2-3
    expect_output "1000 bytes per second"
done
expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth 100KB --scale 0.001
expect_output --scale
expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth 2GB --mode budget --budget 400
expect_output "--budget: 400 bytes, less than can be meant" "400GB"
expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth 2GB --wear 12
expect_output "--wear: 12 bytes per day, less than can be meant"
expect_exit 0 "$SPILLWAY" replay "$trace" --bandwidth 1KB --dip 2-3 --mode spill --steps 3

begin "a bad trace exits with 1 and names the line"
expect_exit 1 "$SPILLWAY" replay "$TEST_TMP/missing" --bandwidth 1GB
expect_output "$TEST_TMP/missing"
{ head -n 7 "$trace" && echo '{"event":"offer","ns":1}' && tail -n 3 "$trace"; } >"$TEST_TMP/bad.jsonl"
expect_exit 1 "$SPILLWAY" replay "$TEST_TMP/bad.jsonl" --bandwidth 1GB --json
expect_output "bad.jsonl, line 8"
json "d['errno'] == 74"
head -c 3000 "$trace" | gzip >"$TEST_TMP/cut.jsonl.gz"
expect_exit 1 "$SPILLWAY" replay "$TEST_TMP/cut.jsonl.gz" --bandwidth 1GB
expect_output "the file ends within the line"
expect_exit 1 "$SPILLWAY" replay "$trace" --bandwidth 1GB --step 3
expect_output "no step 3"
sed 's/"ns": [0-9]*/"ns": 7/' "$trace" >"$TEST_TMP/still.jsonl"
expect_exit 1 "$SPILLWAY" replay "$TEST_TMP/still.jsonl" --bandwidth 1GB --json
expect_output "takes no time"

begin "a simulated drive: the report"
expect_exit 0 "$SPILLWAY" replay "$trace" --bandwidth 4GB --mode spill --chrome "$TEST_TMP/step.json" --svg "$TEST_TMP/step.svg"
expect_output "OVER IDEAL" "lower bound" "four <layers>" "simulated: 4GB"
pictures write read
expect_exit 0 "$SPILLWAY" replay "$trace" --bandwidth 4GB --mode spill --json
json "{'step_seconds', 'ideal_seconds', 'stall_seconds', 'activation_peak_bytes', 'bytes_written', 'bytes_read', 'bytes_forwarded'} <= set(d)"
json "len(d['steps']) == 6 and all('plan' in s for s in d['steps'])"
json "abs(d['ideal_seconds'] - 0.096) < 1e-9 and d['step_seconds'] >= d['ideal_seconds']"
json "d['keep_all_bytes'] == 16000016 and d['activation_peak_bytes'] <= d['keep_all_bytes'] / 2"
json "d['bytes_written'] == d['bytes_read'] + d['bytes_forwarded'] > 0"

begin "what a trace says of itself does nothing to a terminal"
sed '1s/"model": "[^<]*</"model": "\\u001b[2Jfour </' "$trace" >"$TEST_TMP/hostile.jsonl"
for command in "replay --bandwidth 4GB" plan; do
    # shellcheck disable=SC2086
    expect_exit 0 "$SPILLWAY" $command --trace "$TEST_TMP/hostile.jsonl"
    expect_output "?[2Jfour <layers>"
    expect_no_output $'\033'
    # shellcheck disable=SC2086
    expect_exit 0 "$SPILLWAY" $command --trace "$TEST_TMP/hostile.jsonl" --json
    json "d['model'].startswith('\x1b[2Jfour <layers>')"
done

begin "a cap on wear: no step writes more than its own time's share of a day"
expect_exit 0 "$SPILLWAY" replay "$trace" --bandwidth 4GB --json
json "d['steps'][-1]['bytes_written'] > 5e12 / 86400 * d['steps'][-1]['step_seconds']"
expect_exit 0 "$SPILLWAY" replay "$trace" --bandwidth 4GB --wear 5TB --json
json "all(0 < s['bytes_written'] <= 5e12 / 86400 * s['step_seconds'] for s in d['steps'][2:])"
expect_output "the drives are worn by no more than 5000 GB a day"
expect_exit 2 "$SPILLWAY" replay "$trace" --bandwidth 4GB --wear 5TB --mode positional
expect_exit 2 "$SPILLWAY" replay "$trace" --wear 5TB --mode keep

begin "simulated time: the same result every time, whatever the machine does"
"$SPILLWAY" replay "$trace" --bandwidth 300MB --mode spill --json >"$TEST_TMP/first"
"$SPILLWAY" replay "$trace" --bandwidth 300MB --mode spill --json >"$TEST_TMP/second"
expect_true "equal" cmp "$TEST_TMP/first" "$TEST_TMP/second"

begin "compressed, scaled, faster: the same step"
gzip -k "$trace"
expect_exit 0 "$SPILLWAY" replay "$trace.gz" --bandwidth 4GB --mode spill --scale 0.25 --speed 2 --json
json "abs(d['ideal_seconds'] - 0.048) < 1e-9 and abs(d['keep_all_bytes'] - 16000016) < 100"

begin "a slow drive stalls the fixed rule, and keeping all never"
expect_exit 0 "$SPILLWAY" replay "$trace" --bandwidth 50MB --mode spill --json
json "d['stall_seconds'] > 0.01 and d['step_seconds'] > 1.1 * d['ideal_seconds']"
json "abs(d['step_seconds'] - d['ideal_seconds'] - d['stall_seconds']) < 1e-6"
expect_exit 0 "$SPILLWAY" replay "$trace" --mode keep --steps 1 --json
json "d['bytes_written'] == 0 and d['stall_seconds'] == 0 and d['activation_peak_bytes'] == d['keep_all_bytes']"

begin "a drive that is half as fast for a while"
expect_exit 0 "$SPILLWAY" replay "$trace" --bandwidth 100MB,4GB,4GB --mode spill --dip 3-4 --steps 6 --json
json "d['steps'][2]['bytes_written'] < d['steps'][1]['bytes_written'] == d['steps'][5]['bytes_written']"

# steps OPTION...: of a recorded step, small, at a speed that wants some 1 to 2 GB/s.
steps() {
    "$SPILLWAY" replay "$ROOT/tests/traces/$1.jsonl.gz" --speed 40 --scale 0.02 --json "${@:2}"
}

begin "recorded steps: plans cost no time, and memory falls as bandwidth rises"
for name in gpt bert t5; do
    for rate in 8GB 1GB 250MB; do
        steps $name --bandwidth $rate --steps 4 >"$TEST_TMP/$name.$rate"
        steps $name --bandwidth $rate --steps 4 --mode positional >"$TEST_TMP/$name.$rate.positional"
    done
done
expect_true "the targets of docs/TRACES.md" python3 - "$TEST_TMP" <<'END'
import json, sys
for name in "gpt", "bert", "t5":
    runs = [json.load(open(f"{sys.argv[1]}/{name}.{rate}")) for rate in ("8GB", "1GB", "250MB")]
    others = [json.load(open(f"{sys.argv[1]}/{name}.{rate}.positional")) for rate in ("8GB", "1GB", "250MB")]
    assert all(run["over_ideal_max"] <= 1.02 for run in runs), name
    peaks = [run["activation_peak_bytes"] for run in runs]
    assert peaks == sorted(peaks) and peaks[-1] <= runs[-1]["keep_all_bytes"], (name, peaks)
    assert peaks[0] <= 1.25 * runs[0]["lower_bound_bytes"], (name, peaks)
    # What is planned is never worse than the positional rule; what comes of it, by what ends between two calls.
    for run, other in zip(runs, others):
        assert run["activation_peak_bytes"] <= 1.06 * other["activation_peak_bytes"], (name, run, other)
END

begin "a recorded step on a drive that is half as fast for a while: two steps stall at most"
for name in gpt t5; do
    steps $name --bandwidth 1GB --dip 6-10 --steps 15 >"$OUTPUT"
    json "not any(s['stall_seconds'] > 0.02 * d['ideal_seconds'] for s in d['steps'][7:10] + d['steps'][12:])"
done

begin "a budget is kept"
steps bert --bandwidth 1GB --mode budget --budget 250MiB --steps 4 >"$OUTPUT"
json "d['activation_peak_bytes'] <= 250 << 20 and d['bytes_written'] > 0"

begin "a budget that the drive is too slow for is kept by recomputing, in the time that the plan says"
steps bert --bandwidth 250MB --mode budget --budget 150MiB --recompute --steps 8 >"$OUTPUT"
json "all(s['activation_peak_bytes'] <= 150 << 20 and s['recomputed_seconds'] > 0 for s in d['steps'][2:])"
json "all(s['step_seconds'] <= 1.05 * s['plan']['step_seconds'] for s in d['steps'][4:])"
json "all(abs(s['step_seconds'] - d['ideal_seconds'] - s['stall_seconds'] - s['held_back_seconds'] - s['recomputed_seconds']) < 1e-6
         for s in d['steps'])"
steps bert --bandwidth 250MB --mode budget --budget 150MiB --steps 4 >"$OUTPUT"
json "d['activation_peak_bytes'] > 150 << 20 and d['steps'][-1]['plan']['scopes_recomputed'] == 0"

begin "drives: must hold a store, and are handed back as they were"
make_file plain 64M
unchanged "$plain" expect_exit 1 "$SPILLWAY" replay "$trace" --devices "$plain"
expect_output "$plain"

begin "drives: the step comes back right, and every number is there"
if is_root; then
    make_loop one 64M
    make_loop two 64M
else
    make_file one 64M
    make_file two 64M
fi
expect_exit 0 "$SPILLWAY" format --devices "$one,$two"
expect_exit 0 "$SPILLWAY" replay "$trace" --devices "$one,$two" --mode spill --speed 0.5 --steps 3 --chrome "$TEST_TMP/step.json" \
    --svg "$TEST_TMP/step.svg" --json
# How much comes back from them depends on how busy the machine is.
json "sum(s['bytes_written'] for s in d['steps']) > 0 and d['step_seconds'] >= d['ideal_seconds'] and len(d['steps']) == 3"
pictures
expect_exit 0 "$SPILLWAY" check --devices "$one,$two"
expect_exit 1 "$SPILLWAY" replay "$trace" --devices "$one,$two" --mode spill --svg "$TEST_TMP/missing/step.svg"
expect_output "$TEST_TMP/missing/step.svg"

# interrupted SIGNAL [OPTION...]: a replay that would take minutes is given the signal once it says that its first repetition has ended.
# Its output is in $OUTPUT, its messages in $TEST_TMP/errors, its exit status in $status.
replaying=
stop_replaying() {
    [ -z "$replaying" ] || kill -KILL "$replaying"
}
on_exit stop_replaying
interrupted() {
    rm -f "$TEST_TMP/errors" # of the one before, which says the same
    # A shell may have started this with signals ignored, and so would what it starts.
    env --default-signal=INT,TERM,HUP "$SPILLWAY" replay "$trace" --devices "$one,$two" --speed 0.5 --steps 900 --verbose "${@:2}" \
        >"$OUTPUT" 2>"$TEST_TMP/errors" &
    replaying=$!
    for _ in $(seq 600); do
        ! grep -qs "1 of 900" "$TEST_TMP/errors" || break
        sleep 0.05
    done
    kill "-$1" "$replaying"
    status=0
    wait "$replaying" || status=$?
    replaying=
}

expect_exit 0 "$SPILLWAY" info --devices "$one,$two" --json
uuid=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["store"]["store_uuid"])' "$OUTPUT")
for signal in INT TERM HUP; do
    begin "SIG$signal ends a replay: what was measured is reported as partial, and nothing stays behind"
    interrupted $signal --json --svg "$TEST_TMP/partial.svg"
    expect_equal 130 "$status" "exit status"
    json "d['interrupted'] is True and 1 <= d['replays'] == len(d['steps']) < 900 and d['step_seconds'] >= d['ideal_seconds']"
    expect_true "says that there is no picture" grep -q "no timeline was written" "$TEST_TMP/errors"
    expect_true "no picture" test ! -e "$TEST_TMP/partial.svg"
    expect_true "no status page is left" test ! -e "/dev/shm/spillway-$uuid-0"
    expect_exit 0 "$SPILLWAY" check --devices "$one,$two"
done

begin "an interrupted replay says so in its report"
interrupted INT
expect_equal 130 "$status" "exit status"
expect_output "OVER IDEAL" "Interrupted: this is what" "of 900 replays measured"
