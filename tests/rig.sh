#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/rig.sh - the drive rig: loop devices of a chosen number, size, block size and speed; see --help
set -Eeuo pipefail

usage() {
    cat <<'END'
tests/rig.sh - drives to test and measure on, without hardware (needs root)

  tests/rig.sh up [OPTIONS]       make the drives and print their paths, one per line
  tests/rig.sh run COMMAND...     run a command at the drives' throttled speed
  tests/rig.sh status             show the drives; exit status 1 if there is no rig
  tests/rig.sh down               remove the drives and restore everything; does nothing if there is no rig

Options of up
  --drives N        how many (4)
  --size SIZE       of each: 512M, 4G (1G)
  --block BYTES     logical block size, 512 or 4096 (512)
  --on ram|FOLDER   where the bytes are: memory (/dev/shm), or files in a folder on a disk (ram)
  --write MB/S      throttle writes of each drive, in 10^6 bytes/s; a list such as 500,500,250,500 gives each its own
  --read MB/S       the same for reads
  --paced           transfers of a drive come one after the other at that speed, as those of a drive do: both limits are needed
  --sparse          do not fill the drives; else every byte is written once, as the first write of a page is slower

Options of all
  --name NAME       several rigs side by side (main)

Memory gives the fastest drives, limited by the CPU; files on a disk behave more like real ones. Throttled drives all have the given
speed, so a measurement shows the software and not the machine. The throttle is a cgroup: it holds for what `run` starts and for
nothing else. Large requests are throttled in bursts of a tenth of a second, so measure for a few seconds or more. With --paced there are
no bursts, and reads and writes share a drive's time; that needs the kernel's io.cost (cgroup v2, CONFIG_BLK_CGROUP_IOCOST). Example:

  drives=$(tests/rig.sh up --size 2G --write 500 --read 600)
  tests/rig.sh run fio --name=w --rw=write --bs=1M --direct=1 --ioengine=io_uring --iodepth=16 --filename="$(head -n 1 <<<"$drives")"
  tests/rig.sh down

What was made is written to a file first (/run/spillway-rig.NAME, or below $SPW_RIG_STATE), so `down` also clears up after a crash.
END
}

die() {
    echo "tests/rig.sh: $*" >&2
    exit 1
}

say() {
    echo "  rig   $*" >&2
}

name=main
drives=4
size=1G
block=512
place=ram
write_limits=
read_limits=
paced=
sparse=

# ---- State: a line per thing, `file PATH`, `folder PATH`, `cgroup PATH`, `subtree_control PATH`, `cost MAJ:MIN`; written before the thing is made ----

state_file() {
    echo "${SPW_RIG_STATE:-/run}/spillway-rig.$name"
}

record() {
    echo "$*" >>"$(state_file)"
}

# recorded KIND: the paths of one kind.
recorded() {
    [ -e "$(state_file)" ] || return 0
    sed -n "s/^$1 //p" "$(state_file)"
}

# The loop devices over a recorded file, also when the file is gone.
loops_over() {
    local backing
    for backing in /sys/block/loop*/loop/backing_file; do
        [ -e "$backing" ] || continue
        case $(cat "$backing" 2>/dev/null) in
        "$1" | "$1 (deleted)") echo "/dev/$(basename "$(dirname "$(dirname "$backing")")")" ;;
        esac
    done
}

devices() {
    local file
    recorded file | while read -r file; do loops_over "$file"; done
}

# ---- Throttle ------------------------------------------------------------------------------------------------------------------------

cgroup_v1=/sys/fs/cgroup/blkio
cgroup_v2=/sys/fs/cgroup
[ -e "$cgroup_v2/cgroup.controllers" ] || cgroup_v2=$cgroup_v2/unified

make_cgroup() {
    local path
    [ -z "$paced" ] || can_pace || die "this kernel has no io.cost for cgroup v2: leave out --paced"
    if [ -z "$paced" ] && [ -e "$cgroup_v1/cgroup.procs" ]; then
        path=$cgroup_v1/spillway-rig-$name
    elif grep -qw io "$cgroup_v2/cgroup.controllers" 2>/dev/null; then
        path=$cgroup_v2/spillway-rig-$name
        if ! grep -qw io "$cgroup_v2/cgroup.subtree_control"; then
            record subtree_control "$cgroup_v2/cgroup.subtree_control"
            echo +io >"$cgroup_v2/cgroup.subtree_control"
        fi
    else
        die "this system has no blkio (v1) or io (v2) cgroup controller: leave out --read and --write"
    fi
    record cgroup "$path"
    mkdir "$path"
    [ -e "$path/io.max" ] || [ -e "$path/blkio.throttle.write_bps_device" ] || die "the kernel has no CONFIG_BLK_DEV_THROTTLING"
}

can_pace() {
    [ -e "$cgroup_v2/io.cost.qos" ]
}

# pace NUMBERS WRITE_MB READ_MB: what a byte costs of a second of the drive, and nothing else (their number is not limited).
# The kernel spends in periods of twice the latencies; with shorter ones than these it lets up to a fifth more through.
pace() {
    local iops=1000000000
    record cost "$1"
    echo "$1 ctrl=user model=linear rbps=${3}000000 rseqiops=$iops rrandiops=$iops wbps=${2}000000 wseqiops=$iops wrandiops=$iops" \
        >"$cgroup_v2/io.cost.model"
    echo "$1 enable=1 ctrl=user rpct=0 rlat=10000 wpct=0 wlat=10000 min=100 max=100" >"$cgroup_v2/io.cost.qos"
}

# throttle DEVICE WRITE_MB READ_MB: an empty one sets no limit.
throttle() {
    local path numbers write=$2 read=$3
    path=$(recorded cgroup)
    numbers=$(lsblk -dno MAJ:MIN "$1" | tr -d ' ')
    if [ -n "$paced" ]; then
        pace "$numbers" "$write" "$read"
        return
    fi
    if [ -e "$path/io.max" ]; then
        echo "$numbers wbps=${write:+${write}000000} rbps=${read:+${read}000000}" | sed 's/bps=\( \|$\)/bps=max\1/g' >"$path/io.max"
        return
    fi
    [ -z "$write" ] || echo "$numbers ${write}000000" >"$path/blkio.throttle.write_bps_device"
    [ -z "$read" ] || echo "$numbers ${read}000000" >"$path/blkio.throttle.read_bps_device"
}

# limit_of LIST INDEX: one number for all, or the drive's own.
limit_of() {
    local list
    IFS=, read -r -a list <<<"$1"
    if [ ${#list[@]} -le 1 ]; then
        echo "$1"
    else
        echo "${list[$2]}"
    fi
}

check_limits() {
    local count
    [ -n "$2" ] || return 0
    [[ $2 =~ ^[1-9][0-9]*(,[1-9][0-9]*)*$ ]] || die "$1 $2: not a number of MB/s, or numbers with commas"
    count=$(tr ',' '\n' <<<"$2" | wc -l)
    [ "$count" -eq 1 ] || [ "$count" -eq "$drives" ] || die "$1 $2: $count numbers for $drives drives"
}

# ---- Commands ------------------------------------------------------------------------------------------------------------------------

size_bytes() {
    numfmt --from=iec "${size^^}" 2>/dev/null || die "--size $size: not a size, for example 512M or 4G"
}

check_room() {
    local bytes room
    bytes=$(($1 * drives))
    room=$(df --output=avail -B1 "$2" | tail -n 1)
    [ "$bytes" -le "$room" ] || die "$drives drives of $size do not fit on $2: $((room >> 20)) MiB are free"
    if [ "$place" = ram ]; then
        room=$(($(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo) * 1024))
        [ "$bytes" -le $((room / 4 * 3)) ] || die "$drives drives of $size leave too little of $((room >> 20)) MiB available memory"
    fi
}

# reset_queue DEVICE: a loop device keeps its queue's settings from one file to the next. What this kernel lacks stays.
reset_queue() {
    local queue=/sys/block/${1##*/}/queue setting
    for setting in rq_affinity=1 nomerges=0 scheduler=none iostats=1 max_sectors_kb=0; do
        echo "${setting#*=}" 2>/dev/null >"$queue/${setting%%=*}" || true
    done
}

make_drive() {
    local file=$1 bytes=$2 device
    record file "$file"
    : >"$file"
    if [ -n "$sparse" ]; then
        truncate -s "$bytes" "$file"
    elif [ "$place" = ram ]; then
        head -c "$bytes" /dev/zero >"$file"
    else
        dd if=/dev/zero of="$file" bs=4M iflag=fullblock,count_bytes count="$bytes" oflag=direct conv=fsync status=none
    fi
    device=$(losetup -f --show --direct-io=on -b "$block" "$file") || return
    reset_queue "$device"
    echo "$device"
}

up() {
    local bytes folder number device
    [ "$(id -u)" -eq 0 ] || die "needs root to make loop devices"
    [[ $drives =~ ^[1-9][0-9]?$ ]] || die "--drives $drives: 1 to 99"
    [ "$block" = 512 ] || [ "$block" = 4096 ] || die "--block $block: 512 or 4096"
    check_limits --write "$write_limits"
    check_limits --read "$read_limits"
    [ -z "$paced" ] || { [ -n "$write_limits" ] && [ -n "$read_limits" ]; } || die "--paced needs --write and --read"
    bytes=$(size_bytes)
    [ "$bytes" -gt 0 ] && [ $((bytes % 4096)) -eq 0 ] || die "--size $size: not a multiple of 4096 bytes"
    [ ! -e "$(state_file)" ] || die "the rig '$name' is up (or crashed): tests/rig.sh down --name $name first"
    [ "$place" = ram ] && folder=/dev/shm || folder=$(realpath -- "$place")
    [ -d "$folder" ] || die "--on $place: no such folder"
    check_room "$bytes" "$folder"
    trap 'trap "" INT TERM; down; exit 1' ERR INT TERM EXIT
    folder=$(mktemp -d "$folder/spillway-rig-$name.XXXXXX")
    record folder "$folder"
    [ -z "$write_limits$read_limits" ] || make_cgroup
    for ((number = 0; number < drives; number++)); do
        say "drive $((number + 1)) of $drives: $size, $block byte blocks, $place"
        device=$(make_drive "$folder/drive$number" "$bytes")
        [ -z "$write_limits$read_limits" ] ||
            throttle "$device" "$(limit_of "$write_limits" "$number")" "$(limit_of "$read_limits" "$number")"
        echo "$device"
    done
    trap - ERR INT TERM EXIT
}

run_inside() {
    local path
    [ $# -gt 0 ] || die "run what?"
    [ -e "$(state_file)" ] || die "the rig '$name' is not up"
    path=$(recorded cgroup)
    # The drives are not throttled: nothing to join.
    [ -z "$path" ] || echo $$ >"$path/cgroup.procs"
    exec "$@"
}

status() {
    local device path
    if [ ! -e "$(state_file)" ]; then
        echo "the rig '$name' is not up"
        return 1
    fi
    losetup --output NAME,LOG-SEC,DIO,BACK-FILE | sed -n 1p
    for device in $(devices); do
        losetup --output NAME,LOG-SEC,DIO,BACK-FILE "$device" | sed 1d
    done
    path=$(recorded cgroup)
    if [ -n "$path" ]; then
        echo "throttled by $path (MAJOR:MINOR bytes/s):"
        # Paced drives have no limit there.
        [ -n "$(recorded cost)" ] ||
            find "$path" -name io.max -o -name 'blkio.throttle.*_bps_device' | sort | xargs grep -H '' | sed "s|^$path/|  |"
        for device in $(recorded cost); do
            grep -H "^$device " "$cgroup_v2/io.cost.model" | sed "s|^$cgroup_v2/|  |"
        done
    fi
}

# Everything recorded, in the order that its users need; each step may have been done before.
down() {
    local device path pid end problem=0
    [ -e "$(state_file)" ] || return 0
    for device in $(recorded cost); do
        echo "$device enable=0" >"$cgroup_v2/io.cost.qos" || problem=1
    done
    for device in $(devices); do
        losetup -d "$device" || problem=1
    done
    for path in $(recorded cgroup); do
        [ -d "$path" ] || continue
        while read -r pid; do
            echo "$pid" >"$(dirname "$path")/cgroup.procs" 2>/dev/null || true
        done <"$path/cgroup.procs"
        rmdir "$path" || problem=1
    done
    for path in $(recorded subtree_control); do
        echo -io >"$path" || problem=1
    done
    recorded file | while read -r path; do rm -f -- "$path"; done
    recorded folder | while read -r path; do [ ! -d "$path" ] || rmdir -- "$path"; done || problem=1
    # A device that is still open is detached by its last user. A process that has just ended closes it when its transfers have ended, a
    # moment later, and there is no event for that: wait as long as a store waits for a drive. If the device stays open, its users are
    # named, and the record stays.
    end=$((SECONDS + 5))
    while [ -n "$(devices)" ] && [ $SECONDS -lt $end ]; do
        sleep 0.05
    done
    for device in $(devices); do
        say "$device is still in use"
        problem=1
    done
    [ $problem -eq 0 ] || die "not everything could be removed; the record stays in $(state_file)"
    rm -f -- "$(state_file)"
}

main() {
    local command=${1:---help}
    [ $# -eq 0 ] || shift
    while [ $# -gt 0 ]; do
        case $1 in
        --sparse) sparse=1 ;;
        --paced) paced=1 ;;
        --drives | --size | --block | --on | --write | --read | --name)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in
            --drives) drives=$2 ;;
            --size) size=$2 ;;
            --block) block=$2 ;;
            --on) place=$2 ;;
            --write) write_limits=$2 ;;
            --read) read_limits=$2 ;;
            --name) name=$2 ;;
            esac
            shift
            ;;
        --help) command=--help ;;
        *) break ;;
        esac
        shift
    done
    [[ $name =~ ^[A-Za-z0-9_-]+$ ]] || die "--name $name: letters, digits, - and _ only"
    [ "$command" = run ] || [ $# -eq 0 ] || die "$1: no such option (tests/rig.sh --help)"
    case $command in
    up) up ;;
    down) down ;;
    status) status ;;
    run) run_inside "$@" ;;
    --help | -h | help) usage ;;
    *) die "$command: no such command (tests/rig.sh --help)" ;;
    esac
}

main "$@"
