#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_runner.sh - the test runner itself: it counts right, names what hung, and finds what is left behind
# layer: all
# alone: it kills runners, and switches io_uring off
. "$(dirname "$0")/../lib.sh"

# A tree of its own, with the runner of this one and tests that misbehave.
tree=$TEST_TMP/tree
mkdir -p "$tree"/tests/{unit,integration,python} "$tree"/build/tests/{unit,integration} "$TEST_TMP/scratch"
cp -r "$ROOT/tests/run" "$ROOT/tests/runner" "$ROOT/tests/lib.sh" "$ROOT/tests/rig.sh" "$tree/tests/"
unset SPW_TEST_TIMEOUT V

# program KIND NAME BODIES: a cmocka program of four cases.
program() {
    {
        printf '#include <%s>\n' stdarg.h stddef.h setjmp.h stdint.h stdio.h stdlib.h unistd.h cmocka.h
        cat
        echo 'int main(void) { const struct CMUnitTest tests[] = { cmocka_unit_test(first), cmocka_unit_test(second) };'
        echo 'return cmocka_run_group_tests(tests, NULL, NULL); }'
    } >"$tree/tests/$1/$2.c"
    "${CC:-gcc}" -o "$tree/build/tests/$1/$2" "$tree/tests/$1/$2.c" -lcmocka
}

run_tests() {
    "$tree/tests/run" --scratch "$TEST_TMP/scratch" "$@"
}

expect_closing() {
    expect_equal "$1" "$(tail -n 1 "$OUTPUT")" "closing line"
}

expect_clean() {
    expect_equal "" "$(find "$TEST_TMP/scratch" -mindepth 1)" "scratch folder"
    expect_equal "" "$({ grep -l "$TEST_TMP" /sys/block/loop*/loop/backing_file 2>/dev/null || true; })" "loop devices"
}

begin "cases are counted: passed, failed, skipped with the reason"
program unit test_count <<'END'
static void first(void **state) { (void)state; print_message("no such hardware\n"); skip(); }
static void second(void **state) { (void)state; assert_int_equal(40 + 2, 41); }
END
program unit test_good <<'END'
static void first(void **state) { (void)state; printf("no newline"); }
static void second(void **state) { (void)state; }
END
expect_exit 1 run_tests --kind unit
expect_closing "2 passed, 1 failed, 1 skipped"
expect_output "no such hardware" "unit/test_count  second: 0x2a != 0x29 $tree/tests/unit/test_count.c:10"
expect_exit 0 run_tests test_good
expect_closing "2 passed, 0 failed, 0 skipped"
expect_clean

begin "a name that matches nothing is a failure, not a success"
expect_exit 1 run_tests test_of_another_kind
expect_closing "0 passed, 1 failed, 0 skipped"

begin "two programs of one name are refused: they would write one log"
printf '#!/bin/bash\n' >"$tree/tests/unit/test_count.sh"
expect_exit 1 run_tests test_count
expect_output "several programs are unit/test_count"
rm "$tree/tests/unit/test_count.sh"

begin "a hang is killed, and the case named"
program unit test_hang <<'END'
static void first(void **state) { (void)state; }
static void second(void **state) { (void)state; pause(); }
END
expect_exit 1 run_tests --timeout 1 test_hang
expect_closing "1 passed, 1 failed, 0 skipped"
expect_output "second: hung, killed after 1 s" "pause"
expect_clean

begin "what a killed program had attached and mounted is taken apart"
if is_root && losetup -f >/dev/null 2>&1; then
    program unit test_hang_with_drives <<'END'
static void first(void **state)
{
	(void)state;
	assert_int_equal(system("cd $TMPDIR && mkdir m && mount -t tmpfs runner-test m && truncate -s 1M m/file && losetup -f m/file"), 0);
}
static void second(void **state) { (void)state; pause(); }
END
    expect_exit 1 run_tests --timeout 2 test_hang_with_drives
    expect_closing "1 passed, 1 failed, 0 skipped"
    expect_clean
    expect_equal "" "$({ grep runner-test /proc/self/mounts || true; })" "mounts"
    expect_equal "" "$({ grep -lx '/file.*' /sys/block/loop*/loop/backing_file 2>/dev/null || true; })" "loop devices over an unmounted file"
else
    skip "needs root and loop devices"
fi

begin "what a killed program had made with tests/rig.sh is taken down, wherever it lies"
if is_root && losetup -f >/dev/null 2>&1; then
    mkdir "$TEST_TMP/elsewhere"
    cat >"$tree/tests/integration/test_hang_with_rig.sh" <<END
. "\$(dirname "\$0")/../lib.sh"
begin "hangs"
"$tree/tests/rig.sh" up --name killed --drives 2 --size 16M --sparse --on "$TEST_TMP/elsewhere" >/dev/null
[ "\$(ls "$TEST_TMP"/elsewhere/*/ | wc -l)" -eq 2 ] && echo rig is up
tail -f /dev/null
END
    expect_exit 1 run_tests --timeout 3 test_hang_with_rig
    expect_output "rig is up" "hung, killed after 3 s"
    expect_clean
    expect_equal "" "$(ls "$TEST_TMP/elsewhere")" "folder of the rig"
    rm "$tree/tests/integration/test_hang_with_rig.sh"
    rmdir "$TEST_TMP/elsewhere"
else
    skip "needs root and loop devices"
fi

begin "a crash and an exit in the middle of a case are failures of that case"
program unit test_crash <<'END'
static void first(void **state) { (void)state; *(volatile int *)(intptr_t)getpagesize() = 1; }
static void second(void **state) { (void)state; _exit(0); }
END
expect_exit 1 run_tests test_crash
expect_closing "0 passed, 2 failed, 0 skipped"
expect_output "Segmentation fault" "second: the program ended: exit status 0"

begin "a program that tests nothing is a failure"
program unit test_nothing <<'END'
static void first(void **state) { (void)state; }
static void second(void **state) { (void)state; }
#define main(...) main(void) { (void)first; (void)second; return 0; } int unused(void)
END
expect_exit 1 run_tests test_nothing
expect_output "no case: the program tested nothing"
expect_closing "0 passed, 1 failed, 0 skipped"
expect_clean

begin "what a program leaves behind is a failure"
program unit test_litter <<'END'
static void first(void **state) { (void)state; assert_int_equal(system("touch $TMPDIR/litter"), 0); }
static void second(void **state) { (void)state; if (fork() == 0) pause(); }
END
expect_exit 1 run_tests test_litter
expect_output "file litter in TMPDIR" "(test_litter)"
expect_closing "2 passed, 2 failed, 0 skipped"
expect_clean

begin "what ends with the program, a moment later, is not left behind"
program unit test_follower <<'END'
static void first(void **state)
{
	int ends[2];
	char byte;

	(void)state;
	assert_int_equal(pipe(ends), 0);
	if (fork() == 0) {
		close(ends[1]);
		while (read(ends[0], &byte, 1) > 0)
			;
		usleep(200000);
		_exit(0);
	}
}
static void second(void **state) { (void)state; }
END
expect_exit 0 run_tests test_follower
expect_closing "2 passed, 0 failed, 0 skipped"
expect_clean

begin "every configuration has four empty drives of its kind"
program integration test_drives <<'END'
static void first(void **state)
{
	(void)state;
	assert_int_equal(system("set -- $SPW_TEST_DEVICES; test $# = 4 || exit 1; for d; do"
		" test -z \"$(tr -d '\\0' <$d | head -c 1)\" || { head -c 64 $d | od -c; exit 2; }; echo dirt | dd of=$d conv=notrunc status=none;"
		" case $SPW_TEST_CONFIG in files*) test -f $d;; loop*) n=$(blockdev --getss $d);"
		" test loop$n-$SPW_TEST_BACKEND = $SPW_TEST_CONFIG;; esac || exit 3; done"), 0);
}
static void second(void **state)
{
	(void)state;
	assert_int_equal(system("case $SPW_TEST_CONFIG in *off) test $SPW_TEST_BACKEND = libaio &&"
		" test $(cat /proc/sys/kernel/io_uring_disabled) = 2;; esac"), 0);
}
END
before=$(cat /proc/sys/kernel/io_uring_disabled 2>/dev/null || true)
expect_exit 0 run_tests --drive-size 8 --kind integration
if is_root; then
    expect_output loop512-io_uring loop512-libaio loop4096-io_uring loop4096-libaio
else
    expect_output "needs root to make loop devices"
fi
expect_equal "$before" "$(cat /proc/sys/kernel/io_uring_disabled 2>/dev/null || true)" "kernel.io_uring_disabled"
expect_clean

begin "a system that refuses io_uring is a reason to skip, not a failure"
if is_root && [ -n "$before" ]; then
    cat >"$TEST_TMP/refuse.py" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import drives
class Here:
    path = sys.argv[2]
print(drives.refused_now(drives.FILES[0]))
with drives.io_uring_rule(drives.ALL[-1], Here):
    print(drives.refused_now(drives.FILES[0]))
    print(drives.refused_now(drives.FILES[1]))
print(drives.refused_now(drives.FILES[0]))
END
    expect_exit 0 python3 "$TEST_TMP/refuse.py" "$tree/tests/runner" "$TEST_TMP"
    expect_equal "None/this system refuses io_uring: kernel.io_uring_disabled=2/None/None" "$(paste -s -d/ "$OUTPUT")"
else
    skip "needs root to set kernel.io_uring_disabled"
fi

# By its whole name: of several programs one may not have begun to die with its runner yet when that is killed.
begin "an interrupted run ends its programs, restores everything and counts a failure"
rm -f "$tree/build/test-logs/unit_test_hang.log"
"$tree/tests/run" --scratch "$TEST_TMP/scratch" --timeout 20 test_hang.c >"$OUTPUT" 2>&1 &
runner=$!
until grep -qs "RUN.*second" "$tree/build/test-logs/unit_test_hang.log"; do kill -0 $runner; done
kill -TERM $runner
status=0
wait $runner || status=$?
expect_equal 1 $status "exit status"
expect_output "interrupted: SIGTERM"
expect_clean

begin "a killed run's drives are cleared up by the next one"
rm -f "$tree/build/test-logs/unit_test_hang.log"
"$tree/tests/run" --scratch "$TEST_TMP/scratch" --timeout 20 test_hang.c >"$OUTPUT" 2>&1 &
runner=$!
until grep -qs "RUN.*second" "$tree/build/test-logs/unit_test_hang.log"; do kill -0 $runner; done
kill -KILL $runner
wait $runner || true
expect_true "the drives are still there" test -n "$(ls "$TEST_TMP/scratch")"
expect_exit 0 run_tests test_good
expect_output "clearing up after a killed run"
expect_clean

begin "bash tests: cases, skips, a script that stops in the middle, one that tests nothing"
cat >"$tree/tests/integration/test_script.sh" <<'END'
. "$(dirname "$0")/../lib.sh"
begin "good"
expect_exit 3 bash -c 'echo out; exit 3'
expect_output out
begin "bad"
expect_equal 1 2
begin "skipped"
skip "the moon is wrong"
begin "stops"
false
begin "never reached"
END
echo 'exit 0' >"$tree/tests/integration/test_nothing.sh"
expect_exit 1 run_tests --kind script
expect_output "the moon is wrong" "stops: line 10: failed with 1: false" "bad: line 6: " "the program tested nothing" '"2", not "1"'
expect_no_output "never reached"
expect_closing "1 passed, 3 failed, 1 skipped"
expect_clean

begin "two parts of all configurations make all"
for part in "--config files-libaio --config loop512-io_uring" "--except files-libaio --except loop512-io_uring"; do
    # shellcheck disable=SC2086 # words
    expect_exit 0 run_tests --kind integration --list $part
    cat "$OUTPUT" >>"$TEST_TMP/parts"
done
expect_exit 0 run_tests --kind integration --list
expect_equal "$(sort "$OUTPUT")" "$(sort "$TEST_TMP/parts")" "configurations"
expect_exit 2 run_tests --except files-libaoi --list

begin "a layer is a part of all: what make test runs, and what it does not"
sed '1a# layer: all' "$tree/tests/integration/test_nothing.sh" >"$tree/tests/integration/test_harness.sh"
for layer in test rest all; do
    expect_exit 0 run_tests --layer $layer --kind integration --kind script --list
    sort "$OUTPUT" >"$TEST_TMP/layer.$layer"
done
expect_equal "" "$(sort "$TEST_TMP"/layer.{test,rest} | diff - "$TEST_TMP/layer.all")" "what is in no layer, or in both"
expect_equal "integration/test_drives files-io_uring/integration/test_drives loop4096-libaio/integration/test_nothing/integration/test_script" \
    "$(paste -s -d/ "$TEST_TMP/layer.test")" "make test"
sed -i 's/^# layer: .*/# layer: none/' "$tree/tests/integration/test_harness.sh"
expect_exit 1 run_tests --list
expect_output "test_harness.sh: no such layer: none"
rm "$tree/tests/integration/test_harness.sh"

begin "the ten that took longest are shown, and the times of all are written"
for number in {1..11}; do
    printf '. "$(dirname "$0")/../lib.sh"\nbegin it\n' >"$tree/tests/integration/test_one_of_$number.sh"
done
expect_exit 0 run_tests test_one_of_
expect_equal 10 "$(sed -n '/^Longest:/,/^$/p' "$OUTPUT" | grep -c 'test_one_of_')" "programs shown"
expect_closing "11 passed, 0 failed, 0 skipped"
expect_equal 11 "$(grep -c 'integration/test_one_of_[0-9]*": [0-9.]*,*$' "$tree/build/test-logs/times.json")" "times"

begin "a few files of Python tests are one process, and are counted by file and case"
cat >"$tree/tests/python/test_some.py" <<'END'
import os
import pytest
def test_good(): os.environ["SEEN"] = "here"
def test_bad(): assert 1 + 1 == 3, print("some output")
def test_skipped(): pytest.skip("no accelerator")
END
cat >"$tree/tests/python/test_there.py" <<'END'
import os
def test_same_process(): assert os.environ["SEEN"] == "here"
END
expect_exit 1 run_tests --kind python
if grep -q "No module named 'pytest'" "$OUTPUT"; then
    skip "no pytest"
else
    expect_output "no accelerator" "test_bad: AssertionError" "some output" "python/test_some  (1)" "python/test_there  (1)"
    expect_closing "2 passed, 1 failed, 1 skipped"
    expect_clean

    begin "many are two processes, each with its log"
    for number in {10..29}; do echo 'def test_good(): pass' >"$tree/tests/python/test_many_$number.py"; done
    expect_exit 0 run_tests --kind python test_many_
    expect_closing "20 passed, 0 failed, 0 skipped"
    expect_equal "10 10" "$(cat "$tree"/build/test-logs/python{,-2}.log | sed -n 's/^=* \([0-9]*\) passed.*/\1/p' | paste -sd' ')" "cases of each"
    rm "$tree"/tests/python/test_many_*

    begin "the ecosystem is run only if it is asked for, and finds no package but an installed one"
    mkdir "$tree/tests/ecosystem"
    echo 'def test_installed(): import os; assert not {"PYTHONPATH", "SPILLWAY_LIBRARY"} & {*os.environ}' \
        >"$tree/tests/ecosystem/test_real.py"
    expect_exit 0 run_tests --kind ecosystem
    expect_output "ecosystem/test_real  (1)"
    expect_exit 1 run_tests test_real
    expect_output "no test matches"
    expect_clean

    begin "a Python test that ends the process, hangs, or cannot be imported is named"
    echo 'def test_dies(): os._exit(0)' >>"$tree/tests/python/test_some.py"
    expect_exit 1 run_tests --kind python
    expect_output "test_some.py::test_bad: see above" "test_some.py::test_dies: the program ended"
    expect_closing "1 passed, 2 failed, 0 skipped"
    sed -i '$s/.*/def test_hangs(): __import__("signal").pause()/' "$tree/tests/python/test_some.py"
    expect_exit 1 run_tests --timeout 2 --kind python
    expect_output "test_some.py::test_hangs: hung, killed after 2 s"
    echo 'import no_such_module' >"$tree/tests/python/test_some.py"
    expect_exit 1 run_tests --kind python
    expect_output "python.test_some: " "No module named 'no_such_module'"
fi
expect_clean
