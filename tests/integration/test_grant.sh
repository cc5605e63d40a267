#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_grant.sh - grant and revoke: owners and rules, with udev and without, and what is refused
. "$(dirname "$0")/../lib.sh"

is_root || skip "needs root"
need python3 mkfs.ext4 unshare setpriv
rules=$TEST_TMP/rules one= two= three=
mkdir "$rules"
make_loop one 64M
make_loop two 64M
owner() {
    stat -c %U "$1"
}
on_exit chown root "$one" "$two"

begin "the user owns the drive, a rule tells it, and what needs root still is said"
chmod 755 "$TEST_TMP"
expect_exit 0 "$SPILLWAY" grant --user nobody --devices "$one" --rules "$rules"
expect_output "$one: given to nobody by" "gives it again at each boot" "What still needs root" "log pages"
expect_equal nobody "$(owner "$one")"
expect_exit 0 grep -cF "ATTRS{loop/backing_file}==\"$(cat "/sys/block/${one#/dev/}/loop/backing_file")\", OWNER=\"$(id -u nobody)\"" "$rules/70-spillway.rules"
expect_output 1

begin "that is enough to make a store, and to use it"
expect_exit 0 setpriv --reuid nobody --clear-groups "$SPILLWAY" format "$one"
expect_exit 0 setpriv --reuid nobody --clear-groups "$SPILLWAY" check "$one"

begin "a second time changes nothing; another user is refused"
before=$(sum_of "$rules/70-spillway.rules")
expect_exit 0 "$SPILLWAY" grant --user nobody "$one" --rules "$rules" --json
python3 -c "
import json, sys
d = json.load(open(sys.argv[1]))
assert d['user'] == 'nobody' and d['drives'][0]['node'] == sys.argv[2] and d['needs_root'], d" "$OUTPUT" "$one" || fail "JSON"
expect_equal "$before" "$(sum_of "$rules/70-spillway.rules")"
expect_exit 3 "$SPILLWAY" grant --user daemon "$one" --rules "$rules"
expect_output "spillway revoke $one"
expect_equal nobody "$(owner "$one")"

begin "a dry run changes nothing"
expect_exit 0 "$SPILLWAY" grant --user nobody "$two" --rules "$rules" --dry-run
expect_output "nothing stands in the way"
expect_exit 0 "$SPILLWAY" revoke "$one" --rules "$rules" --dry-run
expect_equal "root nobody" "$(owner "$two") $(owner "$one")"
expect_equal "$before" "$(sum_of "$rules/70-spillway.rules")"

begin "revoke returns it to root, and the rule goes"
expect_exit 0 "$SPILLWAY" grant --user nobody "$two" --rules "$rules"
expect_exit 0 "$SPILLWAY" revoke "$one" --rules "$rules"
expect_equal "root nobody" "$(owner "$one") $(owner "$two")"
expect_exit 0 grep -c "^# spillway grant" "$rules/70-spillway.rules"
expect_output 1
expect_exit 1 "$SPILLWAY" revoke "$one" --rules "$rules"
expect_output "belongs to root, and"
expect_exit 0 "$SPILLWAY" revoke --user nobody --rules "$rules"
expect_output "$two belongs to root again"
expect_equal "root" "$(owner "$two")"
expect_true "no file is left" test ! -e "$rules/70-spillway.rules"

begin "a user that has but a number, as a container's"
expect_exit 0 "$SPILLWAY" grant --user 54321 "$one" --rules "$rules"
expect_equal 54321 "$(stat -c %u "$one")"
expect_exit 0 "$SPILLWAY" revoke --user 54321 --rules "$rules"
expect_equal root "$(owner "$one")"
expect_exit 2 "$SPILLWAY" grant --user 12x "$one" --rules "$rules"

begin "what is mounted, held, or carries something is refused, and stays root's"
make_loop three 64M
mkfs.ext4 -q "$three"
expect_exit 3 "$SPILLWAY" grant --user nobody "$three" --rules "$rules"
expect_output "ext4" "--force"
expect_exit 0 "$SPILLWAY" grant --user nobody "$three" --rules "$rules" --force
expect_exit 0 "$SPILLWAY" revoke "$three" --rules "$rules"
mkdir "$TEST_TMP/mounted"
mount "$three" "$TEST_TMP/mounted"
on_exit umount "$TEST_TMP/mounted"
expect_exit 3 "$SPILLWAY" grant --user nobody "$two" "$three" --rules "$rules" --force
expect_output "is mounted on $TEST_TMP/mounted"
expect_exit 1 setpriv --reuid nobody --clear-groups "$SPILLWAY" probe "$three"
expect_output "is mounted on $TEST_TMP/mounted"
disk=$(findmnt -n -o SOURCE /)
if [ -b "$disk" ]; then
    expect_exit 3 "$SPILLWAY" grant --user nobody "$disk" --rules "$rules" --force
    expect_output "is mounted on"
fi
expect_equal "root root" "$(owner "$two") $(owner "$three")"
expect_equal "" "$(ls "$rules")"

begin "wrong usage"
make_file file 64M
expect_exit 2 "$SPILLWAY" grant --user nobody "$file" --rules "$rules"
expect_output "chown nobody $file"
expect_exit 2 "$SPILLWAY" grant --user nobody /dev/null --rules "$rules"
expect_exit 2 "$SPILLWAY" grant --user nobody-at-all "$one"
expect_exit 2 "$SPILLWAY" grant "$one"
expect_exit 2 "$SPILLWAY" grant --user nobody
expect_exit 2 "$SPILLWAY" grant --user root "$one"
expect_exit 2 "$SPILLWAY" revoke
expect_exit 2 "$SPILLWAY" revoke --user nobody "$one"

begin "where there is no udev, no rule is written, and that is said"
expect_exit 0 "$SPILLWAY" grant --user nobody "$one" --rules "$TEST_TMP/none"
expect_output "no rule was written"
expect_equal nobody "$(owner "$one")"
expect_exit 0 "$SPILLWAY" revoke "$one" --rules "$TEST_TMP/none"
expect_equal root "$(owner "$one")"

# with_udev SCRIPT: in a mount namespace in which udev seems to run; udevadm writes down what it is told, and gives what a rule says.
mkdir "$TEST_TMP/bin"
cat >"$TEST_TMP/bin/udevadm" <<END_OF_UDEVADM
#!/bin/bash
echo "\$*" >>"$TEST_TMP/told"
[ "\$1" != trigger ] || [ ! -e "$TEST_TMP/obedient" ] || chown "\$(sed -n 's/.*OWNER="\(.*\)"/\1/p' "$rules"/*.rules | head -n 1)" "\${@: -1}"
END_OF_UDEVADM
chmod +x "$TEST_TMP/bin/udevadm"
with_udev() {
    PATH=$TEST_TMP/bin:$PATH unshare --mount --propagation private bash -c \
        "mount -t tmpfs none /run && mkdir /run/udev && : >/run/udev/control && $*"
}

begin "where udev runs, it gives the drive by its rule"
touch "$TEST_TMP/obedient"
expect_exit 0 with_udev "$SPILLWAY grant --user nobody $one --rules $rules"
expect_output "given to nobody by udev"
expect_equal "control --reload trigger --action=change --settle $one" "$(paste -s -d' ' "$TEST_TMP/told")"
expect_equal nobody "$(owner "$one")"
rm "$TEST_TMP/told"
expect_exit 0 with_udev "$SPILLWAY revoke --user nobody --rules $rules"
expect_equal "control --reload" "$(cat "$TEST_TMP/told")"
expect_equal root "$(owner "$one")"

begin "where udev does not do so, that is said, and done by chown"
rm "$TEST_TMP/obedient"
expect_exit 0 with_udev "$SPILLWAY grant --user nobody $one --rules $rules"
expect_output "udev has read the rule, but not given $one" "given to nobody by chown"
expect_equal nobody "$(owner "$one")"
expect_exit 0 "$SPILLWAY" revoke "$one" --rules "$rules"
