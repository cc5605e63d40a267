# The simulation: the library over simulated drives, in simulated time. Included by the Makefile.
#
# The drives take the place of the kernel's by the linker's --wrap: what one part of the library calls in another, or in libc, is
# answered by tests/sim. Nothing in the library knows of it.

sim_obj   := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/sim/*.c))
sim_main  := $(BUILD)/tests/sim/main.o
sim_wraps := spw_clock_ns spw_queue_open spw_queue_reap spw_store__pool_stop spw_queue_submit nanosleep pthread_cond_wait getrandom time spw_status__take spw_status__drop spw_status__sweep \
	spw_drives__share_open spw_drives__share_close spw_drives__loops_read spw_drives__overlap_refuse \
	spw_device_open spw_device_path $(addprefix spw_engine__device_,lock_shared translate_error) \
	$(addprefix spw_drives__safety_,signatures partitions in_use locked aliases_locked still writable conventional) spw_parallel spw_thread_start spw_fd_locked \
	spw_checksum spw_store__checksum_vector spw_store__copy_and_checksum spw_store__write_abandon spw_store__transfer_issue spw_store__transfer_give spw_alloc__put spw_store__object_drop \
	spw_cache__entry_become
sim_flags := $(sim_wraps:%=-Wl,--wrap=%)

$(BUILD)/tests/sim/sim: $(sim_obj) $(BUILD)/libspillway.a tests/sim/sim.mk
	$(call say,LD,$@)
	$(q)$(CC) $(sanitize) $(CFLAGS) $(ldflags) $(sim_flags) -o $@ $(sim_obj) $(BUILD)/libspillway.a $(lib_libs)

build-tests: $(BUILD)/tests/sim/sim

.PHONY: sim
sim: ## simulate drives with every fault: SEEDS=number, SEED=one, FAULTS=kind,... STEPS=file (replay), FIRST=, JOBS=
	@scripts/deps.sh build && $(MAKE) --no-print-directory $(BUILD)/tests/sim/sim && $(BUILD)/tests/sim/sim \
		--out $(BUILD) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST)) $(if $(SEED),--seed $(SEED)) \
		$(if $(FAULTS),--faults $(FAULTS)) $(if $(STEPS),--steps $(STEPS)) $(if $(JOBS),--jobs $(JOBS))

-include $(sim_obj:.o=.d)

# Test programs over simulated drives: the same, with a main function of their own.
sim_tests := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/unit/test_sim_*.c))
$(sim_tests): $(filter-out $(sim_main),$(sim_obj))
$(sim_tests): test_libs := $(sim_flags) $(BUILD)/libspillway.a $(test_libs)
