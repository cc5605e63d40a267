# The hooks on saved tensors in C, for each Python that the tests may take and whose headers are there; and what reads tensors for
# them, for each PyTorch whose headers are there. Included by the Makefile.
#
# They lie beside the library, where the package finds them when it runs from a source tree; pip builds its own (setup.py).

hooks_pythons := $(if $(SANITIZE),,$(or $(PYTHON),python3) /usr/bin/python3)

# Its suffix and the folder of its headers.
hooks_query := import os, sysconfig as s; p = s.get_paths()["include"]; os.path.exists(p + "/Python.h") and print(s.get_config_var("EXT_SUFFIX") + "=" + p)
hooks_found := $(foreach python,$(hooks_pythons),$(shell $(python) -ISc '$(hooks_query)' 2>/dev/null))
hooks_src   := $(wildcard python/hooks/*.c)
hooks_made  := $(sort $(foreach found,$(hooks_found),$(BUILD)/_hooks$(firstword $(subst =, ,$(found)))))

# The suffix, the folder of PyTorch, its version.
reader_query := import sys; sys.path.insert(0, "python"); import torch_headers as t; t.tell()
reader_found := $(if $(hooks_found),$(foreach python,$(hooks_pythons),$(shell $(python) -Bc '$(reader_query)' 2>/dev/null)))
reader_made  := $(sort $(foreach found,$(reader_found),$(BUILD)/_reader$(firstword $(subst =, ,$(found)))))

all: $(hooks_made) $(reader_made)

# Of several folders for one suffix the first.
hooks_headers = $(firstword $(patsubst $*=%,%,$(filter $*=%,$(hooks_found))))
reader_torch  = $(subst =, ,$(firstword $(patsubst $*=%,%,$(filter $*=%,$(reader_found)))))

$(BUILD)/_hooks%: $(hooks_src) python/hooks/hooks.h python/hooks/reader.h include/spillway/cache.h $(BUILD)/flags
	$(call say,LD,$@)
	$(q)$(CC) $(filter-out -MMD -MP,$(cflags)) $(harden) $(filter-out --coverage -fprofile-update=atomic,$(CFLAGS)) $(ldflags) \
		-isystem $(hooks_headers) -shared \
		-o $@ $(hooks_src)

# One that does not fit is done without: spillway is used as before, and says so when it is imported.
reader_flags = -O2 -fstack-protector-strong $(fortify) -fPIC -shared -Wall -Wextra -Wconversion -Werror -fvisibility=hidden \
	-Wl,--as-needed $(ldflags) -Iinclude \
	-isystem $(firstword $(reader_torch))/include -isystem $(firstword $(reader_torch))/include/torch/csrc/api/include \
	-isystem $(hooks_headers) -DSPW_TORCH='"$(lastword $(reader_torch))"' -L$(firstword $(reader_torch))/lib

# Changes when PyTorch or a flag does.
$(BUILD)/torch: FORCE
	@mkdir -p $(@D)
	@echo '$(CXX) $(reader_found) $(fortify) $(ldflags)' | cmp -s - $@ || echo '$(CXX) $(reader_found) $(fortify) $(ldflags)' > $@

$(BUILD)/_reader%: python/hooks/reader.cpp python/hooks/reader.h include/spillway/error.h $(BUILD)/torch
	$(call say,CXX,$@)
	$(q)$(CXX) $(reader_flags) -o $@ $< -lc10 -ltorch_cpu -ltorch_python 2>$@.log && rm -f $@.log || { rm -f $@; \
		echo "NOTE: the hooks will ask tensors attribute by attribute: PyTorch $(lastword $(reader_torch)) and $< do not fit ($@.log):"; \
		grep -m 3 error $@.log; true; }
