# The fio engine: fio --ioengine=external:build/libspillway_fio.so. Included by the Makefile.
#
# fio installs no headers, so the exact source of the installed fio is fetched through the package manager, once, into build/fio-src.

fio_src    := $(BUILD)/fio-src
fio_obj    := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tools/fio_engine/*.c))
fio_cflags := -include $(fio_src)/config-host.h -isystem $(fio_src)

.PHONY: fio-engine
fio-engine: $(BUILD)/libspillway_fio.so ## build spillway as an engine of the installed fio

# The stamp keeps its time unless another fio was installed.
$(fio_src)/.spillway-version: FORCE
	$(q)tools/fio_engine/fetch.sh $(fio_src)

$(BUILD)/tools/fio_engine/%.o: tools/fio_engine/%.c $(BUILD)/flags $(fio_src)/.spillway-version
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(q)$(CC) $(cflags) $(harden) $(if $(filter fio_engine,$*),$(fio_cflags)) $(CFLAGS) -c $< -o $@

$(BUILD)/libspillway_fio.so: $(fio_obj) $(BUILD)/libspillway.a tools/fio_engine/fio_engine.map
	$(call say,LD,$@)
	$(q)$(CC) -shared $(sanitize) $(CFLAGS) $(ldflags) $(LTO) -Wl,--version-script=tools/fio_engine/fio_engine.map -o $@ \
		$(fio_obj) $(BUILD)/libspillway.a $(lib_libs)

# fio's own tool for the highest rate of small reads.
$(fio_src)/t/io_uring: $(fio_src)/.spillway-version
	$(call say,MAKE,$@)
	$(q)$(MAKE) -C $(fio_src) t/io_uring > $(fio_src)/make.log 2>&1 || { tail -n 5 $(fio_src)/make.log >&2; exit 1; }

# The same for any processor: valgrind, which counts instructions, does not know the newest ones.
$(BUILD)/fio-plain/t/io_uring: $(fio_src)/t/io_uring
	$(call say,MAKE,$@)
	$(q)rm -rf $(BUILD)/fio-plain && cp -a $(fio_src) $(BUILD)/fio-plain && find $(BUILD)/fio-plain -name '*.o' -delete && \
		rm $@ && $(MAKE) -C $(BUILD)/fio-plain CONFIG_BUILD_NATIVE= t/io_uring > $(BUILD)/fio-plain/make.log 2>&1 || \
		{ tail -n 5 $(BUILD)/fio-plain/make.log >&2; exit 1; }

.PHONY: fio-peak
fio-peak: $(fio_src)/t/io_uring $(BUILD)/fio-plain/t/io_uring ## build t/io_uring of the installed fio

-include $(fio_obj:.o=.d)
