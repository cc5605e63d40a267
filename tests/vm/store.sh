# SPDX-License-Identifier: MIT
# tests/vm/store.sh - sourced by bash tests of the virtual machine, after tests/lib.sh: drives without anything on them, blocks on them, and a store in use
# shellcheck shell=bash

# clear_drives DRIVE...: whatever ran on them before.
clear_drives() {
    local drive
    for drive in "$@"; do
        blkdiscard -z "$drive"
    done
}

# expect_same_both_ways DRIVE SIZE DEPTH: what is written past the block layer is read through it, and the other way round.
expect_same_both_ways() {
    local options=(--filename="$1" --bs=768k --size="$2" --iodepth="$3" --verify=xxh3) pair writer reader
    for pair in "nvme io_uring" "io_uring nvme"; do
        read -r writer reader <<<"$pair"
        expect_exit 0 "$SPILLWAY" bench "${options[@]}" --backend="$writer" --rw=write
        expect_exit 0 "$SPILLWAY" bench "${options[@]}" --backend="$reader" --rw=read
    done
}

joined() {
    local IFS=$1
    shift
    echo "$*"
}

# hold_store DRIVE...: a process works on the store on these drives until let_go.
hold_store() {
    "$SPILLWAY" bench --level=store --filename="$(joined : "$@")" --rw=write --object-size=1m --size=16m --time_based --runtime=60 \
        >"$TEST_TMP/holder" 2>&1 &
    store_holder=$!
    until "$SPILLWAY" info --devices "$(joined , "$@")" --json | grep -q '"partitions_in_use": 1'; do
        kill -0 "$store_holder" || break
        sleep 0.2
    done
}

let_go() {
    kill "$store_holder"
    wait "$store_holder" || true
}
