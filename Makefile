# spillway: `make help` lists the targets and the variables.
#
# Every folder is one layer; build/ mirrors the tree. Each target that needs packages asks scripts/deps.sh for them first.

ifeq ($(origin CC),default)
CC       := gcc
endif
CFLAGS   ?= -O2 -g
LDFLAGS  ?=
PREFIX   ?= /usr/local
LIBDIR   ?= $(PREFIX)/lib
DESTDIR  ?=
ZSHDIR   ?= $(PREFIX)/share/zsh/site-functions
SANITIZE ?=
FUZZ_SANITIZE ?= address,undefined
BUILD    ?= build$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))
comma    := ,

VERSION := $(shell sed -n 's/^\#define SPW_VERSION "\(.*\)"/\1/p' include/spillway/error.h)
SOMAJOR := $(firstword $(subst ., ,$(VERSION)))

sanitize  := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer)
# What a sanitizer puts in makes gcc warn of code that nobody wrote: shown, but no error.
warnings  := -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes $(if $(SANITIZE),,-Werror)
cflags    := -std=gnu17 -D_GNU_SOURCE -Iinclude -I. -fPIC -fvisibility=hidden $(warnings) -MMD -MP $(sanitize)
# Checks that cost next to nothing, in all that is compiled; those of libc's calls need the optimizer, and would hide calls from a
# sanitizer. Other levels of it are for CFLAGS to choose.
optimized := $(filter-out -O0,$(lastword $(filter -O%,$(CFLAGS))))
fortify   := -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
# The library and the command are optimized over all their files: a call from one file to the next costs what one within a file does.
# Objects hold machine code as well, so that any linker takes libspillway.a; tests are linked without. LTO= leaves it out.
lto_flags := -flto=auto -ffat-lto-objects
LTO       ?= $(if $(or $(SANITIZE),$(FUZZER),$(if $(optimized),,O0)),,$(shell echo 'int x;' | $(CC) $(lto_flags) -Werror -xc -c -o /dev/null - 2>/dev/null && echo '$(lto_flags)'))
harden    := -fstack-protector-strong $(if $(or $(SANITIZE),$(FUZZER),$(findstring _FORTIFY_SOURCE,$(CFLAGS))),,$(if $(optimized),$(fortify)))
# And in all that is linked: what the loader has filled in can no longer be changed.
ldflags   := -Wl,-z,relro -Wl,-z,now -fno-lto $(LDFLAGS)
lib_libs  := -luring -laio -lblkid -lnuma -lxxhash -ljansson -lz -lpthread -lm
test_libs := -lcmocka -ldl $(lib_libs)

layers   := util alloc layout engine status drives store state plan trace tensor
lib_src  := $(wildcard $(layers:%=%/*.c) $(layers:%=%/*/*.c))
tool_src := $(wildcard tools/*.c tools/ui/*.c tools/bench/*.c tools/replay/*.c simstore/*.c tools/plan/*.c tools/completion/*.c tools/grant/*.c tools/metrics/*.c)
test_src := $(wildcard tests/unit/test_*.c tests/integration/test_*.c tests/vm/test_*.c)
fuzz_src := $(wildcard tests/fuzz/fuzz_*.c)
lib_obj  := $(lib_src:%.c=$(BUILD)/%.o)
tool_obj := $(tool_src:%.c=$(BUILD)/%.o)
test_obj := $(test_src:%.c=$(BUILD)/%.o)
test_bin := $(test_obj:.o=)
fuzz_bin := $(fuzz_src:%.c=$(BUILD)/%)

q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' '$(1)' '$(2)')

# ---- Build ------------------------------------------------------------------------------------------------------------------------

.PHONY: all
all: $(BUILD)/libspillway.so $(BUILD)/libspillway.a $(BUILD)/spillway ## build the libraries and the command

# Other flags or another compiler: compile again.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(cflags) $(harden) $(CFLAGS) $(COUNTING) $(LTO) $(ldflags)' | cmp -s - $@ || \
		echo '$(CC) $(cflags) $(harden) $(CFLAGS) $(COUNTING) $(LTO) $(ldflags)' > $@
.PHONY: FORCE
FORCE:

$(BUILD)/%.o: %.c $(BUILD)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(q)$(CC) $(cflags) $(harden) $(CFLAGS) $(lto) -c $< -o $@

$(lib_obj) $(tool_obj): private lto := $(LTO)

# XXH3 is here what it is in its library, whatever the rest is built with: optimized, and without a sanitizer's checks.
wide = -O2 -fno-sanitize=all $(if $(filter x86_64%,$(shell $(CC) -dumpmachine)),$(1))
$(BUILD)/util/checksum_avx2.o:   override CFLAGS += $(call wide,-mavx2)
$(BUILD)/util/checksum_avx512.o: override CFLAGS += $(call wide,-mavx512f)

$(BUILD)/libspillway.a: $(lib_obj)
	$(call say,AR,$@)
	$(q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/libspillway.so.$(SOMAJOR): $(lib_obj) spillway.map
	$(call say,LD,$@)
	$(q)$(CC) -shared $(sanitize) $(CFLAGS) $(ldflags) $(LTO) -Wl,-soname,libspillway.so.$(SOMAJOR) \
		-Wl,--version-script=spillway.map $(if $(SANITIZE),,-Wl$(comma)-z$(comma)defs) -o $@ $(lib_obj) $(lib_libs)

$(BUILD)/libspillway.so: $(BUILD)/libspillway.so.$(SOMAJOR)
	$(q)ln -sf $(<F) $@

$(BUILD)/spillway: $(tool_obj) $(BUILD)/libspillway.a
	$(call say,LD,$@)
	$(q)$(CC) $(sanitize) $(CFLAGS) $(ldflags) $(LTO) -o $@ $^ $(lib_libs)

# ---- Test -------------------------------------------------------------------------------------------------------------------------
# A test links the whole library, or, if a line of its source reads `/* link: util tools/ui/stop */`, the objects of those folders and
# files only (libspillway: the library): so it may replace a layer by a fake, or include a source file to reach what is static in it.

# For coverage, the library's sources count the branches that they take, also where a test includes one. All else need not be slow.
ifdef COUNTING
counted := $(lib_obj) $(patsubst %.c,$(BUILD)/%.o,$(shell grep -l '^#include ".*\.c"' $(test_src)))
$(counted): private override CFLAGS += $(COUNTING)
# A planner is one thread's: without atomic counters the tests of plans take a quarter of the time. Where two threads plan
# at once a count can become wrong, even negative: test_cache_ranks, which does so, forgets its counts (SPW_COUNTING).
$(filter $(BUILD)/plan/%,$(counted)): private override CFLAGS += -fprofile-update=single
$(filter-out $(counted),$(test_obj)) $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/sim/*.c)): private override CFLAGS += -O2 -DSPW_COUNTING
endif

# Version 2 of cmocka has other names for what version 1 knows by these alone.
$(test_obj): private cflags += -DCMOCKA_DISABLE_DEPRECATION_WARNINGS

link_lines := $(if $(test_src),$(shell awk '/^\/\* link: .* \*\/$$/ { for (i = 3; i < NF; i++) print FILENAME ":" $$i }' $(test_src) $(fuzz_src)))
linked      = $(patsubst $(1):%,%,$(filter $(1):%,$(link_lines)))
# And with `/* wrap: malloc pread */` the library's calls of those functions lead to the test's __wrap_malloc() and so on.
wrap_lines := $(if $(test_src),$(shell awk '/^\/\* wrap: .* \*\/$$/ { for (i = 3; i < NF; i++) print FILENAME ":" $$i }' $(test_src)))
wrapped     = $(foreach name,$(patsubst $(1):%,%,$(filter $(1):%,$(wrap_lines))),-Wl$(comma)--wrap=$(name) $(checked_$(name)))
# Where its calls are checked, libc's headers call these by another name; what follows the arguments that both have does not matter.
checked_open     := -Wl,--wrap=__open_2,--defsym=__wrap___open_2=__wrap_open
checked_realpath := -Wl,--wrap=__realpath_chk,--defsym=__wrap___realpath_chk=__wrap_realpath
link_what   = $(if $(call linked,$(1)),$(foreach folder,$(call linked,$(1)),$(filter $(BUILD)/$(folder)/% $(BUILD)/$(folder).o $(BUILD)/$(folder).a,$(lib_obj) $(tool_obj) $(BUILD)/libspillway.a)),$(BUILD)/libspillway.a)

define test_rule
$(BUILD)/$(1:.c=): $(BUILD)/$(1:.c=.o) $(call link_what,$(1))
	$$(call say,LD,$$@)
	$$(q)$$(CC) $$(sanitize) $$(CFLAGS) $$(ldflags) $(call wrapped,$(1)) -o $$@ $$^ $$(test_libs)
endef
$(foreach src,$(test_src),$(eval $(call test_rule,$(src))))

# A fuzz target, driven by its corpus; with FUZZER=1 (make fuzz) by libFuzzer.
define fuzz_rule
$(BUILD)/$(1:.c=): $(BUILD)/$(1:.c=.o) $(if $(FUZZER),,$(BUILD)/tests/fuzz/regress.o) $(call link_what,$(1))
	$$(call say,LD,$$@)
	$$(q)$$(CC) $$(sanitize) $$(CFLAGS) $$(ldflags) $(if $(FUZZER),-fsanitize=fuzzer) -o $$@ $$^ $$(lib_libs)
endef
$(foreach src,$(fuzz_src),$(eval $(call fuzz_rule,$(src))))
# How near a word is to all that are known: most of the time of two targets went into the fuzzer's notes on that.
ifdef FUZZER
$(BUILD)/tools/ui/nearest.o: override CFLAGS := $(filter-out -fsanitize=fuzzer-no-link,$(CFLAGS))
# Where numbers are compared with computed ones, such notes lead nowhere and take most of the time: there only branches count.
without_compares := $(patsubst -fsanitize=fuzzer-no-link,-fsanitize-coverage=inline-8bit-counters$(comma)pc-table,$(CFLAGS))
$(filter $(foreach folder,plan trace tensor,$(BUILD)/$(folder)/%),$(lib_obj)) $(patsubst %,$(BUILD)/tests/fuzz/fuzz_%.o,cache model plan): override CFLAGS := $(without_compares)
endif

.PHONY: build-tests
build-tests: all $(test_bin) $(fuzz_bin)

# Packages first, then the build, then the run: in this order also under make -j.
run_tests = @scripts/deps.sh build test && $(MAKE) --no-print-directory build-tests && \
            CC='$(CC)' CFLAGS='$(CFLAGS)' LDFLAGS='$(LDFLAGS)' SANITIZE='$(SANITIZE)' tests/run --build $(BUILD) $(WORDS)

# What others use drives for, and fio: a case whose tool is missing is skipped, and says so.
install_others = @scripts/deps.sh others || echo 'what needs them is skipped' >&2

# tests: the folder, of which make would say that there is nothing to do.
.PHONY: tests
tests: test
.PHONY: test test-all test-rest test-uncovered test-unit test-integration test-python test-asan test-tsan test-valgrind
test: ## install what is missing, build, run what a change to the library or the package can break; WORDS= for some, here and below
	$(run_tests) --layer test
test-all: ## every test: all configurations, and the runner, rig, soak, benches, demo, examples, fio engine
	$(install_others)
	$(run_tests)
test-rest: ## what test-all has and test has not
	$(install_others)
	$(run_tests) --layer rest
test-uncovered: ## test-all without the C integration tests in the configurations in which make coverage runs them
	$(install_others)
	$(run_tests) $(covered:%=--except %)
test-unit: ## only tests/unit
	$(run_tests) --kind unit
test-integration: ## only tests/integration: C programs in every configuration, and scripts
	$(run_tests) --kind integration --kind script
test-python: ## only tests/python
	$(run_tests) --kind python
test-asan: ## C tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(MAKE) --no-print-directory SANITIZE=address,undefined test-sanitized
test-tsan: ## C tests under ThreadSanitizer
	@$(MAKE) --no-print-directory SANITIZE=thread test-sanitized
# By libaio: valgrind lets no other thread run while one waits in io_uring_enter(), so that who is to wake it never does.
test-valgrind: ## C tests under valgrind
	@scripts/deps.sh valgrind
	$(run_tests) --kind unit --kind integration --config files-libaio --timeout 600 --valgrind

.PHONY: test-vm test-vm-iommufd
test-vm: ## real NVMe drives in a virtual machine: polled, pulled out, slow, failing, on two NUMA nodes
	@scripts/deps.sh build test vm && $(MAKE) --no-print-directory build-tests && tests/vm/suite --build $(BUILD)
test-vm-iommufd: ## what of it drives drives by vfio, by iommufd under a newer kernel: of Debian's suite SPW_VM_SUITE=
	@scripts/deps.sh build test vm && $(MAKE) --no-print-directory build-tests && tests/vm/suite --build $(BUILD) --iommufd

.PHONY: test-torch-versions
test-torch-versions: ## build, and run tests/python, with the PyTorch of other Debian releases (root); SUITES="trixie sid", --help
	@scripts/deps.sh releases && tests/python/versions.sh --work $(BUILD)/torch-versions $(SUITES)

.PHONY: test-ecosystem
test-ecosystem: ## with a new PyTorch and the packages that train with it, by pip (tests/ecosystem/pins.txt); WORDS= for some files
	@scripts/deps.sh build test venv && $(MAKE) --no-print-directory all && tests/ecosystem/run.sh $(BUILD) $(WORDS)

.PHONY: test-newest
test-newest: ## test-ecosystem with whatever the package index has today; BUILD/newest.md says what changed and what failed; WORDS=
	@scripts/deps.sh build test venv && $(MAKE) --no-print-directory all && tests/ecosystem/run.sh --newest $(BUILD) $(WORDS)

.PHONY: test-programs
test-programs: ## axolotl and LLaMA-Factory, each in an environment of its own with all it needs, by pip (6.5 GB); WORDS="axolotl llamafactory"
	@scripts/deps.sh build test venv && $(MAKE) --no-print-directory all && \
		for program in $(or $(WORDS),axolotl llamafactory); do tests/ecosystem/run.sh --program $$program $(BUILD) || exit 1; done

.PHONY: test-zoo
test-zoo: ## models of public packages, by pip (tests/zoo/pins.txt), train in every mode: the same bits; WORDS= for some, JOBS=2
	@scripts/deps.sh build venv && $(MAKE) --no-print-directory all && tests/zoo/run.sh $(BUILD) $(if $(JOBS),--jobs $(JOBS)) $(WORDS)

.PHONY: test-packages
test-packages: ## make deb, install, use and purge its packages in clean roots of Debian (root); SUITES="bookworm trixie"
	@scripts/deps.sh releases && tests/packages/debian.sh --work $(BUILD)/packages $(SUITES)

.PHONY: test-device
test-device: all ## training on a device that is late on purpose, with a PyTorch by pip; SEEDS=500 FIRST=1 JOBS=2
	@scripts/deps.sh venv && tests/device/device.sh --build $(BUILD) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST)) \
		$(if $(JOBS),--jobs $(JOBS))

.PHONY: bench-device
bench-device: all ## what the host takes to save a tensor of a device and to use it again, without a device
	@scripts/deps.sh venv && tests/device/device.sh --build $(BUILD) --host-time

-include tests/device/gpu.mk
.PHONY: gpu-kit
gpu-kit: ## BUILD-kit/spillway-gpu.tar.gz: test-gpu and bench-gpu for a machine with a GPU and PyTorch, without network, root, compiler
	@scripts/deps.sh build demo && $(MAKE) --no-print-directory BUILD=$(BUILD)-kit LDFLAGS='-Wl,--disable-new-dtags,-rpath,\$$$$ORIGIN' all && \
		tests/device/kit.sh $(BUILD)-kit

.PHONY: test-pytorch-suite
test-pytorch-suite: ## PyTorch's own tests of autograd and modules, all that is saved on drives (30 min); WORDS= JOBS=2
	@scripts/deps.sh build pytorch-suite && $(MAKE) --no-print-directory all && tests/pytorch/fetch.sh $(BUILD)/pytorch-suite && \
		tests/pytorch/suite.py --build $(BUILD) $(if $(JOBS),--jobs $(JOBS)) $(WORDS)

.PHONY: test-peers-suites
test-peers-suites: ## the tests that trl, accelerate and DeepSpeed have of their offloading, on spillway, by pip (2 GB); WORDS=, DEEPSPEED_TESTS=
	@scripts/deps.sh build venv && $(MAKE) --no-print-directory all && \
		DEEPSPEED_TESTS='$(DEEPSPEED_TESTS)' tests/peers/run.sh $(BUILD) $(WORDS)

.PHONY: test-sanitized
test-sanitized:
	$(run_tests) --kind unit --kind integration --config files --timeout 600

.PHONY: check
check: ## style, static analysis, one-way includes, files without circles, function length
	@scripts/deps.sh build check && $(MAKE) --no-print-directory all && SPW_BUILD='$(BUILD)' CHECK_CFLAGS='$(filter-out -MMD -MP,$(cflags))' scripts/check.sh

.PHONY: abi
abi: ## the library's binary interface against that of the last tag; TAG= for another
	@scripts/deps.sh build abi && scripts/abi.sh $(BUILD) $(TAG)

.PHONY: fuzz
fuzz: ## fuzz every parser and the cache's calls; SECONDS= for each target (60), TARGET= for one, FUZZ_SANITIZE= faster, without
	@scripts/deps.sh build fuzz
	@$(MAKE) --no-print-directory CC=clang BUILD=$(BUILD)-fuzz$(if $(FUZZ_SANITIZE),,-fast) FUZZER=1 \
		SANITIZE='$(FUZZ_SANITIZE)' CFLAGS='-O2 -g -fsanitize=fuzzer-no-link' fuzz-run
.PHONY: fuzz-run
fuzz-run: $(fuzz_bin)
	@BUILD='$(BUILD)' tests/fuzz/run.sh $(or $(SECONDS),60) $(TARGET)

.PHONY: mutants
mutants: ## seeded bugs, one at a time: the tests must catch each; WORDS= for some, PART=K/N; writes docs/generated/mutants.md
	@scripts/deps.sh build test
	@tests/mutants/run.py --build $(BUILD)-mutants $(if $(PART),--part $(PART)) --table docs/generated/mutants.md $(WORDS)

.PHONY: coverage
coverage: ## C tests in two configurations: what they reach, per layer; fails below the floors; report in BUILD-coverage/coverage.txt
	@scripts/deps.sh coverage
	@$(MAKE) --no-print-directory BUILD=$(BUILD)-coverage CFLAGS='-O0 -g' COUNTING='--coverage -fprofile-update=atomic' \
		LDFLAGS=--coverage coverage-run

# Both backends, and both kinds of drives.
covered := files-libaio loop512-io_uring

# Which lines are reached is told also where a test fails.
.PHONY: coverage-run
coverage-run:
	@find $(BUILD) -name '*.gcda' -delete 2>/dev/null; true
	@status=0; $(MAKE) --no-print-directory coverage-tests || status=1; scripts/coverage.sh $(BUILD) $(layers) && exit $$status
.PHONY: coverage-tests
coverage-tests:
	$(run_tests) --kind unit --kind integration $(covered:%=--config %) --timeout 900 .c

# ---- Show -------------------------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: ## train a small GPT three ways (keep, recompute, spillway) and compare; DEMO_DEVICES= for real drives
	@scripts/deps.sh build demo && $(MAKE) --no-print-directory all && SPW_BUILD=$(abspath $(BUILD)) scripts/demo.sh

# PyTorch 2.1 or later, which Debian 12 has not: of PYTHON, else of BUILD/venv.
with_new_torch = python=$${PYTHON:-$$(tests/venv.sh $(BUILD) torch numpy)} && PYTHON=$$python SPW_BUILD=$(abspath $(BUILD))

.PHONY: demo-big
demo-big: ## train a GPT several times larger than the 2 GiB of memory it is given, kill it, see it go on; as root
	@scripts/deps.sh build venv && $(MAKE) --no-print-directory all && $(with_new_torch) scripts/demo-big.sh

.PHONY: bench
bench: ## measure against fio on the drive rig; BENCH_DEVICES= for real drives
	@scripts/deps.sh build bench && $(MAKE) --no-print-directory all $(BUILD)/tests/bench/peak_bench && SPW_BUILD=$(abspath $(BUILD)) tests/bench/bench.sh

$(BUILD)/tests/bench/%_bench: $(BUILD)/tests/bench/%_bench.o $(BUILD)/libspillway.a
	$(call say,LD,$@)
	$(q)$(CC) $(sanitize) $(CFLAGS) $(ldflags) $(LTO) -o $@ $^ $(lib_libs)

.PHONY: bench-store
bench-store: ## measure the store on throttled drives against fio: striping, slow drives, partitions; BENCH_ROUNDS=
	@scripts/deps.sh build bench && $(MAKE) --no-print-directory all $(BUILD)/tests/bench/store_bench && \
		tests/bench/store.py --build $(BUILD)

.PHONY: bench-scale
bench-scale: ## CPU of a byte on 1 to 8 null drives, and its model; beside fio on drives in memory and files (root); BENCH_ROUNDS=
	@scripts/deps.sh build bench && $(MAKE) --no-print-directory all $(addprefix $(BUILD)/tests/bench/,store_bench scale_bench drive_sum_bench) && \
		tests/bench/scale.py --build $(BUILD)

# What writes build/bench/NAME.json for `make results`.
results := python3 -B python/spillway/bench/results.py

.PHONY: bench-cache bench-plan bench-plan-replays bench-plan-training bench-alloc
bench-cache: $(BUILD)/tests/bench/cache_bench ## what the tensor cache costs for each tensor, and planning for a step
	@mkdir -p $(BUILD)/bench && $(results) run cache 'The tensor cache' $(BUILD)/bench -- $< $(BUILD)/bench
bench-plan: bench-plan-replays bench-plan-training ## both of these
bench-plan-replays: $(BUILD)/tests/bench/plan_bench $(BUILD)/tests/bench/scopes_bench $(BUILD)/tests/bench/host_bench $(BUILD)/spillway ## how long planning takes, and what the plans are worth: kept, spilled, recomputed
	@$(results) run plan 'The planner' $(BUILD)/bench -- tests/bench/plan.sh $(BUILD)
$(BUILD)/tests/bench/scopes_bench: $(BUILD)/tools/replay/scopes.o $(BUILD)/tools/replay/step.o
bench-plan-training: ## GPT, BERT and T5 trained by such plans on throttled drives, step by step in turn; ranks that share them (root); BENCH_OPTIONS=
	@scripts/deps.sh build demo bench venv && $(MAKE) --no-print-directory all && $(with_new_torch) tests/bench/plan_turns.sh
bench-alloc: $(BUILD)/tests/bench/alloc_bench ## what the extent allocator costs, new and on an old, full drive
	@$(results) run alloc 'The extent allocator' $(BUILD)/bench -- $<

.PHONY: results
results: ## write docs/generated/, the tables of docs/RESULTS.md and docs/SCALING.md and the picture of README.md from what is in BUILD
	@$(results) render $(BUILD)/bench docs/generated/results.md >$(BUILD)/results.md && mv $(BUILD)/results.md docs/generated/results.md
	@tests/bench/results_page.py docs/generated/results.md docs/RESULTS.md
	@tests/bench/figures.py $(BUILD) docs/generated/figures.md
	@tests/bench/scale_page.py $(BUILD)/bench/scale.json docs/SCALING.md
	@tests/bench/peers_page.py $(BUILD)/bench/peers.json docs README.md

.PHONY: bench-torch
bench-torch: ## GPT, BERT and T5 kept, recomputed, spilled, throttled: memory, time, every bit; BENCH_ROUNDS= BENCH_MINUTES=
	@scripts/deps.sh build demo bench && $(MAKE) --no-print-directory all && SPW_BUILD=$(abspath $(BUILD)) tests/bench/torch.sh

.PHONY: bench-turns
bench-turns: ## step times of GPT, BERT and T5 kept, recomputed and spilled, step by step in turn; BENCH_OPTIONS=
	@scripts/deps.sh build demo bench && $(MAKE) --no-print-directory all && SPW_BUILD=$(abspath $(BUILD)) tests/bench/turns.sh

.PHONY: bench-operations
bench-operations: ## GPT, BERT, T5 and a Llama with single operations recomputed, no store: memory, time, every bit; BENCH_OPTIONS=
	@scripts/deps.sh build demo && $(MAKE) --no-print-directory all && mkdir -p $(BUILD)/bench && \
		SPILLWAY_LIBRARY=$(abspath $(BUILD))/libspillway.so $${PYTHON:-python3} tests/bench/operations.py --out $(BUILD)/bench \
			--command $(BUILD)/spillway $(BENCH_OPTIONS)

.PHONY: bench-compression
bench-compression: ## how far records of optimizer state compress without loss, and at what rate; BENCH_OPTIONS=
	@scripts/deps.sh build demo && $(MAKE) --no-print-directory all && mkdir -p $(BUILD)/bench && \
		SPILLWAY_LIBRARY=$(abspath $(BUILD))/libspillway.so $${PYTHON:-python3} tests/bench/compression.py --out $(BUILD)/bench \
			$(BENCH_OPTIONS)

.PHONY: fio-jobs
fio-jobs: all ## the job files of fio's source by fio and by spillway bench: bytes and transfers of each job; ONLY=WORD
	@tools/fio_engine/fetch.sh $(BUILD)/fio-src && tests/bench/fio_jobs.py --source $(BUILD)/fio-src --spillway $(BUILD)/spillway \
		--only "$(ONLY)" --report $(BUILD)/bench/fio-jobs.json

.PHONY: fio-page
fio-page: all ## docs/FIO.md: which of fio's options are taken, have no effect or are refused
	@sed -i '/^<!-- spillway bench --fio-options -->$$/q' docs/FIO.md && $(BUILD)/spillway bench --fio-options >>docs/FIO.md

.PHONY: counters
counters: all ## docs/COUNTERS.md from the tables of include/spillway/counters.h
	@SPILLWAY_LIBRARY=$(abspath $(BUILD))/libspillway.so scripts/counters.py

.PHONY: bench-state
bench-state: ## state and parameters on drives against memory, fio, torch.save and DeepSpeed (root); BENCH_ROUNDS= BENCH_OPTIONS=
	@scripts/deps.sh build demo bench peers venv && $(MAKE) --no-print-directory all && \
		$${PYTHON:-$$(tests/venv.sh $(BUILD) torch numpy setuptools wheel transformers deepspeed)} tests/bench/state.py --build $(BUILD) $(BENCH_OPTIONS)

.PHONY: bench-peers
bench-peers: ## a GPT trained in every way that moves tensors to drives: memory, time, full, dying drives (root); BENCH_ROUNDS= BENCH_OPTIONS=
	@scripts/deps.sh build demo bench peers venv && $(MAKE) --no-print-directory all && tests/bench/peers.sh $(BUILD) $(BENCH_OPTIONS)

.PHONY: bench-vm
bench-vm: ## NVMe passthrough against fio's io_uring_cmd in a virtual machine; BENCH_ROUNDS= BENCH_SECONDS=
	@scripts/deps.sh build bench vm && $(MAKE) --no-print-directory all && mkdir -p $(or $(BENCH_OUT),$(BUILD)/bench) && tests/vm/run \
		--build $(BUILD) --poll-queues 2 --append "tsc=reliable clocksource=tsc" --timeout 900 --env SPW_BUILD=$(abspath $(BUILD)) \
		--share $(abspath $(or $(BENCH_OUT),$(BUILD)/bench)) --env BENCH_OUT=$(abspath $(or $(BENCH_OUT),$(BUILD)/bench)) \
		--env BENCH_ROUNDS=$(or $(BENCH_ROUNDS),5) --env BENCH_SECONDS=$(or $(BENCH_SECONDS),2) -- python3 tests/vm/bench_nvme.py

.PHONY: bench-vfio
bench-vfio: ## drives driven from user space against fio through the kernel, in a virtual machine; BENCH_ROUNDS= BENCH_SECONDS=
	@scripts/deps.sh build bench vm && $(MAKE) --no-print-directory all $(BUILD)/tests/vm/test_vfio_open && \
		mkdir -p $(or $(BENCH_OUT),$(BUILD)/bench) && tests/vm/run --build $(BUILD) --iommu --numa 1 --drives 10 \
		--no-medium 8 --no-medium 9 --poll-queues 2 --timeout 900 --env SPW_BUILD=$(abspath $(BUILD)) \
		--share $(abspath $(or $(BENCH_OUT),$(BUILD)/bench)) --env BENCH_OUT=$(abspath $(or $(BENCH_OUT),$(BUILD)/bench)) \
		--env BENCH_ROUNDS=$(or $(BENCH_ROUNDS),5) --env BENCH_SECONDS=$(or $(BENCH_SECONDS),2) \
		--shell '. tests/vm/vfio.sh && vfio_take 4 5 6 7 9 && python3 tests/vm/bench_vfio.py && \
			SPW_TEST_BACKEND=vfio SPW_TEST_DEVICES="$$(cut -d" " -f5-8 <<<"$$SPW_TEST_DEVICES")" $(BUILD)/tests/vm/test_vfio_open'

.PHONY: bench-replay
bench-replay: ## replay recorded steps on drives from 8 to 0.25 GB/s: our plans against SSDTrain's rule
	@scripts/deps.sh build bench && $(MAKE) --no-print-directory all && tests/bench/replay.py --build $(BUILD)

# Large blocks for programs that do not know of it: `spillway run`.
-include malloc/malloc.mk
# The hooks of the Python package in C.
-include python/python.mk
# The fio engine brings its own rules: make fio-engine.
-include tools/fio_engine/fio.mk
# And the simulated drives: make sim.
-include tests/sim/sim.mk
# Minutes or days of faults: make soak.
-include tests/soak/soak.mk

# ---- Install ----------------------------------------------------------------------------------------------------------------------

headers := $(wildcard include/spillway/*.h)
pages   := $(patsubst include/spillway/%.h,$(BUILD)/man/spillway-%.3,$(filter-out %/spillway.h,$(headers)))
mans    := $(wildcard docs/*.1 docs/*.3) $(pages)
pyfiles := $(shell find python/spillway -name '*.py' -o -name py.typed 2>/dev/null)
# Where the interpreters that the tests may take look for packages below PREFIX; asked once, when it is needed. If they do not look
# below it at all, PYTHONPATH has to name the folder.
pydir_query := import site; print(*[d for d in site.getsitepackages() if d.startswith("$(PREFIX)/lib/")][:1])
pydirs_found = $(sort $(foreach python,$(or $(PYTHON),python3) /usr/bin/python3,$(shell $(python) -Ic '$(pydir_query)' 2>/dev/null)))
pydirs       = $(eval pydirs := $$(or $$(pydirs_found),$(PREFIX)/lib/python3/dist-packages))$(pydirs)
mandir  := $(PREFIX)/share/man
# Each function has a name of its own for the page that it is on.
each_function = for page in $(pages:$(BUILD)/man/spillway-%.3=%); do for name in $$(scripts/manpage.sh --functions include/spillway/$$page.h); do
# Built anew if it is older than the library that is in it.
fio_made := $(wildcard $(BUILD)/libspillway_fio.so)
solib   := libspillway.so.$(VERSION)

$(BUILD)/spillway.pc: spillway.pc.in include/spillway/error.h FORCE
	@mkdir -p $(@D)
	$(q)sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' $< > $@

$(BUILD)/man/spillway-%.3: include/spillway/%.h include/spillway/error.h scripts/manpage.sh
	@mkdir -p $(@D)
	$(q)scripts/manpage.sh $< >$@

# How shells complete the command: their files below PREFIX, but for zsh's.
completed := $(BUILD)/completion/bash $(BUILD)/completion/zsh $(BUILD)/completion/fish
bash_file := $(PREFIX)/share/bash-completion/completions/spillway
fish_file := $(PREFIX)/share/fish/vendor_completions.d/spillway.fish
$(completed): $(BUILD)/completion/%: $(BUILD)/spillway
	@mkdir -p $(@D)
	$(q)$< completion $* >$@

.PHONY: install
install: all $(BUILD)/spillway.pc $(pages) $(completed) $(fio_made) ## install under PREFIX (default /usr/local), staged below DESTDIR; the fio engine if it was built
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include/spillway
	install -m 644 $(headers) $(DESTDIR)$(PREFIX)/include/spillway/
	install -m 644 $(BUILD)/libspillway.a $(DESTDIR)$(LIBDIR)/
	install -m 755 $(BUILD)/libspillway.so.$(SOMAJOR) $(DESTDIR)$(LIBDIR)/$(solib)
	install -D -m 755 $(BUILD)/libspillway_malloc.so $(DESTDIR)$(PREFIX)/lib/spillway/libspillway_malloc.so
	$(if $(fio_made),install -D -m 755 $(fio_made) $(DESTDIR)$(LIBDIR)/fio/libspillway_fio.so)
	ln -sf $(solib) $(DESTDIR)$(LIBDIR)/libspillway.so.$(SOMAJOR)
	ln -sf libspillway.so.$(SOMAJOR) $(DESTDIR)$(LIBDIR)/libspillway.so
	install -m 644 $(BUILD)/spillway.pc $(DESTDIR)$(LIBDIR)/pkgconfig/
	install -m 755 $(BUILD)/spillway $(DESTDIR)$(PREFIX)/bin/
	install -D -m 644 $(BUILD)/completion/bash $(DESTDIR)$(bash_file)
	install -D -m 644 $(BUILD)/completion/zsh $(DESTDIR)$(ZSHDIR)/_spillway
	install -D -m 644 $(BUILD)/completion/fish $(DESTDIR)$(fish_file)
	@for man in $(mans); do install -D -m 644 $$man $(DESTDIR)$(mandir)/man$${man##*.}/$${man##*/} || exit 1; done
	@$(each_function) ln -sf spillway-$$page.3 $(DESTDIR)$(mandir)/man3/$$name.3 || exit 1; done; done
	@for dir in $(pydirs); do \
		echo "install the Python package into $(DESTDIR)$$dir"; \
		for file in $(pyfiles); do install -D -m 644 $$file $(DESTDIR)$$dir/$${file#python/} || exit 1; done; \
		for file in $(hooks_made); do install -D -m 755 $$file $(DESTDIR)$$dir/spillway/$${file##*/} || exit 1; done; \
		for file in $(stub_made); do install -m 644 $$file $(DESTDIR)$$dir/spillway/_core/ || exit 1; done; \
	done
	@[ -n '$(pydirs_found)' ] || echo 'no Python looks there: set PYTHONPATH=$(pydirs), or let pip install .'
	@[ -n '$(DESTDIR)' ] || [ "$$(id -u)" != 0 ] || ! grep -qsxF '$(LIBDIR)' /etc/ld.so.conf /etc/ld.so.conf.d/*.conf || ldconfig

.PHONY: uninstall
uninstall: ## remove what install put there (same PREFIX, LIBDIR, DESTDIR)
	rm -f $(headers:include/%=$(DESTDIR)$(PREFIX)/include/%) $(DESTDIR)$(PREFIX)/bin/spillway
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,libspillway.a $(solib) libspillway.so.$(SOMAJOR) libspillway.so pkgconfig/spillway.pc fio/libspillway_fio.so)
	rm -f $(addprefix $(DESTDIR),$(PREFIX)/lib/spillway/libspillway_malloc.so $(bash_file) $(ZSHDIR)/_spillway $(fish_file))
	@for man in $(mans); do rm -f $(DESTDIR)$(mandir)/man$${man##*.}/$${man##*/}; done
	@$(each_function) rm -f $(DESTDIR)$(mandir)/man3/$$name.3; done; done
	rm -rf $(pydirs:%=$(DESTDIR)%/spillway)
	@rmdir $(DESTDIR)$(PREFIX)/include/spillway $(DESTDIR)$(LIBDIR)/fio $(DESTDIR)$(PREFIX)/lib/spillway 2>/dev/null || true

.PHONY: deb
deb: ## BUILD/deb: packages for Debian and Ubuntu: spillway, libspillway0, libspillway-dev, python3-spillway, spillway-fio
	@scripts/deps.sh build deb && scripts/deb.sh $(BUILD)

.PHONY: wheel
wheel: ## BUILD/dist: a source distribution, and from it a wheel with the library, for machines without a compiler
	@scripts/deps.sh build wheel && python=$$(scripts/python-with.sh setuptools,wheel,pip wheel) && mkdir -p $(BUILD)/dist && \
		$$python setup.py -q sdist -d $(BUILD)/dist && CFLAGS=-O2 $$python -m pip wheel -q --no-build-isolation \
		--no-index --no-deps -w $(BUILD)/dist $(BUILD)/dist/spillway-$(VERSION).tar.gz && ls -l $(BUILD)/dist

.PHONY: clean
clean: ## remove everything built
	rm -rf build build-*
	@if [ -f '$(BUILD)/flags' ]; then rm -rf '$(BUILD)'; fi

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | sort | awk -F'|' '{ printf "  %-19s %s\n", $$1, $$2 }'
	@echo
	@echo '  CC=clang  CFLAGS="-O0 -g"  LDFLAGS=...  SANITIZE=address,undefined  BUILD=folder  V=1 (show commands)'
	@echo '  PREFIX=/usr LIBDIR=... ZSHDIR=... DESTDIR=...  PYTHON=interpreter with PyTorch'
	@echo '  Tests: SPW_SEED=number (repeat a random test); tests/run --help (one test, one configuration)'

-include $(lib_obj:.o=.d) $(tool_obj:.o=.d) $(test_obj:.o=.d) $(fuzz_src:%.c=$(BUILD)/%.d)
