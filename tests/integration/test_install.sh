#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_install.sh - make install gives a usable library, make uninstall takes it all back
# alone: make writes to the build folder
. "$(dirname "$0")/../lib.sh"

need pkg-config make
stage=$TEST_TMP/stage drive=
prefix=/opt/spillway-under-test
make_in_stage() {
    make -C "$ROOT" --no-print-directory BUILD="$SPW_BUILD" DESTDIR="$stage" PREFIX=$prefix "$@"
}

begin "make install with DESTDIR and PREFIX"
[ ! -e $prefix ] || skip "$prefix exists"
expect_exit 0 make_in_stage install
version=$(sed -n 's/^#define SPW_VERSION "\(.*\)"/\1/p' "$ROOT/include/spillway/error.h")
expect_true "nothing is written outside DESTDIR" test ! -e $prefix
expect_equal "libspillway.so.$version" "$(readlink "$stage$prefix/lib/libspillway.so.${version%%.*}")"
expect_equal "libspillway.so.${version%%.*}" "$(readlink "$stage$prefix/lib/libspillway.so")"
expect_true "the command" test -x "$stage$prefix/bin/spillway"

for file in bash-completion/completions/spillway zsh/site-functions/_spillway fish/vendor_completions.d/spillway.fish; do
    expect_true "completion: $file" test -s "$stage$prefix/share/$file"
done

begin "every public header has a manual page"
for header in "$ROOT"/include/spillway/*.h; do
    name=$(basename "$header" .h)
    page=$stage$prefix/share/man/man3/spillway${name:+-$name}.3
    [ "$name" != spillway ] || page=$stage$prefix/share/man/man3/spillway.3
    expect_true "a page of $name.h" test -s "$page"
    while read -r function; do
        grep -q "$function(" "$page" || fail "$page does not have $function()"
        expect_equal "spillway-$name.3" "$(readlink "$stage$prefix/share/man/man3/$function.3")" "the page of $function()"
    done < <(sed -n 's/^SPW_EXPORT [^(]*\(spw_[a-z0-9_]*\)(.*/\1/p' "$header")
    ! command -v groff >/dev/null || expect_equal "" "$(groff -z -ww -Tutf8 -man "$page" 2>&1)" "what groff says of $page"
done

begin "an installed program of three lines compiles by pkg-config and runs"
cat >"$TEST_TMP/hello.c" <<'END'
#include <spillway/spillway.h>
#include <stdio.h>
int main(void) { puts(spw_version()); return 0; }
END
export PKG_CONFIG_PATH=$stage$prefix/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$stage
expect_equal "$version" "$(pkg-config --modversion spillway)"
read -r -a needed <<<"$(pkg-config --cflags --libs spillway)"
expect_exit 0 "${CC:-gcc}" ${SANITIZE:+"-fsanitize=$SANITIZE"} "$TEST_TMP/hello.c" -o "$TEST_TMP/hello" "${needed[@]}"
expect_exit 0 env LD_LIBRARY_PATH="$stage$prefix/lib" "$TEST_TMP/hello"
expect_output "$version"

begin "the pkg-config file lists what a static program needs"
expect_exit 0 pkg-config --static --libs spillway
expect_output -luring -laio -lblkid -lnuma -lxxhash -ljansson -lz

begin "a static program links, and keeps a store"
read -r -a needed <<<"$(pkg-config --cflags --libs --static spillway)"
others=()
for word in "${needed[@]}"; do
    [ "$word" = -lspillway ] || others+=("$word")
done
echo 'int main(void) { return 0; }' >"$TEST_TMP/nothing.c"
if [ -n "${SANITIZE:-}" ]; then
    skip "a sanitizer's runtime is not for static programs"
elif ! "${CC:-gcc}" -static "$TEST_TMP/nothing.c" -o "$TEST_TMP/nothing" "${others[@]}" 2>"$OUTPUT"; then
    skip "archives are missing: $(grep -m 1 'cannot find' "$OUTPUT")"
else
    "$ROOT/scripts/extract-example.sh" "$ROOT/docs/spillway.3" >"$TEST_TMP/example.c"
    expect_exit 0 "${CC:-gcc}" -static "$TEST_TMP/example.c" -o "$TEST_TMP/example" "${needed[@]}"
    expect_equal "" "$(readelf -dW "$TEST_TMP/example" | grep NEEDED || true)" "shared libraries that it needs"
    make_file drive 64M
    expect_exit 0 "$SPILLWAY" format "$drive"
    expect_exit 0 "$TEST_TMP/example" "$drive"
    expect_output identical
fi

begin "the installed Python package imports and finds the library"
if [ -d "$ROOT/python/spillway" ]; then
    expect_exit 0 env -u SPILLWAY_LIBRARY LD_LIBRARY_PATH="$stage$prefix/lib" \
        PYTHONPATH="$stage$prefix/lib/python3/dist-packages" python3 -c 'import spillway; print(spillway.__file__)'
    expect_output "$stage$prefix/lib/python3/dist-packages/spillway"
else
    skip "there is no Python package yet"
fi

begin "make uninstall leaves no file"
expect_exit 0 make_in_stage uninstall
expect_equal "" "$(find "$stage" ! -type d)"
expect_true "the header folder is gone" test ! -d "$stage$prefix/include/spillway"

begin "where an interpreter looks below PREFIX, it finds the package, and that the library, from any folder and with nothing set"
expect_exit 0 python3 -m venv --without-pip "$TEST_TMP/venv"
prefix=$TEST_TMP/venv stage=
find "$prefix" | sort >"$TEST_TMP/before"
expect_exit 0 make_in_stage PYTHON="$prefix/bin/python3" install
cd / || exit 1
expect_exit 0 env -i PATH=/usr/bin:/bin "$prefix/bin/python3" -c 'import spillway; print(spillway.__file__, spillway._core.library.path)'
expect_output "/site-packages/spillway/__init__.py $prefix/lib/libspillway.so"
cd "$ROOT" || exit 1

begin "make uninstall takes it back from there too"
find "$prefix" -name __pycache__ -prune -exec rm -r {} +
expect_exit 0 make_in_stage PYTHON="$prefix/bin/python3" uninstall
expect_equal "" "$(find "$prefix" ! -type d | sort | comm -13 "$TEST_TMP/before" -)"
