# libspillway_malloc.so: large blocks for programs that do not know of it. Included by the Makefile; used by `spillway run`.

malloc_obj := $(patsubst %.c,$(BUILD)/%.o,$(wildcard malloc/*.c))

all: $(BUILD)/libspillway_malloc.so

# gcc must not take malloc() for the one that it knows.
$(malloc_obj): CFLAGS += -fno-builtin-malloc -fno-builtin-calloc -fno-builtin-realloc -fno-builtin-free

# Without a sanitizer: it replaces malloc() itself.
$(BUILD)/libspillway_malloc.so: $(malloc_obj)
	$(call say,LD,$@)
	$(q)$(CC) -shared $(sanitize) $(CFLAGS) $(ldflags) -Wl,-z,nodelete -o $@ $^ -ldl -lpthread

-include $(malloc_obj:.o=.d)
