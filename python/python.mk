# The hooks on saved tensors in C, for each Python that the tests may take and whose headers are there. Included by the Makefile.
#
# They lie beside the library, where the package finds them when it runs from a source tree; pip builds its own (setup.py).

# Its suffix and the folder of its headers.
hooks_query := import os, sysconfig as s; p = s.get_paths()["include"]; os.path.exists(p + "/Python.h") and print(s.get_config_var("EXT_SUFFIX") + "=" + p)
hooks_found := $(if $(SANITIZE),,$(foreach python,$(or $(PYTHON),python3) /usr/bin/python3,$(shell $(python) -ISc '$(hooks_query)' 2>/dev/null)))
hooks_src   := $(wildcard python/hooks/*.c)
hooks_made  := $(sort $(foreach found,$(hooks_found),$(BUILD)/_hooks$(firstword $(subst =, ,$(found)))))

all: $(hooks_made)

# Of several folders for one suffix the first.
$(BUILD)/_hooks%: $(hooks_src) python/hooks/hooks.h include/spillway/cache.h $(BUILD)/flags
	$(call say,LD,$@)
	$(q)$(CC) $(filter-out -MMD -MP,$(cflags)) $(filter-out --coverage -fprofile-update=atomic,$(CFLAGS)) -isystem $(firstword $(patsubst $*=%,%,$(filter $*=%,$(hooks_found)))) -shared \
		-o $@ $(hooks_src)
