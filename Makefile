# make            build/offload
# make check      builds and runs all tests (make test also installs what is missing first)
# Variables: san=address|thread|undefined, V=1, CC=...

MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := all
.SECONDARY:
CC      ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
san     ?=
V       ?= 0
Q       := $(if $(filter 1,$(V)),,@)
B       := build$(if $(san),/san-$(san))
ARCH    := $(shell uname -m)

WARN    := -Wall -Wextra -Werror -Wmissing-prototypes -Wstrict-prototypes -Wvla -Wshadow -Wpointer-arith -Wwrite-strings
CFLAGS  := -std=c11 -D_GNU_SOURCE -O3 -g -I. -pthread -fno-math-errno -ffp-contract=off $(WARN)
LDFLAGS := -pthread
LDLIBS  := -luring -lnuma -lopenblas -ljansson -lyaml -lpcre2-8 -lutf8proc -lxxhash -ldl -lm
ifneq ($(san),)
CFLAGS  += -fsanitize=$(san) -fno-omit-frame-pointer -O1
LDFLAGS += -fsanitize=$(san)
endif

# Files that use wider vectors carry the instruction set in their name and are chosen at run time.
ISA_FLAGS_avx2   := -mavx2 -mfma -mf16c
ISA_FLAGS_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mprefer-vector-width=512
isa_of    = $(if $(filter %_avx512,$(1)),avx512,$(if $(filter %_avx2,$(1)),avx2,$(if $(filter %_neon,$(1)),neon)))
isa_flags = $(ISA_FLAGS_$(call isa_of,$(1)))

LIB_C   := $(wildcard base/*.c nvme/*.c cpu_optim/*.c kernels/*.c kernels/cpu/*.c offload/*.c engine/*.c)
ifeq ($(ARCH),x86_64)
LIB_C   := $(filter-out %_neon.c,$(LIB_C))
else
LIB_C   := $(filter-out %_avx2.c %_avx512.c,$(LIB_C))
endif
LIB_O   := $(LIB_C:%.c=$(B)/%.o)
TOOL_O  := $(patsubst %.c,$(B)/%.o,$(wildcard tools/*.c))
TEST_C  := $(wildcard tests/*/test_*.c)
TEST_P  := $(TEST_C:%.c=$(B)/%)
HELP_O  := $(patsubst %.c,$(B)/%.o,$(wildcard tests/*.c))

all: $(B)/offload

$(B)/liboffload.a: $(LIB_O)
	@echo "  AR      $@"
	$(Q)rm -f $@ && ar rcs $@ $^

$(B)/offload: $(TOOL_O) $(B)/liboffload.a
	@echo "  LINK    $@"
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(B)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC      $<"
	$(Q)$(CC) $(CFLAGS) $(call isa_flags,$*) -MMD -MP -c -o $@ $<

$(B)/tests/%: $(B)/tests/%.o $(HELP_O) $(B)/liboffload.a
	@echo "  LINK    $@"
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

tests: $(TEST_P)

clean:
	rm -rf build

.PHONY: all tests clean
-include $(LIB_O:.o=.d) $(TOOL_O:.o=.d) $(TEST_P:=.d) $(HELP_O:.o=.d)
