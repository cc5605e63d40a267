# What of the Python package is built. Included by the Makefile.
#
# The hooks: one module for every Python from 3.11 on, by its limited API.
# It lies beside the library, where the package finds it when it runs from a source tree; pip builds its own (setup.py).

# Folders of headers.
hooks_query := import os, sys, sysconfig as s; p = s.get_paths()["include"]; sys.version_info >= (3, 11) and os.path.exists(p + "/Python.h") and print(p)
hooks_found := $(if $(SANITIZE),,$(foreach python,$(or $(PYTHON),python3) /usr/bin/python3,$(shell $(python) -ISc '$(hooks_query)' 2>/dev/null)))
hooks_obj   := $(patsubst %.c,$(BUILD)/%.o,$(wildcard python/hooks/*.c))
hooks_made  := $(if $(hooks_found),$(BUILD)/_hooks.abi3.so)

# The types of the library's counters, which are installed beside counted.py.
stub_made   := $(if $(hooks_found),$(BUILD)/counted.pyi)

all: $(hooks_made) $(stub_made)

$(hooks_obj): private cflags += -isystem $(firstword $(hooks_found))

$(BUILD)/_hooks.abi3.so: $(hooks_obj)
	$(call say,LD,$@)
	$(q)$(CC) -shared $(CFLAGS) $(ldflags) -o $@ $^

$(BUILD)/counted.pyi: $(BUILD)/libspillway.so scripts/counters.py python/spillway/_core/counted.py
	$(call say,GEN,$@)
	$(q)SPILLWAY_LIBRARY=$(abspath $<) $(or $(PYTHON),python3) -B scripts/counters.py --stub $@

-include $(hooks_obj:.o=.d)
