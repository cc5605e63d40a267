/* SPDX-License-Identifier: MIT */
/*
 * tests/fuzz/regress.c - a fuzz target without a fuzzer: every file of its corpus, and mutations of
 * them
 *
 *   PROGRAM CORPUS_FOLDER [MUTATIONS]      SPW_SEED= repeats the mutations of a run
 *
 * An input that ends the program is left in $TMPDIR/fuzz-input, behind 8 bytes with its length, and
 * the seed is on the last line.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>

#include "tests/fuzz/fuzz.h"
#include "tests/random.h"

#define INPUTS_MAX  4096u
#define INPUT_BYTES 65536u

struct input {
	uint8_t *bytes;
	size_t len;
};

static struct input inputs[INPUTS_MAX];
static unsigned input_count;

static void read_input(const char *folder, const char *name)
{
	char path[4096];
	FILE *file;
	struct input *input = &inputs[input_count];

	if (name[0] == '.' || input_count == INPUTS_MAX)
		return;
	(void)snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "re");
	FUZZ_REQUIRE(file);
	input->bytes = malloc(INPUT_BYTES);
	FUZZ_REQUIRE(input->bytes);
	input->len = fread(input->bytes, 1, INPUT_BYTES, file);
	(void)fclose(file);
	input_count++;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

/* One to four small changes: a byte, a piece cut out, doubled, or taken from another input. */
static size_t mutate(uint8_t *to, uint64_t *random)
{
	const struct input *from = &inputs[random_next(random) % input_count];
	size_t len = from->len;

	memcpy(to, from->bytes, len);
	for (unsigned changes = 1 + random_next(random) % 4; changes > 0 && len > 0; changes--) {
		const struct input *other = &inputs[random_next(random) % input_count];
		size_t at = random_next(random) % len, piece = 1 + random_next(random) % 16;

		piece = piece < len - at ? piece : len - at;
		switch (random_next(random) % 5) {
		case 0: to[at] ^= (uint8_t)(1u << random_next(random) % 8); break;
		case 1: to[at] = (uint8_t)random_next(random); break;
		case 2:
			memmove(to + at, to + at + piece, len - at - piece);
			len -= piece;
			break;
		case 3:
			if (len + piece > INPUT_BYTES)
				break;
			memmove(to + at + piece, to + at, len - at);
			len += piece;
			break;
		default:
			if (other->len > at)
				memcpy(to + at, other->bytes + at,
				       piece < other->len - at ? piece : other->len - at);
			break;
		}
	}
	return len;
}

/* In a mapped file: it is there whatever ends the program, and costs no system call. */
static void keep_input(const uint8_t *bytes, size_t len)
{
	static char path[4096];
	static struct kept {
		size_t len;
		uint8_t bytes[INPUT_BYTES];
	} * kept;
	int fd;

	if (!kept) {
		(void)snprintf(path, sizeof(path), "%s/fuzz-input",
			       getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
		fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		FUZZ_REQUIRE(fd >= 0 && ftruncate(fd, sizeof(*kept)) == 0);
		kept = mmap(NULL, sizeof(*kept), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		FUZZ_REQUIRE(kept != MAP_FAILED && close(fd) == 0);
	}
	if (!bytes) {
		FUZZ_REQUIRE(munmap(kept, sizeof(*kept)) == 0);
		(void)unlink(path);
		return;
	}
	kept->len = len;
	memcpy(kept->bytes, bytes, len);
}

int main(int argc, char **argv)
{
	static uint8_t mutation[INPUT_BYTES];
	unsigned long count = argc > 2 ? strtoul(argv[2], NULL, 0) : 0;
	struct dirent **names;
	uint64_t seed;
	int found = argc > 1 ? scandir(argv[1], &names, NULL, by_name) : -1;

	if (found < 0) {
		(void)fprintf(stderr, "usage: %s CORPUS_FOLDER [MUTATIONS]\n", argv[0]);
		return 2;
	}
	for (int i = 0; i < found; free(names[i++]))
		read_input(argv[1], names[i]->d_name);
	free(names);
	FUZZ_REQUIRE(input_count > 0);
	seed = random_seed();
	(void)fprintf(stderr, "%s: %u inputs, %lu mutations\n", argv[1], input_count, count);
	for (unsigned i = 0; i < input_count; i++) {
		keep_input(inputs[i].bytes, inputs[i].len);
		(void)LLVMFuzzerTestOneInput(inputs[i].bytes, inputs[i].len);
	}
	for (unsigned long i = 0; i < count; i++) {
		size_t len = mutate(mutation, &seed);

		keep_input(mutation, len);
		(void)LLVMFuzzerTestOneInput(mutation, len);
	}
	keep_input(NULL, 0);
	for (unsigned i = 0; i < input_count; i++)
		free(inputs[i].bytes);
	return 0;
}
