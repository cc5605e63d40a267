#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_tool_run.sh - `spillway run` beside other allocators, before and after its own in LD_PRELOAD, and linked
. "$(dirname "$0")/../lib.sh"
need g++
[ -z "${SANITIZE:-}" ] || skip "a sanitizer replaces malloc() itself"

ours=$(realpath "$SPW_BUILD/libspillway_malloc.so")

# An allocator that ends the program over any block that is not its own. As in real ones, operator new asks the malloc() that is visible to
# all, and operator delete frees without asking it.
cat >"$TEST_TMP/other.cc" <<'END'
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <unistd.h>
extern "C" void *__libc_malloc(size_t);
extern "C" void __libc_free(void *);
struct head { void *start; size_t size; uint64_t magic, blank; };
static const uint64_t MAGIC = 0x6f74686572206f6e;
static head *head_of(void *block)
{
    head *found = (head *)block - 1;
    if (found->magic != MAGIC) {
        static const char words[] = "other: not my block\n";
        (void)!write(2, words, sizeof(words) - 1);
        _exit(99);
    }
    return found;
}
static void *take(size_t align, size_t size)
{
    char *start = (char *)__libc_malloc(size + align + sizeof(head));
    if (!start)
        return nullptr;
    char *block = (char *)(((uintptr_t)start + sizeof(head) + align - 1) & ~(uintptr_t)(align - 1));
    ((head *)block)[-1] = {start, size, MAGIC, 0};
    return block;
}
static void give(void *block)
{
    if (!block)
        return;
    head *found = head_of(block);
    found->magic = 0;
    __libc_free(found->start);
}
extern "C" {
void *malloc(size_t size) { return take(32, size); }
void free(void *block) { give(block); }
void *calloc(size_t count, size_t size) { void *block = take(32, count * size); return block ? memset(block, 0, count * size) : block; }
void *realloc(void *block, size_t size)
{
    void *moved = take(32, size);
    if (block && moved) {
        size_t have = head_of(block)->size;
        memcpy(moved, block, have < size ? have : size);
        give(block);
    }
    return moved;
}
void *memalign(size_t align, size_t size) { return take(align < 32 ? 32 : align, size); }
void *aligned_alloc(size_t align, size_t size) { return memalign(align, size); }
int posix_memalign(void **block, size_t align, size_t size) { *block = memalign(align, size); return *block ? 0 : 12; }
size_t malloc_usable_size(void *block) { return block ? head_of(block)->size : 0; }
}
void *operator new(size_t size) { return malloc(size); }
void operator delete(void *block) noexcept { give(block); }
void operator delete(void *block, size_t) noexcept { give(block); }
END

cat >"$TEST_TMP/program.cc" <<'END'
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <string>
#include <thread>
#include <vector>
static void *volatile seen;
template <class T> static T *keep(T *block) { seen = block; return block; }
static void once(size_t n)
{
    delete[] keep(new char[n]);
    ::operator delete(keep(::operator new(n)), n);
    std::vector<double> numbers(n);
    numbers.resize(2 * n);
    void *block = keep(malloc(n));
    block = keep(realloc(block, 2 * n));
    memset(block, 1, 2 * n);
    block = keep(realloc(block, n / 2 + 1));
    if (malloc_usable_size(block) < n / 2 + 1 || ((char *)block)[n / 2] != 1)
        exit(1);
    free(block);
    if (posix_memalign(&block, 4096, n))
        exit(2);
    free(realloc(keep(block), n + 1));
    free(keep(aligned_alloc(4096, (n + 4095) / 4096 * 4096)));
    free(keep(memalign(65536, n)));
    char *zeroes = keep((char *)calloc(n, 1));
    for (size_t i = 0; i < n; i += 97)
        if (zeroes[i])
            exit(3);
    free(zeroes);
    std::string text(n, 'x');
    free(keep(strdup(text.c_str())));
}
int main()
{
    for (int round = 0; round < 3; round++)
        for (size_t n : {10ul, 5000ul, 300000ul, 3000000ul}) {
            once(n);
            std::thread(once, n).join();
        }
    puts("all freed");
}
END

begin "with libc's allocator nothing is said"
expect_exit 0 g++ -std=c++17 -O1 -w "$TEST_TMP/program.cc" -o "$TEST_TMP/program" -lpthread
expect_exit 0 "$SPILLWAY" run -- "$TEST_TMP/program"
expect_equal "all freed" "$(cat "$OUTPUT")"

# beside LIBRARY: the program ends well, and is told once whose memory it has; what it starts is told nothing.
beside() {
    local other=$1 order
    for order in "$other" "$other:$ours"; do
        expect_exit 0 env LD_PRELOAD="$order" "$SPILLWAY" run -- "$TEST_TMP/program"
        expect_output "all freed" "malloc() is that of $other"
        expect_equal 1 "$(grep -c 'malloc() is that of' "$OUTPUT")"
    done
    expect_exit 0 "$SPILLWAY" run -- env LD_PRELOAD="$other:$ours" "$TEST_TMP/program"
    expect_output "all freed" "malloc() is that of $other"
    expect_exit 0 env LD_PRELOAD="$other" "$SPILLWAY" run -- bash -c "'$TEST_TMP/program'; true"
    expect_output "all freed"
    expect_equal 1 "$(grep -c 'malloc() is that of' "$OUTPUT")"
}

begin "another allocator that is preloaded serves all, before ours and after it"
expect_exit 0 g++ -std=c++17 -O1 -w -fno-builtin -shared -fPIC "$TEST_TMP/other.cc" -o "$TEST_TMP/libother.so"
beside "$TEST_TMP/libother.so"

begin "one that the program is linked with"
expect_exit 0 g++ -std=c++17 -O1 -w "$TEST_TMP/program.cc" -o "$TEST_TMP/linked" -lpthread -L"$TEST_TMP" -lother -Wl,-rpath,"$TEST_TMP"
expect_exit 0 "$SPILLWAY" run -- "$TEST_TMP/linked"
expect_output "all freed" "malloc() is that of $TEST_TMP/libother.so"
expect_exit 0 g++ -std=c++17 -O1 -w -fno-builtin "$TEST_TMP/program.cc" "$TEST_TMP/other.cc" -o "$TEST_TMP/static" -lpthread
expect_exit 0 "$SPILLWAY" run -- "$TEST_TMP/static"
expect_output "all freed" "malloc() is that of"

for name in libjemalloc.so.2 libtcmalloc.so.4 libtcmalloc_minimal.so.4 libmimalloc.so.2; do
    begin "$name"
    found=$(ldconfig -p | awk -v name="$name" '$1 == name { print $NF }' | sort -u | tail -n 1)
    if [ -z "$found" ]; then
        skip "it is not installed"
    else
        beside "$found"
    fi
done
