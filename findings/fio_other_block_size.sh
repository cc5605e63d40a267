#!/bin/bash
# SPDX-License-Identifier: MIT
# findings/fio_other_block_size.sh - a fio job that only writes, in random order, writes less because of the block size of reads
#
# Seen with     fio 3.33-3 of Debian 12, psync; 2026-11-30
# Guess         bs=4k,8k is 4 KiB for reads and 8 KiB for writes, so a job of rw=randwrite does what it does with bs=8k: by default it covers
#               each block of size= once. What it does not read does not matter, and what it leaves out it would say.
# What happens  The random order is made for the smaller of the two sizes, whichever of them is in use. Offsets are whole blocks of 8 KiB all the
#               same, and none comes twice, but 563 of 2048 never come: the job ends early, with status 0, and all that tells is a smaller io=.
#               With the smaller size in use, or with norandommap, all is transferred. Share of size=16m:
#                   randwrite bs=8k,8k  1.000    randwrite bs=4k,8k  0.725    randwrite bs=4k,64k 0.605
#                   randwrite bs=8k,4k  1.000    randread  bs=8k,4k  0.725    randwrite bs=4k,8k norandommap 1.000
# Exit          0: as described; 1: not any more; 77: cannot be tried here
set -euo pipefail
command -v apt-get >/dev/null || { echo "needs Debian's packages"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
(cd "$folder" && apt-get download -qq fio=3.33-3 >/dev/null 2>&1 && dpkg-deb -x fio_*.deb .) || { echo "needs fio 3.33-3 of Debian 12"; exit 77; }
fio=$folder/usr/bin/fio
"$fio" --version >/dev/null 2>&1 || { echo "needs the libraries of fio's package: apt-get install fio"; exit 77; }

# share NAME OPTIONS...: what one job of 16 MiB transfers of that.
share() {
    local bytes
    bytes=$("$fio" --name=one --filename="$folder/file" --size=16m --ioengine=psync --output-format=json "$@" |
        python3 -c 'import json, sys; job = json.load(sys.stdin)["jobs"][0]; print(job["read"]["io_bytes"] + job["write"]["io_bytes"])')
    python3 -c 'import sys; print(f"{int(sys.argv[1]) / (16 << 20):.3f}  {sys.argv[2]}")' "$bytes" "${*#--}"
}

{
    share --rw=randwrite --bs=8k,8k
    share --rw=randwrite --bs=8k,4k
    share --rw=randwrite --bs=4k,8k
    share --rw=randwrite --bs=4k,64k
    share --rw=randread --bs=8k,4k
    share --rw=randwrite --bs=4k,8k --norandommap
} | tee "$folder/found"
diff "$folder/found" - <<'SEEN' || { echo "this has changed"; exit 1; }
1.000  rw=randwrite bs=8k,8k
1.000  rw=randwrite bs=8k,4k
0.725  rw=randwrite bs=4k,8k
0.605  rw=randwrite bs=4k,64k
0.725  rw=randread bs=8k,4k
1.000  rw=randwrite bs=4k,8k norandommap
SEEN
