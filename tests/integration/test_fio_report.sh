#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_fio_report.sh - the bench reports what fio does, by the same names
# layer: all
. "$(dirname "$0")/../lib.sh"
need fio python3
fio_file=

begin "fio's own report has the same keys"
make_file fio_file 8M
job=(--name=same --filename="$fio_file" --bs=4k --ioengine=libaio --direct=1)
fio "${job[@]}" --rw=randrw --iodepth=4 --allow_file_create=0 --output-format=json \
    >"$TEST_TMP/fio.json"
expect_exit 0 "$SPILLWAY" bench "${job[@]}" --rw=randrw --iodepth=4 --output-format=json \
    --output="$TEST_TMP/report.json"
cat >"$TEST_TMP/keys.py" <<'PY'
import json, sys

def paths(value, prefix=""):
    """Every key with the type of its value; numbers are one type."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if prefix != "/jobs/job options":
                yield from paths(inner, prefix + "/" + key)
    elif isinstance(value, list):
        for inner in value[:1]:
            yield from paths(inner, prefix)
    else:
        yield prefix, "number" if isinstance(value, (int, float)) else type(value).__name__

fio, ours = (dict(paths(json.load(open(name)))) for name in sys.argv[1:3])
missing = {path for path in fio if not path.startswith("/disk_util") and ours.get(path) != fio[path]}
assert not missing, sorted(missing)
assert len(fio) > 150, len(fio)
PY
expect_true "keys of fio's JSON" \
    python3 "$TEST_TMP/keys.py" "$TEST_TMP/fio.json" "$TEST_TMP/report.json"

begin "fio's terse line has as many fields"
fields() { awk -F';' '{ print NF; exit }'; }
theirs=$(fio "${job[@]}" --rw=read --disk_util=0 --output-format=terse | fields)
ours=$("$SPILLWAY" bench "${job[@]}" --rw=read --output-format=terse | fields)
expect_equal "$theirs" "$ours" "fields of the terse line"
