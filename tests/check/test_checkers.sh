#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/check/test_checkers.sh - the checkers of `make check` find what is planted for them
. "$(dirname "$0")/../lib.sh"

checks=$ROOT/tests/check
mkdir -p "$TEST_TMP"/tree/{util,alloc,layout,engine/nvme,engine/vfio,drives/vfio,store,state,tensor,tools/ui,include/spillway}
tree=$TEST_TMP/tree

# plant FILE LINE: the file has one include.
plant() {
    printf '/* #include "store/not_read.h" */\n#include <stdio.h>\n%s\n' "$2" >"$tree/$1"
}

# expect_refused FILE LINE: the include is found, and named with its line.
expect_refused() {
    plant "$1" "$2"
    expect_exit 1 python3 "$checks/includes.py" "$tree"
    expect_output "$1:3:"
    rm "$tree/$1"
}

expect_allowed() {
    plant "$1" "$2"
    expect_exit 0 python3 "$checks/includes.py" "$tree"
    rm "$tree/$1"
}

begin "includes: a clean tree passes"
expect_exit 0 python3 "$checks/includes.py" "$tree"

begin "includes: alloc, layout and engine do not know each other"
for one in alloc layout engine; do
    for other in alloc layout engine; do
        [ $one = $other ] || expect_refused "$one/bad.c" "#include \"$other/x.h\""
    done
done

begin "includes: no layer reaches upwards"
expect_refused util/bad.h '#include "alloc/alloc.h"'
expect_refused util/bad.h '#include <spillway/engine.h>'
expect_refused engine/bad.c '#include "store/open_store.h"'
expect_refused engine/bad.c '#  include <spillway/store.h>'
expect_refused store/bad.c '#include "tensor/cache.h"'
expect_refused store/bad.c '#include <spillway/cache.h>'

begin "includes: folders of a layer are layers"
expect_refused engine/queue.c '#include "engine/vfio/vfio.h"'
expect_allowed engine/open.c '#include "engine/vfio/vfio.h"'
expect_allowed engine/vfio/good.c '#include "engine/device.h"'
expect_refused engine/nvme/bad.c '#include "engine/vfio/vfio.h"'
expect_refused drives/bad.c '#include "drives/vfio/bind.h"'
expect_refused drives/bad.c '#include "store/open_store.h"'
expect_allowed drives/vfio/good.c '#include "drives/safety.h"'
expect_refused tools/ui/bad.c '#include "tools/bench/bench.h"'

begin "includes: tensor sees the store's header and nothing below"
expect_refused tensor/bad.c '#include "store/open_store.h"'
expect_refused tensor/bad.c '#include "engine/queue.h"'
expect_refused tensor/bad.c '#include <spillway/engine.h>'
expect_allowed tensor/good.c '#include <spillway/store.h>'

begin "includes: state sees the store's header and nothing below"
expect_refused state/bad.c '#include "store/open_store.h"'
expect_refused state/bad.c '#include "layout/commit.h"'
expect_refused state/bad.c '#include <spillway/cache.h>'
expect_refused store/bad.c '#include <spillway/state.h>'
expect_allowed state/good.c '#include <spillway/store.h>'

begin "includes: tools use only public headers and util"
expect_refused tools/bad.c '#include "layout/superblock.h"'
expect_allowed tools/good.c '#include <spillway/spillway.h>'
expect_allowed tools/good.c '#include "util/util.h"'

begin "includes: public headers build on each other in one direction and never on inner ones"
expect_refused include/spillway/engine.h '#include <spillway/store.h>'
expect_refused include/spillway/store.h '#include "util/util.h"'
expect_allowed include/spillway/cache.h '#include <spillway/store.h>'

# object FILE FUNCTION USED...: a C file of the layer util that defines one function and calls others, compiled.
object() {
    local file=$1 function=$2 other
    shift 2
    {
        for other; do echo "void $other(void);"; done
        echo "void $function(void);"
        echo "void $function(void) {"
        for other; do echo "$other();"; done
        echo "}"
    } >"$tree/util/$file.c"
    mkdir -p "$tree/built/util"
    gcc -c "$tree/util/$file.c" -o "$tree/built/util/$file.o"
}

package=$TEST_TMP/package
mkdir -p "$package"/{_core,_optim,_params,bench}

# module FILE LINE...: a file of the Python package.
module() {
    printf '%s\n' "${@:2}" >"$package/$1"
}

# module_refused FILE WORDS LINE...: its last line is refused in these words.
module_refused() {
    module "$1" "${@:3}"
    expect_exit 1 python3 "$checks/rooms.py" "$package"
    expect_output "$package/$1:$(($# - 2)): $2"
    rm "$package/$1"
}

begin "rooms: a part imports what lies under it"
module _core/library.py 'import os' 'import torch' 'from torch import nn'
module _params/good.py 'from .._core import library' 'from .._core.library import check' 'from ..store import Store'
module store.py 'from ._core.library import check' 'from typing import TYPE_CHECKING' \
    'if TYPE_CHECKING:' '    from .torch import Offload'
expect_exit 0 python3 "$checks/rooms.py" "$package"

begin "rooms: nothing imports upwards, however it is written"
module_refused _core/bad.py "_core may not import store" 'import os' 'from ..store import Store'
module_refused _core/bad.py "_core may not import _optim" 'from .. import _optim'
module_refused _optim/bad.py "_optim may not import _params" 'def late():' '    from .._params import good'
module_refused _optim/bad.py "_optim may not import torch" 'import spillway.torch'
module_refused _optim/bad.py "_optim may not import torch" 'import torch' 'from spillway.torch import offload'
module_refused _optim/bad.py "_optim may not import torch" 'from spillway import torch'
module_refused store.py "store may not import cache" 'from .cache import Cache'
module_refused bench/bad.py "bench may not import _optim" 'from .._optim.tiles import Tile'

begin "rooms: private modules lie in a room, which is not too full"
module _flat.py ''
expect_exit 1 python3 "$checks/rooms.py" "$package"
expect_output "$package/_flat.py: tests/check/rooms.py has no part _flat"
rm "$package/_flat.py"
for ((file = 0; file < 13; file++)); do module "_optim/f$file.py" ''; done
expect_exit 1 python3 "$checks/rooms.py" "$package"
expect_output "_optim: 13 files, at most 12"
rm "$package/_optim/f0.py"
expect_exit 0 python3 "$checks/rooms.py" "$package"

begin "rooms: files of a room do not need each other"
module _optim/f1.py 'from .f2 import two'
module _optim/f2.py 'from . import f3'
expect_exit 0 python3 "$checks/rooms.py" "$package"
module _optim/f3.py 'def late():' '    from .f1 import one'
expect_exit 1 python3 "$checks/rooms.py" "$package"
expect_output "_optim/f1 and _optim/f2 need each other"

begin "circles: files that need each other are named, with what closes the circle; what was deleted since does not count"
object a spw_a spw_b
object b spw_b spw_c
object c spw_c
expect_exit 0 env -C "$tree" python3 "$checks/circles.py" built util
object c spw_c spw_a
expect_exit 1 env -C "$tree" python3 "$checks/circles.py" built util
expect_output "a circle of 3 files" "c -> a: spw_a"
rm "$tree/util/c.c"
expect_exit 0 env -C "$tree" python3 "$checks/circles.py" built util
rm "$tree"/util/*.c
expect_exit 1 env -C "$tree" python3 "$checks/circles.py" built util
expect_output "no objects"

begin "prefixes: a function that other files may call is exported or bears its layer's name"
for layer in $(python3 -B -c 'import sys; sys.path.insert(0, sys.argv[1]); import prefixes; print(*prefixes.PREFIXES)' "$checks"); do
    mkdir -p "$tree/$layer" "$tree/built/$layer"
    touch "$tree/$layer/a.c"
    gcc -c -o "$tree/built/$layer/a.o" -xc - <<<""
done
printf 'global:\n\tspw_store_open;\n' >"$tree/map"
# symbol NAME: of the store.
symbol() { gcc -c -o "$tree/built/store/a.o" -xc - <<<"void $1(void); void $1(void) { }"; }
for name in spw_store_open spw_store__wake; do
    symbol $name
    expect_exit 0 env -C "$tree" python3 "$checks/prefixes.py" built map
done
symbol spw_store_wake
expect_exit 1 env -C "$tree" python3 "$checks/prefixes.py" built map
expect_output "store/a.c: spw_store_wake is neither"
rm "$tree/store/a.c"
expect_exit 1 env -C "$tree" python3 "$checks/prefixes.py" built map
expect_output "store: no objects"

# function LINES: a C function of that length.
function_of() {
    printf 'static const int table[] = {1, 2};\n\nint probe(const char *text)\n{\n'
    for ((line = 0; line < $1 - 4; line++)); do echo '	text += text[0] == "}"[0] || text[0] == '"'{'"';'; done
    echo '	return table[*text != 0];'
    echo '}'
}

begin "functions: 70 lines pass, 71 do not"
function_of 70 >"$TEST_TMP/good.c"
expect_exit 0 python3 "$checks/functions.py" "$TEST_TMP/good.c"
expect_output "1 functions, median 70 lines, longest 70 (probe"
function_of 71 >"$TEST_TMP/bad.c"
expect_exit 1 python3 "$checks/functions.py" "$TEST_TMP/bad.c"
expect_output "bad.c:3: probe has 71 lines"

begin "functions: Python too"
{
    echo 'def probe():'
    for ((line = 0; line < 70; line++)); do echo '    print()'; done
} >"$TEST_TMP/bad.py"
expect_exit 1 python3 "$checks/functions.py" "$TEST_TMP/bad.py"
expect_output "bad.py:1: probe has 71 lines"

# expect_found WORDS LINE: a line of Python is found.
expect_found() {
    printf 'import torch\n%s\n' "$2" >"$TEST_TMP/bad.py"
    expect_exit 1 python3 "$checks/factories.py" "$TEST_TMP/bad.py"
    expect_output "bad.py:2: $1"
}

begin "factories: tensors without a device or a type are found"
expect_found "torch.empty() without device=" 'a = [torch.empty(3, dtype=torch.uint8)]'
expect_found "torch.zeros() without dtype=" 'a = torch.zeros(3, device="cpu").sum()'
expect_found "torch.tensor() without device= and dtype=" 'a = torch.tensor(1)'
expect_found "torch.randperm() without device=" 'a = torch.randperm(3)'
expect_found "torch.load() without map_location=" 'a = torch.load("file")'
expect_found "torch.FloatTensor() is of the default" 'a = torch.FloatTensor(3)'
expect_found "call torch.ones(), so that" 'from torch import Tensor, ones'

begin "factories: what names them, or takes them from another tensor, or gives a reason, passes"
cat >"$TEST_TMP/good.py" <<'END'
import torch
from torch import Tensor
a = torch.empty(3, dtype=torch.uint8, device="cpu")
b = torch.zeros_like(a), a.new_empty(3), torch.randperm(3, device="cpu"), torch.frombuffer(b"1234")
c = torch.empty(0).device  # any device: asks for the default
d = torch.load("file", map_location="cpu")
END
expect_exit 0 python3 "$checks/factories.py" "$TEST_TMP/good.py"
expect_exit 1 python3 "$checks/factories.py"
expect_output "no files"

# What words.py refuses: a line for each pattern.
cat >"$TEST_TMP/refused.md" <<'TEXT'
Whoever opens it reads it.
It is read by nobody.
Somebody wrote to it.
It is known to anybody.
It helps everybody.
For who trains with it.
It ended. Who waits in a queue sees to it.
It is planned anew.
It takes so many bytes.
So much has begun.
A norm is no parameter.
What is no store is none.
It is written besides.
Two drives; of which one failed.
The layer is computed again.
It is computed a second time.
It reads ahead.
The scope is given up.
It gives back memory.
Parameters pass by.
Two at the least.
A fake in the place of it.
Tensors take the same way.
As long as drives shall last.
It is had by an option.
Nothing is on the way of a read.
It is refused in words.
It needs Linux from 6.1 on.
TEXT
# Plain English that a careless pattern refuses, and what is not read.
cat >"$TEST_TMP/allowed.md" <<'TEXT'
Users who train, whose drives fail, and who else? There is no way, there is none, it is no longer than
that, so many that it fails; it is none of them. Besides that, see [who](anew.md), "as so". Give the
drive back to the kernel, or give up. Compute it, then again. Two of which fail. Pass by value. Read the
page ahead of time, from 6 on the list. Who owns it?

    nobody computed again
```
whoever
```
It says `is given up`. <!-- anew -->
Nobody: as the message has it. <!-- words: quoted -->
TEXT

begin "words: each refused phrase is found, with its line, also over the end of a line"
awk '{ print; print "\n" }' "$TEST_TMP/refused.md" >"$TEST_TMP/apart.md"
while read -r line; do
    printf 'One.\n\n%s\n' "${line// /$'\n'}" >"$TEST_TMP/one.md"
    expect_exit 1 python3 "$checks/words.py" --files "$TEST_TMP/one.md"
    grep -qE 'one.md:[3-9]' "$OUTPUT" || fail "no line is named for: $line"
done <"$TEST_TMP/refused.md"
expect_exit 1 python3 "$checks/words.py" --files "$TEST_TMP/apart.md"
for ((line = 1; line <= $(wc -l <"$TEST_TMP/refused.md"); line++)); do
    expect_output "apart.md:$((3 * line - 2)):"
done

begin "words: every pattern has such a line"
expect_true "a line for each pattern" python3 -B - "$checks" "$TEST_TMP/refused.md" <<'END_OF_PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import words
text = open(sys.argv[2]).read()
unused = [pattern.pattern for pattern, _ in words.PATTERNS
          if not any(pattern.search(line) for line in text.splitlines())]
sys.exit(f"no line for {unused}" if unused else 0)
END_OF_PYTHON

begin "words: plain English, code, quotes and links pass; no files do not"
expect_exit 0 python3 "$checks/words.py" --files "$TEST_TMP/allowed.md"
expect_exit 1 python3 "$checks/words.py" --files
expect_output "no files"

begin "words: of Python, comments and strings are read"
cat >"$TEST_TMP/refused.py" <<'TEXT'
"""Computed
again."""
text = ("It is "
        "no device, " f"{text}: anew")
# for
# who trains
text = "so many"; other = r"it"  # is given up
TEXT
expect_exit 1 python3 "$checks/words.py" --files "$TEST_TMP/refused.py"
expect_output 'refused.py:1: "Computed again"' 'refused.py:3: "is no device"' 'refused.py:4: "anew"' \
    'refused.py:5: "for who"' 'refused.py:7: "so many"' 'refused.py:7: "is given up"'
cat >"$TEST_TMP/allowed.py" <<'TEXT'
nobody = None if anew is None else "is"  # no
gives_back = ["is", none(1), "no device"]
text = "so many"  # words: quoted
code = "if it is None: pass"
TEXT
expect_exit 0 python3 "$checks/words.py" --files "$TEST_TMP/allowed.py"

begin "words: of shell scripts, comments and the names of cases are read"
cat >"$TEST_TMP/refused.sh" <<'TEXT'
#!/bin/bash
begin "it is done anew"
    ls # so many,
    # whoever reads them
TEXT
expect_exit 1 python3 "$checks/words.py" --files "$TEST_TMP/refused.sh"
expect_output 'refused.sh:2: "anew"' 'refused.sh:3: "so many"' 'refused.sh:4: "whoever"'
cat >"$TEST_TMP/allowed.sh" <<'TEXT'
setpriv --reuid nobody ls "${#anew}" "$(whoever)"
TEXT
expect_exit 0 python3 "$checks/words.py" --files "$TEST_TMP/allowed.sh"

begin "words: what COVERED names is read, below the root that is given"
python3 -B - "$checks" "$TEST_TMP/pages" <<'END_OF_PYTHON'
import pathlib, re, sys
sys.path.insert(0, sys.argv[1])
import words
for pattern in (*words.COVERED, "CHANGELOG.md"):
    path = pathlib.Path(sys.argv[2], re.sub(r"\[(.).*?\]", r"\1", pattern.replace("*.md", "README.md")).replace("**", "x").replace("*", "x"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("# Fine.\n")
END_OF_PYTHON
expect_exit 0 python3 "$checks/words.py" "$TEST_TMP/pages"
echo "It is done anew." >"$TEST_TMP/pages/CHANGELOG.md"
expect_exit 0 python3 "$checks/words.py" "$TEST_TMP/pages"
echo "It is done anew." >"$TEST_TMP/pages/README.md"
expect_exit 1 python3 "$checks/words.py" "$TEST_TMP/pages"
expect_output 'README.md:1: "anew"'
rm "$TEST_TMP/pages/README.md" "$TEST_TMP/pages/CHANGELOG.md"
expect_exit 1 python3 "$checks/words.py" "$TEST_TMP/pages"
expect_output "no file matches"

# expect_assert STATUS ASSERT: a function that has this line passes, or does not.
expect_assert() {
    printf 'void f(void)\n{\n\t%s\n}\n' "$2" >"$TEST_TMP/assert.c"
    expect_exit "$1" python3 "$checks/asserts.py" "$TEST_TMP/assert.c"
    [ "$1" = 0 ] || expect_output "assert.c:3: "
}

begin "asserts: those that change something, or call what may, are found"
expect_assert 1 'SPW_ASSERT(pthread_mutex_lock(&lock) == 0);'
expect_assert 1 'SPW_ASSERT(left > 0 && store_put(left) == 0);'
expect_assert 1 'SPW_ASSERT(--left > 0);'
expect_assert 1 'SPW_ASSERT((rc = 0) == 0);'
expect_assert 1 'SPW_ASSERT(left += 1);'

begin "asserts: those that look are not"
expect_assert 0 'SPW_ASSERT(a == b && a <= c && a >= d && a != e);'
expect_assert 0 'SPW_ASSERT(queue_is_empty(&queue) || link_alone(link) && has_ended(request));'
expect_assert 0 'SPW_ASSERT(atomic_load_explicit(&request->ended, memory_order_relaxed) != ENDED);'
expect_assert 0 'SPW_ASSERT((uint64_t)(at - bytes) == sizeof(bytes)); /* it = all (of them) */'

begin "asserts: none at all is a fault of the check"
echo 'int x;' >"$TEST_TMP/assert.c"
expect_exit 1 python3 "$checks/asserts.py" "$TEST_TMP/assert.c"
expect_output "no assert found"

# expect_header STATUS COMMENT DECLARATION: a header with both passes, or does not.
expect_header() {
    printf '\n%s\nSPW_EXPORT %s;\n' "$2" "$3" >"$TEST_TMP/header.h"
    expect_exit "$1" python3 "$checks/kerneldoc.py" "$TEST_TMP/header.h"
}
described='/**
 * spw_x_read - read
 * @path:  of a file
 * @count:  of bytes
 *
 * Return: 0.
 */'

begin "kernel-doc: a function whose comment has its parameters and its result passes"
expect_header 0 "$described" 'int spw_x_read(const char *const path[], unsigned count)'
expect_header 0 "${described//@path/@go_on}" 'int spw_x_read(bool (*go_on)(void *a, int b), int count)'
expect_header 0 $'/**\n * spw_x_end - end\n */' 'void spw_x_end(void)'

begin "kernel-doc: what is missing or wrong is found"
expect_header 1 '/* Read. */' 'int spw_x_read(const char *path, unsigned count)'
expect_output "spw_x_read: no kernel-doc comment"
expect_header 1 "$described" 'int spw_x_read(const char *path, unsigned len)'
expect_output "describes (path, count), but takes (path, len)"
expect_header 1 "$described" 'int spw_x_write(const char *path, unsigned count)'
expect_output "does not begin with 'spw_x_write - '"
expect_header 1 "${described/Return: 0./Reads.}" 'int spw_x_read(const char *path, unsigned count)'
expect_output "does not say what it returns"

begin "kernel-doc: a header that the check cannot read is a fault"
expect_header 1 "$described" 'int spw_x_read'
expect_output "declarations that this check cannot read"
