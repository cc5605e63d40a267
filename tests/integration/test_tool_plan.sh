#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_tool_plan.sh - spillway plan: figures, curve, JSON, wrong usage
. "$(dirname "$0")/../lib.sh"
need python3

model=(--layers 24 --hidden 4096 --heads 32 --sequence 2048)

# json EXPRESSION: true of the document that the last expect_exit printed on standard output, as d.
json() {
    python3 -c "
import json, sys
text = open(sys.argv[1]).read()
d, end = json.JSONDecoder().raw_decode(text[text.index('{'):])
assert $1, d" "$OUTPUT" || fail "JSON: $1"
}

begin "help teaches"
expect_exit 0 "$SPILLWAY" plan --help
expect_output "Examples:" "usage: spillway plan" --layers --endurance

begin "four consumer drives at 12.1 GB/s per GPU"
expect_exit 0 "$SPILLWAY" plan --bandwidth 12.1GB --drives 4 --endurance 600
expect_output "To spill that takes 3 drives that write 5.00 GB/s" "out in 4.6 days" "11.5 days"
expect_exit 0 "$SPILLWAY" plan --bandwidth 12.1GB --drives 4 --endurance 600 --json
json "abs(d['life_all_spilled']['rated_seconds'] - 4 * 600e12 / 6.05e9) < 1"
json "abs(d['life_all_spilled']['write_amplification_1_seconds'] / d['life_all_spilled']['rated_seconds'] - 2.5) < 1e-9"
json "set(d['life_all_spilled']) == {'bytes_per_day', 'rated_seconds', 'write_amplification_1_seconds'}"

begin "what can only be a number without its unit is refused, with the way out"
for wrong in "--bandwidth 12" "--bandwidth 12.5" "--bandwidth 12k" "--bandwidth 1GB --drive-write 5" "--bandwidth 1GB --drive-read 7"; do
    # shellcheck disable=SC2086 # options and their values
    expect_exit 2 "$SPILLWAY" plan $wrong
    expect_output "less than can be meant; sizes need their unit, such as"
done
expect_exit 2 "$SPILLWAY" plan --bandwidth 12
expect_output "12GB"
expect_exit 2 "$SPILLWAY" plan "$ROOT/tests/traces/gpt.jsonl.gz" --bandwidth 1GB,2
expect_output "2GB"
expect_exit 2 "$SPILLWAY" plan "${model[@]}" --efficiency 0.5
expect_output "from 1 to 100"
expect_exit 2 "$SPILLWAY" plan "${model[@]}" --endurance 600000000000000
expect_exit 2 "$SPILLWAY" plan "${model[@]}" --gpu-tflops 312000000000000

begin "all that a plan assumes is in it"
expect_exit 0 "$SPILLWAY" plan "${model[@]}" --drives 4
expect_output "Assumed" "layers 24, hidden 4096, heads 32, sequence 2048" "micro-batch 1, micro-batches 1" "attention fused, recompute none, dtype-bytes 2" \
    "gpu-tflops 312, efficiency 50 %" "drives 4, drive-write 5.00 GB/s, drive-read 7.00 GB/s, endurance 600 TB each"
expect_exit 0 "$SPILLWAY" plan "${model[@]}" --drives 4 --recompute full --json
json "d['assumptions'] == dict(layers=24, hidden=4096, heads=32, sequence=2048, vocabulary=0, micro_batch=1, micro_batches=1, tensor_parallel=1,
    pipeline_parallel=1, attention='fused', recompute='full', dtype_bytes=2, gpu_tflops=312, efficiency_percent=50, drives=4, drive_write_bytes_per_second=5e9,
    drive_read_bytes_per_second=7e9, drive_endurance_bytes=600e12)"
expect_exit 0 "$SPILLWAY" plan --bandwidth 12.1GB
expect_output "bandwidth 12.10 GB/s" "drives 3, drive-write 5.00 GB/s"
expect_exit 0 "$SPILLWAY" plan "$ROOT/tests/traces/gpt.jsonl.gz" --bandwidth 1GB --speed 40 --drives 2
expect_output "speed 40; drives 2, endurance 1200 TB of all"
expect_exit 0 "$SPILLWAY" plan "$ROOT/tests/traces/gpt.jsonl.gz" --bandwidth 1GB --json
json "d['assumptions'] == dict(speed=1, drives=1, endurance_bytes=600e12, latency_ns=100000)"

begin "a model's activations, and what the drives make of them"
expect_exit 0 "$SPILLWAY" plan "${model[@]}" --drives 4
expect_output "activations per layer" "drives to spill all" "recompute all" offload TFLOPS
expect_output "Spilling to 4 drives: activations take" "in 1.00 of the time" "Recomputing every layer:" "wears the drives out in"
expect_equal "Spilling" "$(head -c 8 "$OUTPUT")" "the first word"
expect_no_output "recompute selectively"
expect_exit 0 "$SPILLWAY" plan "${model[@]}" --drives 1 --drive-write 20MB
expect_output "Spilling gains little: 1 drive of 20.0 MB/s"
expect_exit 0 "$SPILLWAY" plan "${model[@]}" --json
json "len(d['curve']) == 15"
fused=$(sed -n '/^{/,$p' "$OUTPUT" | python3 -c "import json, sys; print(json.load(sys.stdin)['layer_activation_bytes'])")
expect_exit 2 "$SPILLWAY" plan "${model[@]}" --recompute selective
expect_output "--attention unfused"
expect_exit 0 "$SPILLWAY" plan "${model[@]}" --attention unfused --json
json "d['layer_activation_bytes'] > 2 * $fused"
expect_exit 0 "$SPILLWAY" plan "${model[@]}" --attention unfused --recompute selective --json
json "d['layer_activation_bytes'] == $fused"
json "d['layer_activation_bytes'] == 2048 * 4096 * 34 and d['step_activation_bytes'] == 24 * d['layer_activation_bytes']"
json "abs(d['bandwidth_needed_bytes_per_second'] - 2 * d['step_activation_bytes'] / d['step_seconds']) < 1"
json "d['drives'] == d['drives_needed'] == -(-d['bandwidth_needed_bytes_per_second'] // 5e9)"
json "d['peak_offload_bytes'] < d['peak_keep_bytes'] and d['bytes_written'] <= d['step_activation_bytes']"

begin "the curve: spilling costs no time, recomputing does, both lower the peak"
json "len(d['curve']) == 20"
json "all(x['step_seconds'] == y['step_seconds'] for x, y in zip(d['curve'][5:10], d['curve'][15:20]))"
json "all(x['step_seconds'] < y['step_seconds'] for x, y in zip(d['curve'][0:5], d['curve'][10:15]))"
json "all(x['peak_bytes'] > y['peak_bytes'] for x, y in zip(d['curve'][0:5], d['curve'][15:20]))"
json "all(x['bytes_written'] == 0 for x in d['curve'][:15]) and all(x['bytes_written'] > 0 for x in d['curve'][15:])"

begin "pipelines: the first stage"
expect_exit 0 "$SPILLWAY" plan "${model[@]}" --pipeline-parallel 4 --micro-batches 8 --json
json "abs(d['peak_keep_bytes'] / (24 * d['layer_activation_bytes']) - 1) < 1e-6"
json "d['step_activation_bytes'] == 6 * 8 * d['layer_activation_bytes']"

begin "a recorded step: for each bandwidth, what to spill, and what recomputing would do"
trace=$ROOT/tests/traces/gpt.jsonl.gz
expect_exit 0 "$SPILLWAY" plan --trace "$trace" --speed 40
expect_output "bandwidth to spill all" recompute POSITIONAL "LIFE, RATED" gpt.py
expect_exit 0 "$SPILLWAY" plan "$trace" --speed 40 --bandwidth 250MB,1GB,4GB --json
json "[b['write_bytes_per_second'] for b in d['bandwidths']] == [250e6, 1e9, 4e9]"
json "all(b['fastest']['stall_seconds'] == 0 for b in d['bandwidths'])"
json "d['peak_keep_bytes'] > d['bandwidths'][0]['fastest']['peak_bytes'] > d['bandwidths'][1]['fastest']['peak_bytes'] > d['bandwidths'][2]['fastest']['peak_bytes']"
json "d['peak_recompute_bytes'] < d['peak_keep_bytes'] and d['step_recompute_seconds'] > d['step_seconds']"
json "all(b['fastest']['peak_bytes'] <= b['positional']['peak_bytes'] or b['positional']['stall_seconds'] > 0 for b in d['bandwidths'])"
json "[x['percent_of_keep'] for x in d['bandwidths'][2]['budgets']] == [75, 50, 25] and all(x['feasible'] for x in d['bandwidths'][2]['budgets'])"
json "not d['bandwidths'][0]['budgets'][2]['feasible']"
json "abs(d['bandwidth_needed_bytes_per_second'] - 2 * d['step_activation_bytes'] / d['step_seconds']) < 1"
for name in bert t5; do
    expect_exit 0 "$SPILLWAY" plan "$ROOT/tests/traces/$name.jsonl.gz" --step 2 --json
    json "len(d['bandwidths']) == 8 and d['trace_step'] == 2"
done
expect_exit 1 "$SPILLWAY" plan --trace "$ROOT/README.md"
expect_output "README.md, line 1"
expect_exit 1 "$SPILLWAY" plan "$trace" --step 9
expect_exit 2 "$SPILLWAY" plan "$trace" --layers 3
for unread in "--drive-write 3GB" "--micro-batches 4" "--recompute full" "--efficiency 40"; do
    # shellcheck disable=SC2086 # an option and its value
    expect_exit 2 "$SPILLWAY" plan "$trace" $unread
    expect_output --bandwidth
done
expect_exit 2 "$SPILLWAY" plan "${model[@]}" --speed 2
expect_output --trace
expect_exit 2 "$SPILLWAY" plan "${model[@]}" --step 2
expect_exit 2 "$SPILLWAY" plan "$trace" "$trace"
expect_exit 2 "$SPILLWAY" plan "$trace" --bandwidth 1GB,
expect_exit 2 "$SPILLWAY" plan "$trace" --bandwidth 0
expect_exit 2 "$SPILLWAY" plan "$trace" --speed 0

begin "one plan of a trace: what is done with each scope, and what else would have cost"
trace=(--trace "$ROOT/tests/traces/gpt.jsonl.gz" --speed 20)
expect_exit 0 "$SPILLWAY" plan "${trace[@]}" --explain --bandwidth 250MB --budget 100MiB --svg "$TEST_TMP/plan.svg"
expect_output "the shortest step within 100 MiB" "of 12 scopes recomputed" "NEXT BEST" recompute spill
grep -q '</svg>' "$TEST_TMP/plan.svg" || fail "the picture has no end"
python3 -c "import sys, xml.dom.minidom as dom; dom.parse(sys.argv[1])" "$TEST_TMP/plan.svg" || fail "the picture is not XML"
expect_exit 0 "$SPILLWAY" plan "${trace[@]}" --explain --bandwidth 250MB --budget 100MiB --json
json "d['feasible'] and d['peak_bytes'] <= 100 << 20 and len(d['scopes']) == 12"
json "d['scopes_recomputed'] == sum(s['done'].startswith('recompute') for s in d['scopes'])"
json "abs(d['step_seconds'] - d['compute_seconds'] - d['recompute_seconds'] - d['stall_seconds']) < 1e-6"
json "all(s['ways'][s['done']]['fits'] for s in d['scopes'])"

begin "one plan: without drives, without recomputing, with others on the drives, with a limit of wear"
expect_exit 0 "$SPILLWAY" plan "${trace[@]}" --explain --no-drives --slack 40 --json
json "d['bytes_written'] == 0 and d['scopes_recomputed'] > 0 and d['step_seconds'] <= 1.4 * d['compute_seconds']"
expect_exit 0 "$SPILLWAY" plan "${trace[@]}" --explain --bandwidth 500MB --no-recompute --json
json "d['scopes_recomputed'] == 0 and d['bytes_written'] > 0"
written=$(python3 -c "import json, sys; print(json.load(open(sys.argv[1]))['bytes_written'])" <(sed -n '/^{/,$p' "$OUTPUT"))
expect_exit 0 "$SPILLWAY" plan "${trace[@]}" --explain --bandwidth 500MB --no-recompute --wear 1TB --json
json "d['bytes_written'] <= 1e12 / 86400 * d['compute_seconds'] and d['bytes_written'] < $written"
expect_exit 0 "$SPILLWAY" plan "${trace[@]}" --explain --bandwidth 500MB --no-recompute --bus 100MB --json
json "d['bus_bytes_per_second'] == 100000000 and d['bytes_written'] < $written"
expect_exit 0 "$SPILLWAY" plan "${trace[@]}" --explain --bandwidth 500MB --bus 20GB
expect_output "behind a bus of 20 GB/s"
expect_exit 0 "$SPILLWAY" plan "${trace[@]}" --explain --bandwidth 500MB --state 200MiB
expect_output "others read and write 200 MiB"
expect_exit 0 "$SPILLWAY" plan "${trace[@]}" --explain --no-drives --budget 1MiB
expect_output "cannot be met"

begin "one plan: copies of GPU tensors that stay in host memory are not written"
expect_exit 0 "$SPILLWAY" plan "${trace[@]}" --explain --no-drives --no-recompute --bus 20GB --host 1GiB --json
json "d['bytes_written'] == 0 and 0 < d['tensors_in_host_memory'] == d['tensors_spilled'] and d['host_peak_bytes'] <= 1 << 30"
json "d['peak_bytes'] < d['peak_keep_bytes'] and sum(s['bytes_in_host_memory'] for s in d['scopes']) > 0"
expect_exit 0 "$SPILLWAY" plan "${trace[@]}" --explain --bandwidth 500MB --no-recompute --bus 20GB --host 20MiB --json
json "d['bytes_written'] > 0 and d['host_bytes'] == 20 << 20"
expect_exit 0 "$SPILLWAY" plan "${trace[@]}" --explain --bandwidth 500MB --bus 20GB --host 1GiB
expect_output "1 GiB of memory for what stays there" "of host memory"
expect_exit 2 "$SPILLWAY" plan "${trace[@]}" --explain --bandwidth 500MB --host 1GiB
expect_output "--bus RATE"

begin "one plan: wrong usage"
for wrong in "--explain" "--explain --bandwidth 1GB,2GB" "--explain --bandwidth 1GB --no-drives" "--explain --bandwidth 1GB --drives 2" \
    "--budget 1GiB --bandwidth 1GB" "--no-recompute" "--bus 1GB" "--bus 1GB --host 1GiB" "--explain --bandwidth 1GB --slack -1"; do
    # shellcheck disable=SC2086 # words
    expect_exit 2 "$SPILLWAY" plan "${trace[@]}" $wrong
done
expect_exit 2 "$SPILLWAY" plan --explain --no-drives "${model[@]}"
expect_exit 1 "$SPILLWAY" plan "${trace[@]}" --explain --no-drives --svg /nonexistent/plan.svg
expect_output /nonexistent/plan.svg

begin "wrong usage exits with 2, impossible models with 1"
expect_exit 2 "$SPILLWAY" plan
expect_output --layers
expect_exit 2 "$SPILLWAY" plan --layers 24 --hidden 4096
expect_exit 2 "$SPILLWAY" plan "${model[@]}" --recompute some
expect_output "none, selective or full"
expect_exit 2 "$SPILLWAY" plan "${model[@]}" --efficiency 120
expect_exit 2 "$SPILLWAY" plan "${model[@]}" --gpu-tflops fast
expect_exit 2 "$SPILLWAY" plan "${model[@]}" --endurance -1
expect_exit 2 "$SPILLWAY" plan "${model[@]}" --endurance nan
expect_exit 2 "$SPILLWAY" plan "${model[@]}" --drive-write 0
expect_exit 2 "$SPILLWAY" plan "${model[@]}" --bandwidth 1GB
expect_exit 1 "$SPILLWAY" plan --layers 24 --hidden 4096 --heads 33
expect_output "33 heads"
expect_exit 1 "$SPILLWAY" plan "${model[@]}" --pipeline-parallel 5
expect_exit 1 "$SPILLWAY" plan "${model[@]}" --drive-write 1m
expect_output "--drives"
expect_exit 1 "$SPILLWAY" plan "${model[@]}" --micro-batch 4000000000 --drives 1 --json
json "d['errno'] == 22"
