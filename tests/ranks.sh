#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/ranks.sh - processes that have a store open and use it, for bash tests; and others that must be refused meanwhile
# A rank: opens a partition, says so, and puts, gets and compares until its input ends; then closes, and says so.
cat >"$TEST_TMP/rank.py" <<'END'
import logging, os, select, sys
import spillway

logging.getLogger("spillway").addHandler(logging.NullHandler())  # what is read here are a rank's own words
devices, partition = sys.argv[1].split(","), int(sys.argv[2])
try:
    store = spillway.Store(devices, partition=partition, arena_bytes=16 << 20)
except OSError as error:
    print("refused:", error, flush=True)
    sys.exit(3)
if "fork" in sys.argv[3:]:
    child = os.fork()
    if child == 0:
        os.read(0, 1)
        os._exit(0)
    print("forked", child, flush=True)
print("open", flush=True)
rounds = 0
while rounds == 0 or not select.select([0], [], [], 0)[0]:
    blocks = [os.urandom(1000) * 1050 for _ in range(4)]
    objects = [store.put(block) for block in blocks]
    if any(store.get(obj, len(block)) != block for obj, block in zip(objects, blocks)):
        print("other bytes came back", flush=True)
        sys.exit(1)
    for obj in objects:
        store.free(obj)
    rounds += 1
store.close()
print("closed after", rounds, "rounds", flush=True)
END
export PYTHONPATH=$ROOT/python SPILLWAY_LIBRARY=$SPW_BUILD/libspillway.so

# start_rank NAME DEVICES PARTITION [COMMAND...]: until it has opened its partition, or was refused; its words so far are in $said.
rank_options=
declare -A rank_pid=() rank_input=() rank_output=()
said=
start_rank() {
    local name=$1 devices=$2 partition=$3 input output line
    shift 3
    rm -f "$TEST_TMP/$name.in" "$TEST_TMP/$name.out"
    mkfifo "$TEST_TMP/$name.in" "$TEST_TMP/$name.out"
    (
        # The ends of the others' pipes: while this rank has them, theirs does not end.
        for line in "${rank_input[@]}" "${rank_output[@]}"; do
            exec {line}>&-
        done
        exec "${@:-env}" python3 "$TEST_TMP/rank.py" "$devices" "$partition" $rank_options <"$TEST_TMP/$name.in" >"$TEST_TMP/$name.out" 2>&1
    ) &
    rank_pid[$name]=$!
    on_exit kill_quietly $!
    exec {input}>"$TEST_TMP/$name.in" {output}<"$TEST_TMP/$name.out"
    rank_input[$name]=$input
    rank_output[$name]=$output
    said=
    while read -ru "$output" line; do
        said+=$line$'\n'
        [[ $line != open ]] || return 0
    done
    [[ $said == refused:* ]] || fail "rank $name: $said"
}

hang_up() {
    local input=${rank_input[$1]} output=${rank_output[$1]}
    exec {input}>&- {output}<&-
    unset "rank_input[$1]" "rank_output[$1]"
}

# end_rank NAME: it closes its store; all that it put came back.
end_rank() {
    local status=0 line='' input=${rank_input[$1]}
    exec {input}>&-
    wait "${rank_pid[$1]}" || status=$?
    read -ru "${rank_output[$1]}" line || true
    expect_equal 0 "$status" "exit status of rank $1, which said: $said"
    [[ $line == "closed after "[1-9]* ]] || fail "rank $1: $line"
    hang_up "$1"
}

kill_rank() {
    kill -9 "${rank_pid[$1]}"
    wait "${rank_pid[$1]}" 2>/dev/null || true
}

# expect_refused NAME WORDS: of a rank that was started.
expect_refused() {
    wait "${rank_pid[$1]}" 2>/dev/null || true
    [[ $said == refused:*$2* ]] || fail "rank $1 was not refused with \"$2\": $said"
    hang_up "$1"
}

expect_free() {
    expect_true "$1 is free" python3 "$ROOT/tests/drive.py" free "$1"
}

expect_claimed() {
    if python3 "$ROOT/tests/drive.py" free "$1" 2>/dev/null; then
        fail "$1 is not claimed"
    fi
}

# refused_by_kernel TEXT COMMAND...: it fails, and says so in these words (a pattern), not for another reason.
refused_by_kernel() {
    local words=$1 status=0
    shift
    timeout 60 "$@" >"$OUTPUT" 2>&1 </dev/null || status=$?
    if [ "$status" -eq 0 ]; then
        fail "was not refused: $*"
    elif ! grep -qiE -- "$words" "$OUTPUT"; then
        fail "was refused for another reason: $*"
        sed 's/^/    | /' "$OUTPUT"
    fi
}

# shellcheck disable=SC2034 # used by the scripts
busy='busy|open, or writes|in use|mounted|device has a signature|temporarily unavailable|exclusively'
