#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_tool_export.sh - counters as OpenMetrics: the text, the server, whom it does not serve, the dashboard
. "$(dirname "$0")/../lib.sh"
need python3

reader=$ROOT/tests/integration/openmetrics.py
make_file one 64M
make_file two 64M

# metrics EXPRESSION: true of the samples of our store in what the last command printed, as m: {name: [[labels, value]...]}.
metrics() {
    python3 "$reader" "$OUTPUT" "$ROOT/docs/grafana.json" >"$TEST_TMP/samples" || fail "the text is not OpenMetrics"
    python3 -c 'import json, sys
m = {name: [pair for pair in found if pair[0]["store"] == sys.argv[3]] for name, found in json.load(open(sys.argv[1])).items()}
assert eval(sys.argv[2])' "$TEST_TMP/samples" "$1" "$uuid" || fail "$1"
}

begin "without a store there are heads alone"
expect_exit 0 "$SPILLWAY" top --openmetrics
python3 "$reader" "$OUTPUT" >/dev/null || fail "the text is not OpenMetrics"
expect_exit 2 "$SPILLWAY" top --openmetrics --json

begin "a training run: drives, store, steps and plan"
expect_exit 0 "$SPILLWAY" format --devices "$one,$two"
uuid=$("$SPILLWAY" info --devices "$one,$two" --json | sed -n 's/.*"store_uuid": "\([^"]*\)".*/\1/p')
"$SPILLWAY" replay "$ROOT/tests/traces/bert.jsonl.gz" --devices "$one,$two" --scale 0.01 --speed 20 --steps 1000 --wear 100TB \
    >"$TEST_TMP/replay.log" 2>&1 &
trainer=$!
stop_trainer() { kill -INT "$trainer" 2>/dev/null || true; }
on_exit stop_trainer
# The plan is published with a step after it: an event without a descriptor, so it is looked for, at most twenty seconds.
for _ in $(seq 200); do
    expect_exit 0 "$SPILLWAY" top --openmetrics --endurance 600
    grep -q "^spillway_cache_plan_tensors{store=\"$uuid\".*} [1-9]" "$OUTPUT" && break
    sleep 0.1
done
metrics "len(m['spillway_drive_written_bytes_total']) == 2 and all(v > 0 for _, v in m['spillway_drive_written_bytes_total'])"
metrics "m['spillway_store_info'][0][0]['pid'] == '$trainer' and m['spillway_store_info'][0][0]['command'] == 'spillway'"
metrics "{l['drive'] for l, _ in m['spillway_drive_left_bytes']} == {'$one', '$two'}"
metrics "all(v == 600e12 for _, v in m['spillway_drive_left_bytes'])"
metrics "all(v > 0 for _, v in m['spillway_drive_lasts_seconds'])"
metrics "m['spillway_cache_steps_total'][0][1] > 1 and m['spillway_cache_plan_peak_bytes'][0][1] > 0"
metrics "m['spillway_cache_wear_limit_bytes'][0][1] == 1e12"
metrics "m['spillway_drive_write_latency_seconds_count'][0][1] > 0 and m['spillway_drive_write_latency_seconds_sum'][0][1] > 0"
# What ended in the last half second is not published yet.
metrics "m['spillway_drive_write_latency_seconds_count'][0][1] <= m['spillway_drive_writes_total'][0][1] + 1000"

metrics "all(len(m[name]) == 1 for name in ('spillway_cache_step_forward_seconds', 'spillway_cache_plan_caution_ratio'))"

begin "top: the cache in words within 80 columns, and all of its counters in JSON"
expect_exit 0 "$SPILLWAY" top --once
python3 - "$OUTPUT" "$uuid" <<'PYTHON' || fail "the block of the cache"
import re, sys
text = next(part for part in open(sys.argv[1]).read().split("store ") if part.startswith(sys.argv[2]))
block = text.split("\ntensor cache, since it was opened\n")[1].split("\n\n")[0].splitlines()
assert all(0 < len(line) <= 80 for line in block), block
groups = [line.split()[0] for line in block if line[2] != " "]
assert len(groups) == len(set(groups)) and {"steps", "traffic", "reads", "plan", "step"} <= set(groups), groups
plan = next(line for line in block if line.startswith("  plan "))
assert re.search(r"\btensors [1-9][0-9]*, ", plan) and " peak " in " ".join(block), block
assert not re.search(r" 0(,|$)", "\n".join(block)), block
PYTHON
expect_exit 0 "$SPILLWAY" top --once --json
python3 - "$OUTPUT" "$uuid" "$ROOT/docs/COUNTERS.md" <<'PYTHON' || fail "the cache in top's JSON"
import json, re, sys
cache = next(p for p in json.load(open(sys.argv[1]))["partitions"] if p["store_uuid"] == sys.argv[2])["cache"]
page = open(sys.argv[3]).read().split("\n## ")
named = re.findall(r"^\| `(\w+)`", next(part for part in page if part.startswith("A tensor cache")), re.M)
assert sorted(cache) == sorted(named) and len(named) > 130, set(cache) ^ set(named)
assert cache["steps"] > 1 and cache["plan_peak_bytes"] > 0 and cache["wear_bytes_per_day"] == 10**12, cache
assert cache["waits"] == cache["prefetch_late"] + cache["misses"], cache
assert cache["bytes_kept"] == sum(v for k, v in cache.items() if k.startswith("bytes_kept_")), cache
PYTHON

begin "the same over HTTP, bounded, and to the end by an interrupt"
"$SPILLWAY" export --listen 127.0.0.1:0 --endurance 600 2>"$TEST_TMP/export.log" &
server=$!
stop_server() { kill -INT "$server" 2>/dev/null || true; }
on_exit stop_server
for _ in $(seq 100); do
    grep -q /metrics "$TEST_TMP/export.log" && break
    sleep 0.1
done
OUTPUT=$TEST_TMP/scraped
python3 - "$(sed -n 's|.*http://127.0.0.1:\([0-9]*\)/metrics|\1|p' "$TEST_TMP/export.log")" "$OUTPUT" <<'PYTHON' || fail "HTTP"
import http.client, socket, sys
port = int(sys.argv[1])

def ask(method="GET", path="/metrics"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.getheader("Connection") == "close"
    return answer.status, answer.getheader("Content-Type"), body

def raw(request, more=b""):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        try:
            client.sendall(request)
            client.sendall(more)
        except OSError:
            pass
        answer = b""
        try:
            while part := client.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        return answer.split(b"\r\n")[0]

status, kind, body = ask()
assert status == 200 and kind == "application/openmetrics-text; version=1.0.0; charset=utf-8", (status, kind)
open(sys.argv[2], "wb").write(body)
assert ask("HEAD")[::2] == (200, b"")
assert ask(path="/metrics/..")[0] == ask(path="/metricsx")[0] == ask(path="//")[0] == 404
assert ask(path="/metrics?module=x&y=%20")[:2] == ask(path="/metrics?")[:2] == (status, kind)
assert ask(path="/")[:2] == ask(path="/?")[:2] == (200, "text/html; charset=utf-8")
assert b'<a href="/metrics">' in ask(path="/")[2]
assert ask("POST")[0] == ask("DELETE")[0] == 405
for request in (b"\r\n\r\n", b"GET\r\n\r\n", b"GET /metrics\r\n\r\n", b"GET /metrics SPDY\r\n\r\n", b"\0\0\0\0\r\n\r\n",
                b"GET /metrics HTTP/1.1\0\r\n\r\n", bytes(range(256)) + b"\r\n\r\n"):
    assert raw(request) == b"HTTP/1.1 400 Bad Request", request
assert raw(b"GET /metrics HTTP/1.1\r\n", b"A: " + b"a" * 5000) in (b"HTTP/1.1 431 Request Header Fields Too Large", b"")
# Clients that say nothing take all places, and are shown out: others are served then.
idle = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(24)]
half = [client.send(b"GET /metr") for client in idle[:8]]
for client in idle[8:20]:
    client.close()
assert ask()[0] == 200
for client in idle:
    client.close()
for _ in range(50):
    assert ask()[0] == 200
PYTHON
metrics "len(m['spillway_drive_written_bytes_total']) == 2"
kill -INT "$server"
wait "$server" || fail "it ended with $?"
stop_trainer
wait "$trainer" || true

begin "addresses that are not valid"
for address in 127.0.0.1 localhost:9755 127.0.0.1: :9755 127.0.0.1:99999999 127.0.0.1:65536 127.0.0.1:99999 127.0.0.1:-1 127.0.0.1:1x "[::1]" 300.0.0.1:80; do
    expect_exit 2 "$SPILLWAY" export --listen "$address"
    expect_output "not a numeric address and port (up to 65535)"
done
