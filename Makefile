# The build of offload. `make help` lists the targets and variables.

MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := all
.SECONDARY:
.DELETE_ON_ERROR:
.SUFFIXES:

CC      ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
CXX     ?= g++
AR      ?= ar
PREFIX  ?= /usr/local
DESTDIR ?=
JOBS    ?= 2
san     ?=
cuda    ?= auto
nccl    ?= auto
mpi     ?= auto
NVCC    ?=
tests   ?=
counted ?=
V       ?= 0
Q       := $(if $(filter 1,$(V)),,@)
comma   := ,
B       := build$(if $(san),/san-$(subst $(comma),-,$(san)))$(if $(counted),/coverage)
ARCH    := $(shell uname -m)

# ---- what the machine offers: build/config.mk ------------------------------------------------------

DETECT      = CC='$(CC)' CXX='$(CXX)' NVCC='$(NVCC)' CUDA_ARCHS='$(CUDA_ARCHS)' sh tools/dev/detect.sh
# These goals need no detection: they compile nothing, or install packages first (demo, test), or use clang (fuzz).
PLAIN_GOALS := clean help deps test test-all demo fuzz
CONFIG      := build/config.mk
ifneq ($(filter-out $(PLAIN_GOALS),$(or $(MAKECMDGOALS),all)),)
include $(CONFIG)

# Detection runs again when the stored answer denies what is asked for, or when the compiler is another one.
WANTED_MISSING := $(strip $(if $(filter 1,$(cuda)),$(if $(filter 1,$(HAVE_CUDA)),,cuda)) \
                          $(if $(filter 1,$(nccl)),$(if $(filter 1,$(HAVE_NCCL)),,nccl)) \
                          $(if $(filter 1,$(mpi)),$(if $(filter 1,$(HAVE_MPI)),,mpi)))
ifneq ($(MAKE_RESTARTS),)
ifneq ($(WANTED_MISSING),)
$(error $(WANTED_MISSING)=1 was asked for, but the detection above did not find it)
endif
else ifneq ($(WANTED_MISSING),)
$(CONFIG): FORCE
else ifneq ($(DETECTED_FOR),$(strip $(CC) $(NVCC)))
$(CONFIG): FORCE
endif
endif

ifneq ($(filter deps,$(MAKECMDGOALS)),)
$(CONFIG): | deps
endif
$(CONFIG): tools/dev/detect.sh
	@echo "  DETECT  $@"
	$(Q)$(DETECT) $@

ifneq ($(filter clean,$(MAKECMDGOALS)),)
.NOTPARALLEL:
endif

# ---- flags -----------------------------------------------------------------------------------------

# No fast-math, and no multiplication and addition is fused unless the source says so: the optimizer must give the same
# bits on every instruction set.
WARN    := -Wall -Wextra -Werror -Wmissing-prototypes -Wstrict-prototypes -Wvla -Wshadow -Wpointer-arith -Wwrite-strings
CFLAGS  := -std=c11 -D_GNU_SOURCE -O3 -g -I. -pthread -fno-math-errno -ffp-contract=off $(WARN)
LDFLAGS := -pthread -rdynamic
LDLIBS  := -luring -lnuma -lopenblas -ljansson -lyaml -lpcre2-8 -lutf8proc -lxxhash -lz -lzstd -llzma -ldl -lm
ifneq ($(san),)
CFLAGS  += -fsanitize=$(san) -fno-sanitize-recover=all -fno-omit-frame-pointer -O1
LDFLAGS += -fsanitize=$(san)
endif

# A file for wider vectors has the instruction set in its name; the program chooses at run time.
ISA_FLAGS_avx2   := -mavx2 -mfma -mf16c
ISA_FLAGS_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mprefer-vector-width=512
isa_of    = $(if $(filter %_avx512,$(1)),avx512,$(if $(filter %_avx2,$(1)),avx2,$(if $(filter %_neon,$(1)),neon)))
isa_flags = $(ISA_FLAGS_$(call isa_of,$(1)))

# counted=1 compiles what `make coverage` looks at as it is written, with counters of branches.
COUNTED := nvme/% offload/proof/% engine/model/schedule_check engine/checkpoint/% engine/step/% engine/run/%
count_flags = $(if $(counted),$(if $(filter $(COUNTED),$(1)),-O0 --coverage))
ifneq ($(counted),)
LDFLAGS += --coverage -Wl,--wrap=_exit
endif

# ---- files -----------------------------------------------------------------------------------------

# The CUDA plugin uses base/ of the program that opens it; therefore the program exports its symbols. cuDNN is opened at
# run time, but compiling for it needs its headers; without them, cudnn_absent.c takes its place.
CUDNN_C := $(addprefix kernels/cuda/,cudnn.c cudnn_graph.c cudnn_library.c cudnn_plan.c)
CUDNN_0 := kernels/cuda/cudnn_absent.c
# So is NCCL.
NCCL_C  := $(addprefix kernels/comm/nccl/,nccl.c library.c)
NCCL_0  := kernels/comm/nccl/absent.c
CUDA_C  := $(filter-out $(CUDNN_C) $(CUDNN_0),$(wildcard kernels/cuda/*.c))
CUDA_CU := $(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu)
SIMT_CU := $(wildcard tests/simt/*.cu)
LIB_C   := $(wildcard base/*.c base/*/*.c nvme/*.c cpu_optim/*.c kernels/*.c kernels/cpu/*.c kernels/cpu/*/*.c kernels/comm/*.c offload/*/*.c engine/*/*.c engine/*/*/*.c)
ifeq ($(ARCH),x86_64)
LIB_C   := $(filter-out %_neon.c,$(LIB_C))
else
LIB_C   := $(filter-out %_avx2.c %_avx512.c,$(LIB_C))
endif
# Objects lie in build/obj, because build/offload is the program and offload/ a folder of sources.
OBJ     := $(B)/obj
LIB_O   := $(LIB_C:%.c=$(OBJ)/%.o) $(if $(counted),$(OBJ)/tests/coverage/exit.o)
TOOL_O  := $(patsubst %.c,$(OBJ)/%.o,$(wildcard $(addprefix tools/,$(addsuffix /*.c,command start trace compare picture help bench doctor))))
# What takes system calls over is linked into the programs that want it alone, named below: CALLS_P and MEMORY_P.
KIT_O   := $(patsubst %.c,$(OBJ)/%.o,$(filter-out tests/kit/calls%,$(wildcard tests/kit/*.c tests/kit/*/*.c)))
# In tests/<kind>/, programs named test_* are the suite; bench_* and fuzz_* are run by hand.
PROG_C  := $(filter-out tests/kit/%,$(wildcard tests/*/*.c tests/*/*/*.c tests/*/*/*/*.c))
PROG_P  := $(PROG_C:%.c=$(B)/%)
TEST_P  := $(filter $(B)/tests/%,$(foreach p,$(PROG_P),$(if $(filter test_%,$(notdir $(p))),$(p))))
BENCH_P := $(foreach p,$(PROG_P),$(if $(filter bench_%,$(notdir $(p))),$(p)))
# tests="store lane" keeps the programs whose name contains one of the words.
RUN_P   := $(if $(tests),$(foreach p,$(TEST_P),$(if $(strip $(foreach t,$(tests),$(findstring $(t),$(notdir $(p))))),$(p))),$(TEST_P))

# ---- build -----------------------------------------------------------------------------------------

# The plugin, where this build has one.
CUDA_SO := $(if $(san),,$(if $(filter 1,$(HAVE_CUDA)),$(if $(filter-out 0,$(cuda)),$(B)/liboffload_cuda.so)))

# ThreadSanitizer reports what the MPI library does between its own threads, so its build has no plugin.
MPI_SO  := $(if $(findstring thread,$(san)),,$(if $(filter 1,$(HAVE_MPI)),$(if $(filter-out 0,$(mpi)),$(B)/liboffload_mpi.so)))

all: $(B)/offload $(CUDA_SO) $(MPI_SO)

$(B)/liboffload.a: $(LIB_O)
	@echo "  AR      $@"
	$(Q)rm -f $@ && $(AR) rcs $@ $(LIB_O)

$(B)/offload: $(TOOL_O) $(B)/liboffload.a
	@echo "  LINK    $@"
	@test ! -d $@ || rm -rf $@
	$(Q)$(CC) $(LDFLAGS) -o $@ $(TOOL_O) $(B)/liboffload.a $(LDLIBS)

$(OBJ)/%.o: %.c Makefile $(CONFIG)
	@mkdir -p $(@D)
	@echo "  CC      $<"
	$(Q)$(CC) $(CFLAGS) $(call isa_flags,$*) $(call count_flags,$*) -MMD -MP -c -o $@ $<

$(B)/tests/%: $(OBJ)/tests/%.o $(KIT_O) $(B)/liboffload.a
	@mkdir -p $(@D)
	@echo "  LINK    $@"
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(B)/liboffload.a $(LDLIBS)

# The proof links without the builder: its own objects, base/, and the names that its messages use; not the library.
PROOF_C := $(wildcard offload/proof/*.c base/*.c base/*/*.c) offload/plan/names.c
PROOF_O := $(PROOF_C:%.c=$(OBJ)/%.o)
$(B)/tests/unit/offload/proof/test_proof_alone: $(OBJ)/tests/unit/offload/proof/test_proof_alone.o \
    $(OBJ)/tests/kit/plan/plan_model.o $(OBJ)/tests/kit/test.o $(PROOF_O)
	@mkdir -p $(@D)
	@echo "  LINK    $@ (without the library)"
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# Programs that take over system calls, and those that take over allocations too (tests/kit/calls.h).
CALLS_P  := $(B)/tests/fault/test_store_calls $(B)/tests/fault/test_run_calls $(B)/tests/fault/test_run_twice \
            $(B)/tests/sys/train/test_kill_start $(B)/tests/sys/processes/test_kill_start_processes \
            $(B)/tests/unit/engine/checkpoint/test_checkpoint_tee \
            $(B)/tests/unit/engine/checkpoint/test_checkpoint_processes
MEMORY_P := $(B)/tests/fault/test_reader_faults $(B)/tests/fault/test_memory_faults \
            $(B)/tests/fault/test_checkpoint_faults $(B)/tests/fault/test_drive_calls
$(CALLS_P) $(MEMORY_P): $(OBJ)/tests/kit/calls.o
$(MEMORY_P): $(OBJ)/tests/kit/calls_memory.o

# Programs that put functions of their own before some of the library.
$(B)/tests/golden/test_renumbered: LDFLAGS += -Wl,--wrap=ox_placement_choose -Wl,--wrap=ox_model_build
$(B)/tests/golden/test_ranks_bytes: LDFLAGS += -Wl,--wrap=ox_comm_local_open
$(B)/tests/unit/kernels/test_gemm_narrow: LDFLAGS += -Wl,--wrap=ox_onednn_open
# Programs whose processes are threads (tests/kit/comm/process_threads.h).
PROCESSES_P := $(B)/tests/unit/engine/checkpoint/test_checkpoint_processes $(B)/tests/fault/test_process_faults \
               $(B)/tests/unit/engine/step/test_cuda_processes
$(PROCESSES_P): LDFLAGS += -Wl,--wrap=ox_comm_mpi_world -Wl,--wrap=ox_comm_mpi_open -Wl,--wrap=ox_comm_split

# ---- the CUDA plugin -------------------------------------------------------------------------------

# The plugin holds machine code for GPUs in use and PTX for later ones. What ptxas reports of registers and spills is
# kept beside each object for tools/dev/check_spills.sh.
CUDA_ARCHS := 80 90 100 120
NVCC_FLAGS := -std=c++17 -O3 -I. -lineinfo -Xcompiler -fPIC,-Wall,-Wextra,-Werror \
              $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a)$(comma)code=sm_$(a)) \
              -gencode arch=compute_120,code=compute_120 -Werror all-warnings -Xptxas -v
# The optimizer must give the bits of the CPU, so nvcc may not fuse a multiplication and an addition here.
NVCC_FLAGS_optim/adam := -fmad=false
NVCC_FLAGS_optim/muon := -fmad=false
NVCC_FLAGS_planes := -fmad=false
# The plugin reports which GPUs it has code for; tests/unit/kernels/test_cuda_build.c compares that with its contents.
BUILT_FOR := $(CUDA_ARCHS:%=sm_%) compute_120
CUDA_O  := $(patsubst %.c,$(OBJ)/%.o,$(CUDA_C) $(if $(filter 1,$(HAVE_CUDNN)),$(CUDNN_C),$(CUDNN_0)) \
             $(if $(filter 1,$(HAVE_NCCL)),$(if $(filter-out 0,$(nccl)),$(NCCL_C),$(NCCL_0)),$(NCCL_0))) \
           $(CUDA_CU:%.cu=$(OBJ)/%.o)

# The versioned file name under which the program opens cuBLASLt at run time.
CUBLASLT := $(firstword $(wildcard $(CUDA_LIB)/libcublasLt.so.[0-9]*) libcublasLt.so)

$(B)/liboffload_cuda.so: $(CUDA_O)
	@echo "  LINK    $@"
	$(Q)$(CXX) -shared -o $@ $(CUDA_O) -L$(CUDA_LIB) -Wl,-rpath,$(CUDA_LIB) -lcudart_static -lrt -ldl -pthread

$(OBJ)/kernels/cuda/%.o: kernels/cuda/%.c Makefile $(CONFIG)
	@mkdir -p $(@D)
	@echo "  CC      $<"
	$(Q)$(CC) $(CFLAGS) -fPIC -DOX_CUDA_BUILT_FOR='"$(BUILT_FOR)"' \
	    -DOX_CUBLASLT='"$(notdir $(CUBLASLT))"' -isystem $(CUDA_HOME)/include -MMD -MP -c -o $@ $<

$(OBJ)/kernels/comm/nccl/%.o: kernels/comm/nccl/%.c Makefile $(CONFIG)
	@mkdir -p $(@D)
	@echo "  CC      $<"
	$(Q)$(CC) $(CFLAGS) -fPIC -isystem $(CUDA_HOME)/include -MMD -MP -c -o $@ $<

$(OBJ)/kernels/cuda/%.o: kernels/cuda/%.cu Makefile $(CONFIG)
	@mkdir -p $(@D)
	@echo "  NVCC    $<"
	$(Q)$(CUDA_NVCC) $(NVCC_FLAGS) $(NVCC_FLAGS_$*) -MMD -MP -c -o $@ $< 2>$(@:.o=.ptxas) || \
	    { cat $(@:.o=.ptxas) >&2; exit 1; }

# ---- the MPI plugin --------------------------------------------------------------------------------

$(B)/liboffload_mpi.so: kernels/comm/mpi/wire.c Makefile $(CONFIG)
	@mkdir -p $(OBJ)
	@echo "  LINK    $@"
	$(Q)OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC) $(CFLAGS) -fPIC -shared -MMD -MP -MF $(OBJ)/liboffload_mpi.d -o $@ $<

# The CUDA sources compiled by the host's compiler for the emulated runtime of tests/simt.
SIMT_FLAGS := $(filter-out -std=% -Wmissing-prototypes -Wstrict-prototypes -Wvla -Wshadow,$(CFLAGS)) -std=c++17 -fPIC \
              -Wno-unknown-pragmas -Itests/simt -x c++
SIMT_C  := $(filter-out %/blas_library.c %/cudnn_library.c %/nccl/library.c,$(CUDA_C) $(CUDNN_C) $(NCCL_C))
SIMT_O  := $(SIMT_C:%.c=$(OBJ)/simt/%.o) $(CUDA_CU:%.cu=$(OBJ)/simt/%.o) $(SIMT_CU:%.cu=$(OBJ)/simt/%.o)

$(B)/liboffload_simt.so: $(SIMT_O)
	@echo "  LINK    $@"
	$(Q)$(CXX) -shared $(LDFLAGS) -o $@ $(SIMT_O)

$(OBJ)/simt/%.o: %.c Makefile $(CONFIG)
	@mkdir -p $(@D)
	@echo "  CC      $< (emulated)"
	$(Q)$(CC) $(CFLAGS) -fPIC -DOX_CUDA_BUILT_FOR='"sm_90"' -DOX_NVTX='<nvtx.h>' -Itests/simt -MMD -MP -c -o $@ $<

$(OBJ)/simt/%.o: %.cu Makefile $(CONFIG)
	@mkdir -p $(@D)
	@echo "  CXX     $< (emulated)"
	$(Q)$(CXX) $(SIMT_FLAGS) -MMD -MP -c -o $@ $<

# An NVML without a driver, for the tests of what is asked of it.
FAKE_NVML := $(B)/fake/libnvidia-ml.so.1
$(FAKE_NVML): $(OBJ)/simt/tests/simt/nvml.o
	@mkdir -p $(@D)
	@echo "  LINK    $@"
	$(Q)$(CC) -shared -Wl,-soname,$(@F) $(LDFLAGS) -o $@ $<
$(B)/tests/unit/tools/doctor/test_doctor_gpu: $(addprefix $(OBJ)/tools/doctor/doctor_,items.o gpu.o gpu_state.o)
$(B)/tests/unit/tools/doctor/test_doctor_memory: $(addprefix $(OBJ)/tools/doctor/doctor_,items.o machine.o)
$(B)/tests/unit/tools/start/test_launch: $(OBJ)/tools/start/launch.o
$(B)/tests/unit/tools/start/test_status_line: $(OBJ)/tools/start/status_line.o
WITH_TOOLS := $(B)/tests/unit/kernels/test_op_rows $(addprefix $(B)/tests/unit/tools/bench/test_bench_,profile shape)
$(WITH_TOOLS): $(filter $(OBJ)/tools/bench/% $(OBJ)/tools/doctor/%,$(TOOL_O))

# The program beside the emulated plugin, under the real plugin's name: tests of the command see a machine with a GPU.
EMULATED := $(B)/emulated/offload
$(EMULATED): $(B)/offload $(B)/liboffload_simt.so
	@mkdir -p $(@D)
	$(Q)cp -f $(B)/offload $@ && ln -sf ../liboffload_simt.so $(@D)/liboffload_cuda.so

# These include the style sheet and the script of their page.
$(OBJ)/tools/trace/trace_page.o: tools/trace/trace_page.css tools/trace/trace_page.js
$(OBJ)/tools/compare/compare_page.o: tools/compare/compare_page.css tools/compare/compare_page.js
$(OBJ)/tools/picture/picture.o: tools/picture/picture.css

tests: $(TEST_P) $(BENCH_P) $(EMULATED) $(FAKE_NVML) $(MPI_SO)

# Fuzz targets run over their seeds in one test, and each with clang's libFuzzer by tests/fuzz/fuzz.sh.
FUZZ_O  := $(patsubst %.c,$(OBJ)/%.o,$(wildcard tests/fuzz/fuzz*.c) tests/fuzz/mutate.c)
$(B)/tests/fuzz/test_seeds $(B)/tests/fuzz/test_mutated: $(FUZZ_O)
$(B)/fuzz_%: tests/fuzz/entry.c $(FUZZ_O) $(OBJ)/tests/kit/test.o $(B)/liboffload.a
	@echo "  LINK    $@"
	$(Q)$(CC) $(CFLAGS) -DFUZZ_TARGET=fuzz_$* $(LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)

# ---- checks ----------------------------------------------------------------------------------------

# Tidy runs beside the programs, because it takes one processor and most of a minute; what it says comes behind them.
# Either failure fails the check. One test more than JOBS runs at a time: for a fifth of their time they wait for drives
# and for each other.
check: all $(RUN_P) $(BENCH_P) $(EMULATED) $(FAKE_NVML)
	$(Q)status=0; \
	$(if $(san),,$(MAKE) --no-print-directory tidy >$(B)/tidy.log 2>&1 & tidy=$$!;) \
	$(if $(CUDA_SO),$(MAKE) --no-print-directory check-cuda-build spills_flags=-q || status=1;) \
	JOBS=$$(($(JOBS) + 1)) sh tests/run.sh -b $(B) $(RUN_P) || status=1; \
	$(if $(san),,wait $$tidy || status=1; cat $(B)/tidy.log;) \
	exit $$status

test: deps
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) check

# The whole suite runs under AddressSanitizer and UBSan, and tests of threads and drives under ThreadSanitizer.
check-san:
	$(Q)$(MAKE) --no-print-directory check san=address,undefined
	$(Q)$(MAKE) --no-print-directory check san=thread tests="lane pool arena io store device comm cuda_open step stream tee placement kept overlap in_memory golden corpus ranks pipe rank_faults process_faults soak"

# Sweeps take every stride (tests/README.md says which), and a program may take an hour.
test-all: deps
	$(Q)OX_TEST_ALL=1 $(MAKE) --no-print-directory -j$(JOBS) check

tidy: $(B)/liboffload.a
	$(Q)CC='$(CC)' CXX='$(CXX)' sh tools/dev/tidy_test.sh
	$(Q)sh tools/dev/detect_test.sh
	$(Q)sh tests/coverage/mutate_test.sh
	$(Q)CC='$(CC)' CXX='$(CXX)' sh tools/dev/tidy.sh -l $(B)/liboffload.a

# What the CUDA compiler made of the kernels: registers, shared memory, spills; then the machine code in the plugin.
check-cuda-build: $(CUDA_SO) $(B)/tests/unit/kernels/test_cuda_build
	$(if $(CUDA_SO),,$(error check-cuda-build: this build has no CUDA plugin; the detection says why))
	$(Q)NVCC='$(CUDA_NVCC)' sh tools/dev/check_spills_test.sh
	$(Q)sh tools/dev/check_spills.sh $(spills_flags) $(CUDA_CU:%.cu=$(OBJ)/%.ptxas)
	$(Q)$(B)/tests/unit/kernels/test_cuda_build

# What the CUDA device promises, shown on the GPU of this machine: one table (checks="bits memory" picks some).
check-gpu:
	$(Q)MAKE='$(MAKE)' OX_BUILD='$(B)' sh tools/dev/check_gpu.sh $(checks)

# Measures a GPU and whole steps on it (parts="offload peers" picks some), each part within ten minutes.
bench-gpu: all
	$(Q)OX_BUILD='$(B)' sh tools/dev/bench_gpu.sh $(if $(nvme),--nvme '$(nvme)') $(parts)

# An archive for a machine with a GPU that has no compiler and no network: what the two targets above run, ready built.
# built=1: without the sources, for a checkout of the same commit there.
gpu-bundle: all tests
	$(if $(CUDA_SO),,$(error gpu-bundle: this build has no CUDA plugin; the detection says why))
	$(Q)OX_BUILD='$(B)' sh tools/dev/gpu/bundle.sh $(if $(built),--built) $(B)/offload-gpu.tar.xz

# What the tests take of the lines and branches of the store, the proof, checkpoints and recovery
# (about half an hour of two processors); fails where a branch is neither taken nor explained. test_store_steady ends
# processes that open a file, as those that count do.
coverage:
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) coverage-run counted=1
COUNT_P := $(filter-out %/test_store_steady,$(filter $(addprefix $(B)/tests/,unit/nvme/% unit/offload/% \
             unit/engine/model/test_pass% unit/engine/checkpoint/% unit/engine/step/% unit/engine/run/% conform/test_io fault/% golden/% \
             sys/train/% sys/text/test_text_data fuzz/test_planner \
             sys/command/test_errors sys/command/test_errors_drives sys/command/test_bad_inputs \
             sys/command/test_damage),$(RUN_P)))
coverage-run: $(B)/offload $(COUNT_P) $(EMULATED) $(FAKE_NVML) $(MPI_SO)
	$(Q)JOBS=$(JOBS) PARTIAL='$(tests)' sh tests/coverage/coverage.sh $(COUNT_P)

# Plants faults by machine (n=200 seed=1 files="nvme/store.c"), after `make coverage`, and counts those that tests notice.
mutants: all tests
	$(Q)MAKE='$(MAKE)' sh tests/coverage/mutate.sh -n $(or $(n),200) -s $(or $(seed),1) -j $(JOBS) $(files)

# Plants known bugs in a copy of the store and the planner and shows that their tests catch them.
negative:
	$(Q)MAKE='$(MAKE)' JOBS='$(JOBS)' sh tests/negative/negative_controls.sh $(bugs)

# Interrupts training for so many seconds, with other options each time; the seed is printed (seed=N repeats its draws).
soak: $(B)/offload $(MPI_SO) $(B)/tests/sys/train/test_soak
	$(Q)OX_BIN=$(B)/offload $(B)/tests/sys/train/test_soak --seconds $(or $(seconds),600) --seed $(or $(seed),$$(date +%s))

fuzz:
	$(Q)MAKE='$(MAKE)' RUNS='$(runs)' FUZZ_SECONDS='$(seconds)' sh tests/fuzz/fuzz.sh $(targets)

# Fails at the first figure below its limit.
bench: all $(BENCH_P)
	$(Q)mkdir -p $(B)/bench
	$(B)/offload bench adam --strict
	$(B)/offload bench nvme --nvme $(B)/bench --strict
	$(Q)for p in $(BENCH_P); do echo "$$p" && "$$p" || exit 1; done

# What checksums and the commit cost, against a build without them.
bench-safety:
	$(Q)MAKE='$(MAKE)' JOBS='$(JOBS)' sh tools/dev/bench_safety_cost.sh

# ---- the machine -----------------------------------------------------------------------------------

deps:
	$(Q)CC='$(CC)' CXX='$(CXX)' sh tools/dev/install-deps.sh

detect:
	$(Q)$(DETECT) $(CONFIG)

demo: deps
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) all build/demo-bigram
	$(Q)sh tools/demo/demo.sh

build/demo-bigram: $(OBJ)/tools/demo/bigram.o $(B)/liboffload.a
	@echo "  LINK    $@"
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(B)/liboffload.a $(LDLIBS)

# Manual pages and completions are written by the program, from the tables that it reads its arguments by.
man: $(B)/man/offload.1
$(B)/man/offload.1: $(B)/offload
	@echo "  MAN     $(@D)"
	$(Q)rm -rf $(@D) && mkdir -p $(@D)
	$(Q)for c in $$($(B)/offload help --as names); do \
	    $(B)/offload help $$c --as man >$(@D)/offload-$$c.1 || exit 1; \
	done
	$(Q)$(B)/offload help --as man >$@

completion: $(B)/completion/offload $(B)/completion/_offload $(B)/completion/offload.fish
$(B)/completion/offload: as := bash
$(B)/completion/_offload: as := zsh
$(B)/completion/offload.fish: as := fish
$(B)/completion/%: $(B)/offload
	@mkdir -p $(@D)
	@echo "  SHELL   $@"
	$(Q)$(B)/offload help --as $(as) >$@

SHARE   := $(DESTDIR)$(PREFIX)/share
install: all man completion
	install -D -m 755 $(B)/offload $(DESTDIR)$(PREFIX)/bin/offload
	$(if $(CUDA_SO),install -D -m 755 $(CUDA_SO) $(DESTDIR)$(PREFIX)/lib/offload/liboffload_cuda.so)
	$(if $(MPI_SO),install -D -m 755 $(MPI_SO) $(DESTDIR)$(PREFIX)/lib/offload/liboffload_mpi.so)
	install -d $(SHARE)/man/man1
	install -m 644 $(B)/man/*.1 $(SHARE)/man/man1
	install -D -m 644 $(B)/completion/offload $(SHARE)/bash-completion/completions/offload
	install -D -m 644 $(B)/completion/_offload $(SHARE)/zsh/site-functions/_offload
	install -D -m 644 $(B)/completion/offload.fish $(SHARE)/fish/vendor_completions.d/offload.fish
	install -d $(SHARE)/offload/profiles
	install -m 644 docs/profiles/*.json $(SHARE)/offload/profiles

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/offload $(SHARE)/man/man1/offload.1 $(SHARE)/man/man1/offload-*.1 \
	    $(SHARE)/bash-completion/completions/offload $(SHARE)/zsh/site-functions/_offload \
	    $(SHARE)/fish/vendor_completions.d/offload.fish
	rm -rf $(DESTDIR)$(PREFIX)/lib/offload $(SHARE)/offload

# Beside other goals the answer of the detection stays, because make has read it already.
clean:
	rm -rf $(if $(filter-out clean,$(MAKECMDGOALS)),$(filter-out $(CONFIG),$(wildcard build/*)),build)

help:
	@echo "make            build/offload"
	@echo "make test       installs missing packages (asks for root only then), builds, runs all checks and tests"
	@echo "make test-all   the same whole: each call that fails, each operation that is killed (three hours of a processor)"
	@echo "make check      builds, runs all checks and tests; tests=\"io store\" picks programs by name"
	@echo "make check-san  runs the suite under the address, undefined and thread sanitizers"
	@echo "make demo       builds and shows a short training run"
	@echo "make tests      builds the test programs        make bench    measures, and fails below a limit"
	@echo "make tidy       checks the source text, and shows that each check finds a planted violation"
	@echo "make check-cuda-build  checks spills of the CUDA kernels, and the machine code in the plugin"
	@echo "make check-gpu    checks the CUDA device on a GPU: conformance, golden tests, bits, memory, a run that learns"
	@echo "make bench-gpu    measures a GPU and whole steps on it; parts=\"offload peers\" nvme=FOLDER"
	@echo "make gpu-bundle   writes build/offload-gpu.tar.xz, to check and measure a GPU without compilers: docs/gpu.md"
	@echo "make fuzz       fuzzes the readers of files with clang (runs=200000 or seconds=600, targets=\"yaml hf\"): docs/fuzzing.md"
	@echo "make soak       interrupts training again and again (seconds=600, seed=N), with san=address too"
	@echo "make negative   shows that planted bugs in the store and the planner are caught (bugs=\"no_flush plan_without_lo\")"
	@echo "make coverage   lines and branches that the tests take of store, proof, checkpoints, recovery (tests=\"store plan\")"
	@echo "make mutants    plants n=200 faults by machine into these (seed=1), and counts those that tests notice"
	@echo "make bench-safety  measures what checksums and the commit cost, against a build without them"
	@echo "make man        writes build/man/*.1            make completion  for bash, zsh and fish"
	@echo "make deps       installs missing packages       make install  program, pages, completions to $(PREFIX)"
	@echo "make uninstall  removes what make install wrote  make clean    removes build/"
	@echo
	@echo "Variables: V=1 shows commands; san=address|thread|undefined (several by comma) builds into build/san-*;"
	@echo "cuda=1 nccl=1 mpi=1 NVCC=PATH fail when that is missing, cuda=0 builds without; JOBS=$(JOBS) tests at a time;"
	@echo "CC, CXX, PREFIX, DESTDIR."

FORCE:

.PHONY: all tests check check-gpu bench-gpu gpu-bundle test test-all check-san check-cuda-build tidy coverage coverage-run mutants negative soak fuzz bench bench-safety deps detect demo man completion install uninstall clean help FORCE
-include $(CUDA_O:.o=.d) $(SIMT_O:.o=.d) $(OBJ)/simt/tests/simt/nvml.d
-include $(OBJ)/liboffload_mpi.d
-include $(LIB_O:.o=.d) $(TOOL_O:.o=.d) $(PROG_C:%.c=$(OBJ)/%.d) $(KIT_O:.o=.d)
