# SPDX-License-Identifier: Apache-2.0
# make [all|demo|check|bench|install|clean|help] and more: see `make help`.
#   B=DIR         where to build (build)
#   CC=clang      gcc and clang work
#   SANITIZE=     address,undefined or thread
#   WERROR=1      warnings are errors
#   CUDA=         auto (when nvcc is found), none, or standin: GPUs played in shared memory, for tests
#   CUDA_ARCH=    GPUs to compile for (80 90); later ones compile the last one's PTX when they first run
#   NVCC=         where nvcc is

B       ?= build
PREFIX  ?= /usr/local
VERSION := 0.1.0
SOMAJOR := 0

PKGS_LIB  := hiredis
PKGS_NODE := hiredis libevent_core libevent_extra
PKGS_CLI  := jansson ncurses

# Optimized less, what looks for undefined behaviour compiles a third faster. What ThreadSanitizer checks then runs
# several times slower.
CFLAGS   ?= $(if $(findstring undefined,$(SANITIZE)),-O1,-O2) -g
WARNINGS := -Wall -Wextra -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith
ALL_CFLAGS = -std=gnu11 $(WARNINGS) $(if $(WERROR),-Werror) -fPIC -fvisibility=hidden -pthread \
             -I. -Iinclude -D_GNU_SOURCE -DTARN_VERSION='"$(VERSION)"' $(CFLAGS) $(CPPFLAGS)
ALL_LDFLAGS = -pthread $(LDFLAGS)
ifdef SANITIZE
CFLAGS  += -fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=all
LDFLAGS += -fsanitize=$(SANITIZE)
CUDA    ?= none
endif

# What stands behind transport/cuda/cuda.h. The CUDA runtime is linked statically and looks for the driver when
# it is first used, so that what is built here also starts where there is none.
CUDA      ?= auto
CUDA_ARCH ?= 80 90
NVCC      := $(or $(NVCC),$(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
cuda      := $(if $(filter auto,$(CUDA)),$(if $(NVCC),runtime,none),$(CUDA))
cuda_src_none    := transport/cuda/cuda_none.c
cuda_src_runtime := transport/cuda/cuda_runtime.c transport/cuda/cuda_queue.c transport/cuda/cuda_table.c transport/cuda/kernels.cu transport/cuda/table.cu
cuda_src_standin := $(wildcard tests/standin/*.c)
bare_src_runtime := $(addprefix client/bench/bare/bench_bare,.cu _rows.cu _ring.cu _writes.cu)
bare_src_other   := $(addprefix client/bench/bare/bench_bare,_played.c _rows_played.c _ring_played.c _writes_played.c)
cuda_src         := $(or $(cuda_src_$(cuda)),$(error CUDA=$(CUDA): there are auto, none and standin))
ifeq ($(cuda),runtime)
toolkit   := $(abspath $(shell $(NVCC) --dryrun -c -x cu /dev/null 2>&1 | sed -n 's/^.. TOP=//p'))
cudart    := $(firstword $(wildcard $(addsuffix /libcudart_static.a,$(addprefix $(toolkit)/,lib64 lib targets/*/lib))))
LIBS_CUDA := $(or $(cudart),-lcudart_static) -ldl -lrt -lpthread
# Nothing of the C++ runtime is needed: no exceptions, no guarded statics (a launch's only one is the kernel's
# handle, the same whoever sets it).
NVCC_FLAGS := -O3 -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics \
    $(if $(WERROR),-Werror all-warnings) $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$a,code=sm_$a) \
    -gencode arch=compute_$(lastword $(CUDA_ARCH)),code=compute_$(lastword $(CUDA_ARCH))
cuda_test_src := tests/gpu/stream.c tests/gpu/rows_check.cu tests/gpu/ring_ask.cu
$(B)/transport/cuda/cuda_runtime.o $(B)/transport/cuda/cuda_queue.o $(B)/transport/cuda/cuda_table.o $(B)/tests/gpu/stream.o: CPPFLAGS += -isystem $(toolkit)/include
endif

# A plugin for tests finds the stand-in's GPUs by the driver's names.
ifeq ($(cuda),standin)
LIBS_CUDA := -Wl,-u,cuInit,--export-dynamic-symbol=cu*
endif

LIBS_LIB  := $(shell pkg-config --libs $(PKGS_LIB)) $(LIBS_CUDA) -lm
LIBS_NODE := $(shell pkg-config --libs $(PKGS_NODE)) $(LIBS_CUDA) -lm
LIBS_CLI  := $(shell pkg-config --libs $(PKGS_CLI))
MEMCACHED := $(shell pkg-config --exists libmemcached && echo yes)

# What belongs to whom, by folder.
option_src := $(wildcard base/option/*.c)
# The fault injector, which only programs of the tests are linked with.
faulty_src := $(wildcard transport/faulty/*.c)
lib_src    := $(wildcard base/*.c base/resp/*.c metadata/*.c client/*.c client/gpu/*.c client/window/*.c) transport/cuda/cuda_text.c $(cuda_src) \
              $(wildcard $(addprefix transport/,*.c shm/*.c tcp/*.c rdma/*.c cuda_ipc/*.c tcpx/*.c tcpx/plugin/*.c host/*.c))
node_src   := $(wildcard server/*.c server/*/*.c) $(option_src)
cli_src    := $(wildcard client/cli/*.c) $(option_src)
file_src   := $(wildcard client/cli/file*.c)
bench_src  := $(wildcard client/bench/*.c) $(option_src) $(or $(bare_src_$(cuda)),$(bare_src_other))
tests_src  := $(wildcard tests/*/test_*.c)
scripts    := $(wildcard tests/integration/test_*.sh tests/faults/test_*.sh)
fuzz_src   := $(wildcard tests/fuzz/fuzz_*.c)

obj = $(addprefix $(B)/,$(addsuffix .o,$(basename $(1))))

programs := $(B)/tarnd $(B)/tarn $(B)/tarn-bench
library  := $(B)/libtarn.so.$(SOMAJOR)
tests    := $(addprefix $(B)/tests/,$(basename $(notdir $(tests_src))))
soak     := $(B)/tests/soak
fuzzers  := $(addprefix $(B)/fuzz/,$(basename $(notdir $(fuzz_src))))
pages    := $(B)/man/tarnd.1 $(B)/man/tarn.1

tcpx_test_src := $(addprefix tests/tcpx/,bare.c child.c cmsg.c scene.c)
# Network plugins for tests: the fixture in its three ABIs, and some that are none (tests/tcpx/).
tcpx_plugins := $(addprefix $(B)/tests/tcpx/libtcpx-,$(addsuffix .so,fixture-v6 fixture-v7 fixture-v8 bad-1 bad-2 bad-3))
# What tests/tcpx/run_tcpx_test.sh runs.
tcpx_program_src := $(addprefix tests/tcpx/,flow.c transfer.c connection.c)
tcpx_programs    := $(addprefix $(B)/tests/tcpx/,test_tcpx_transfer test_connection)

.PHONY: all tests plugins man docs demo check check-tests check-unit check-rdma check-gpu check-standin check-tcpx check-asan \
        check-tsan check-style fuzz bench install clean help
all: $(programs) $(library) $(B)/libtarn.a
tests: $(tests) plugins $(soak) $(B)/tests/tarn $(B)/tests/lender
plugins: $(tcpx_plugins) $(tcpx_programs)

# What objects are compiled with, in a file that changes only when this does. WERROR and the compiler's name are no part
# of it: they change no object. (Another compiler wants another B.)
flags := $(strip $(filter-out -Werror all-warnings,$(ALL_CFLAGS) $(cuda) $(NVCC_FLAGS) $(MEMCACHED)))
write_flags = $(shell mkdir -p $(B))$(file >$(B)/flags,$(flags))
ifneq ($(file <$(B)/flags),$(flags))
$(write_flags)
endif
$(B)/flags:
	$(write_flags)

$(B)/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC    $<";) $(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(B)/%.o: %.cu $(B)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  NVCC  $<";) $(NVCC) $(NVCC_FLAGS) -I. -Iinclude -MMD -MP -c -o $@ $<

# Another choice of CUDA= than the last one in this folder is other members.
cuda_chosen := $(B)/cuda-is-$(cuda)
$(cuda_chosen):
	@mkdir -p $(@D)
	@rm -f $(B)/cuda-is-* && touch $@

$(B)/libtarn.a: $(call obj,$(lib_src)) $(cuda_chosen)
	@rm -f $@
	$(if $(V),,@echo "  AR    $@";) $(AR) rcs $@ $(call obj,$(lib_src))

$(library): $(call obj,$(lib_src)) client/libtarn.map $(cuda_chosen)
	$(if $(V),,@echo "  LD    $@";) $(CC) -shared -Wl,-soname,libtarn.so.$(SOMAJOR) \
	    -Wl,--version-script=client/libtarn.map $(ALL_LDFLAGS) -o $@ $(call obj,$(lib_src)) $(LIBS_LIB)
	@ln -sf $(@F) $(B)/libtarn.so

$(B)/tarnd: $(call obj,$(node_src)) $(B)/libtarn.a
	$(if $(V),,@echo "  LD    $@";) $(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_NODE)

$(B)/tests/tarn: $(call obj,$(faulty_src))
$(B)/tarn $(B)/tests/tarn: $(call obj,$(cli_src)) $(B)/libtarn.a
	$(if $(V),,@echo "  LD    $@";) $(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_LIB) $(LIBS_CLI)

# The benchmark measures the allocator by itself, too, and tries eviction policies.
store_parts := $(addprefix server/store/,alloc.c evict.c lazy.c reuse.c)
$(B)/tarn-bench: $(call obj,$(bench_src) $(store_parts)) $(B)/libtarn.a
	$(if $(V),,@echo "  LD    $@";) $(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_LIB) $(shell pkg-config --libs jansson) \
	    $(if $(MEMCACHED),$(shell pkg-config --libs libmemcached))
ifeq ($(MEMCACHED),yes)
$(call obj,$(bench_src)): CPPFLAGS += -DTARN_HAVE_MEMCACHED
endif

# Test programs may use every module; the harness starts real nodes and a real Redis for them. Of the archives a program
# gets what it refers to, of tarnd no main() as it has one; the objects are in each, as nothing refers to them.
vpath test_%.c $(sort $(dir $(tests_src)))
test_lib_src := $(wildcard tests/*.c tests/history/*.c) $(filter-out $(tests_src),$(wildcard tests/conformance/*.c)) $(tcpx_test_src) $(file_src) client/cli/cli_version.c client/bench/bench_stats.c
test_objs    := $(call obj,$(wildcard tests/linked/*.c) $(cuda_test_src) $(faulty_src))
test_libs    := $(B)/tests/libtests.a $(B)/tests/libtarnd.a $(B)/libtarn.a
$(B)/tests/libtests.a: $(call obj,$(test_lib_src))
$(B)/tests/libtarnd.a: $(call obj,$(node_src))
$(B)/tests/libtests.a $(B)/tests/libtarnd.a:
	@rm -f $@
	$(if $(V),,@echo "  AR    $@";) $(AR) rcsT $@ $^
link_test = $(if $(V),,@echo "  LD    $@";) $(CC) $(ALL_LDFLAGS) $(LDFLAGS_$(@F)) -o $@ $(filter %.o,$^) \
    -Wl,--start-group $(test_libs) -Wl,--end-group $(LIBS_NODE) $(shell pkg-config --libs jansson cmocka)
LDFLAGS_test_one_value := -Wl,--wrap=connect
LDFLAGS_test_no_copy := -Wl,--wrap=sendmsg,--wrap=recvmsg,--wrap=send,--wrap=recv,--wrap=__recv_chk
LDFLAGS_test_tcpx_setup := -Wl,--wrap=connect
LDFLAGS_test_distance := -Wl,--wrap=connect
LDFLAGS_test_conformance := -Wl,--wrap=connect
LDFLAGS_test_session_over := -Wl,--wrap=connect
LDFLAGS_test_deadlines := -Wl,--wrap=connect
LDFLAGS_test_window_faults := -Wl,--wrap=connect
LDFLAGS_test_window_soak := -Wl,--wrap=connect
LDFLAGS_test_tcpx_batch := -Wl,--wrap=send,--wrap=recv,--wrap=__recv_chk
LDFLAGS_test_hits := -Wl,--wrap=malloc,--wrap=free
LDFLAGS_test_forward := -Wl,--wrap=tarn_cuda_copy,--wrap=tarn_cuda_poll,--wrap=tarn_lent_take
LDFLAGS_test_pool := -Wl,--wrap=madvise
LDFLAGS_soak := -Wl,--wrap=connect
define test_rule
$(B)/tests/$(basename $(notdir $(1))): $(call obj,$(1)) $(test_objs) $(test_libs)
	$$(link_test)
endef
$(foreach t,$(tests_src),$(eval $(call test_rule,$(t))))
# Some load network plugins, also when one is built alone.
$(tests): | $(tcpx_plugins)

# Its clients send what they connect to nodes through relays (tests/router.h).
$(soak): $(call obj,$(wildcard tests/history/soak/*.c)) $(test_objs) $(test_libs)
	$(link_test)

# Lends windows for the tests of the tarn command.
$(B)/tests/lender: $(call obj,tests/integration/lender.c) $(B)/libtarn.a
	$(if $(V),,@echo "  LD    $@";) $(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_LIB)

tcpx_objs := $(call obj,$(addprefix tests/tcpx/,comm.c gpu.c options.c receive.c send.c setup.c))
tcpx_out  := $(B)/tests/tcpx
$(addprefix $(tcpx_out)/plugin-v,6.o 7.o 8.o): $(tcpx_out)/plugin-v%.o: tests/tcpx/plugin.c $(B)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC    $@";) $(CC) $(ALL_CFLAGS) -DFIXTURE_ABI=$* -MMD -MP -c -o $@ $<
$(addprefix $(tcpx_out)/bad-,1.o 2.o 3.o): $(tcpx_out)/bad-%.o: tests/tcpx/bad.c $(B)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC    $@";) $(CC) $(ALL_CFLAGS) -DBAD=$* -MMD -MP -c -o $@ $<
$(filter %6.so %7.so %8.so,$(tcpx_plugins)): $(tcpx_out)/libtcpx-fixture-v%.so: $(tcpx_out)/plugin-v%.o $(tcpx_objs)
	$(if $(V),,@echo "  LD    $@";) $(CC) -shared $(ALL_LDFLAGS) -o $@ $^ -ldl
$(filter %1.so %2.so %3.so,$(tcpx_plugins)): $(tcpx_out)/libtcpx-bad-%.so: $(tcpx_out)/bad-%.o
	$(if $(V),,@echo "  LD    $@";) $(CC) -shared $(ALL_LDFLAGS) -Wl,-rpath,'$$ORIGIN/driver' -o $@ $^
$(tcpx_out)/libtcpx-bad-3.so: $(tcpx_out)/driver/libcuda.so.1
$(tcpx_out)/test_tcpx_transfer: $(tcpx_out)/transfer.o
$(tcpx_out)/test_connection: $(tcpx_out)/connection.o
$(tcpx_programs): $(tcpx_out)/flow.o $(B)/libtarn.a
	$(if $(V),,@echo "  LD    $@";) $(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(B)/libtarn.a $(LIBS_LIB)
$(tcpx_out)/driver/libcuda.so.1: $(tcpx_out)/fake_driver.o
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@";) $(CC) -shared $(ALL_LDFLAGS) -Wl,-soname,libcuda.so.1 -o $@ $^

# --- Python ---------------------------------------------------------------------------------------

# The package, in $(B)/python: the extension with libtarn and hiredis in it, beside links to the Python files. Other
# Pythons have other suffixes, so one folder does for all.
, := ,
PYTHON     ?= python3
py_facts   := $(shell $(PYTHON) -ISc 'import sys, sysconfig as s; print(s.get_config_var("EXT_SUFFIX"), \
                  s.get_path("include") if sys.version_info >= (3, 9) else "too-old")' 2>/dev/null)
py_suffix  := $(word 1,$(py_facts))
py_include := $(word 2,$(py_facts))
py_dir     := $(B)/python/tarn
py_ext     := $(py_dir)/_tarn$(py_suffix)
py_src     := $(wildcard client/python/src/ext/*.c)
py_obj     := $(patsubst client/python/src/ext/%.c,$(B)/python/ext$(py_suffix)/%.o,$(py_src))
py_links   := $(patsubst client/python/src/tarn/%,$(py_dir)/%,$(wildcard $(addprefix client/python/src/tarn/*,.py .pyi .typed)))
# Debian's can be linked into a shared object.
hiredis_a  := $(filter /%,$(shell $(CC) -print-file-name=libhiredis.a))

py_if_possible := $(if $(wildcard $(py_include)/Python.h),python $(B)/python/bench/c_side)

.PHONY: python wheel
python: $(py_ext) $(py_links)

$(B)/python/ext$(py_suffix)/%.o: client/python/src/ext/%.c $(B)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC    $<";) $(CC) $(ALL_CFLAGS) -isystem $(py_include) -MMD -MP -c -o $@ $<

# Over played GPUs the tests put a libtarn with a driver of theirs in the place of this one.
py_tarn    := $(if $(filter standin,$(cuda)),$(library),$(B)/libtarn.a)
py_ldflags := $(if $(filter standin,$(cuda)),-Wl$(,)-rpath$(,)'$$ORIGIN/../..',-Wl$(,)--exclude-libs$(,)ALL)

$(py_ext): $(py_obj) $(py_tarn)
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@";) $(CC) -shared $(ALL_LDFLAGS) $(py_ldflags) -o $@ $^ \
	    $(if $(hiredis_a),$(patsubst -lhiredis,$(hiredis_a),$(LIBS_LIB)),$(LIBS_LIB))

$(py_dir)/%: client/python/src/tarn/%
	@mkdir -p $(@D)
	@ln -sf $(abspath $<) $@

# A wheel that needs nothing but libc; for every Linux with one as new as this machine's.
wheel:
	@rm -rf $(B)/python/build && mkdir -p $(B)/wheel
	cd client/python && TARN_BUILD=$(abspath $(B)) $(PYTHON) -c \
	    'import setuptools.build_meta as m; print(m.build_wheel("$(abspath $(B))/wheel"))'

# What the package costs over C; overhead.py drives the C side.
$(B)/python/bench/c_side: $(B)/client/python/bench/c_side.o $(B)/libtarn.a
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@";) $(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_LIB)

.PHONY: bench-python
bench-python: python $(B)/tarnd $(B)/python/bench/c_side
	@TARN_BUILD=$(abspath $(B)) PYTHONPATH=$(abspath $(B))/python $(PYTHON) client/python/bench/overhead.py \
	    $(BENCH_ARGS) --json-dir $(B)/bench

# Beside NCCL and NIXL, between two GPUs; needs torch.
.PHONY: bench-peers
bench-peers: python $(B)/tarnd
	@TARN_BUILD=$(abspath $(B)) PYTHONPATH=$(abspath $(B))/python:$$PYTHONPATH $(PYTHON) client/python/bench/peers.py \
	    $(BENCH_ARGS) --json-dir $(B)/bench

# GB/s against size, from what make bench wrote; needs matplotlib.
PLOTS_FROM ?= $(B)/bench
PLOTS_TO   ?= docs/results
.PHONY: plots
plots:
	@$(PYTHON) client/python/bench/plots.py $(PLOTS_FROM) $(PLOTS_TO)

# --- checks ---------------------------------------------------------------------------------------

# Tests at a time.
JOBS ?= 1

# Everything, as CI runs it (installs packages): deploy/check.sh. These run parts of it.
check: all tests check-tests check-style check-rdma

# These run where check-rdma takes them.
in_vms := $(addprefix $(B)/tests/test_,rdma rdma_sizes rdma_wire rdma_writers rdma_hosts)

# These measure times, of which a sanitizer's build says nothing.
not_sanitized := $(addprefix $(B)/tests/test_,deadlines distance sentinel tcpx_speed) tests/integration/test_bench_peer.sh tests/integration/test_bench_put.sh
# ThreadSanitizer delivers page faults too late for the handlers of the first. The second looks at memory while it is
# written. In the third, two processes take turns by a counter in shared memory: the sanitizer reports that as a race.
ifneq ($(findstring thread,$(SANITIZE)),)
not_sanitized += $(B)/tests/test_store_rules $(B)/tests/test_window_rules tests/integration/test_bench_ring_peer.sh
endif
# The Python package's, too, where Python's headers are; tests/integration/test_python.sh skips where they are not.
check-tests: all tests $(py_if_possible)
	@TARN_BUILD=$(B) PYTHON=$(PYTHON) sh tests/run.sh -j $(JOBS) $(filter-out $(in_vms) $(if $(SANITIZE),$(not_sanitized)),$(filter $(B)/tests/test_%,$(tests)) $(scripts))

# Tests whose threads are late at random (tests/late/late.c). Those that measure rates are left out.
.PHONY: check-late
$(B)/tests/late.so: tests/late/late.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 $(WARNINGS) -O1 -fPIC -shared -o $@ $< -ldl
check-late: all tests $(py_if_possible) $(B)/tests/late.so
	@export LATE_SEED=$${LATE_SEED:-$$(date +%s)}; echo "LATE_SEED=$$LATE_SEED"; \
	TARN_BUILD=$(B) PYTHON=$(PYTHON) LD_PRELOAD=$(abspath $(B)/tests/late.so) sh tests/run.sh -j $(JOBS) $(filter-out $(in_vms) %test_tcpx_speed %test_hits %bench.sh %bench_peer.sh %bench_put.sh,$(filter $(B)/tests/test_%,$(tests)) $(scripts))

# What uses the directory, with servers of other versions than the installed one (tests/other-redis.sh).
.PHONY: check-redis
redis_tests := $(filter $(B)/tests/test_directory% $(B)/tests/test_displaced% %/test_events %/test_liveness %/test_lookups %/test_private_redis %/test_redis_away %/test_node %/test_node_start %/test_client %/test_small_puts,$(tests)) tests/integration/test_redis_socket.sh tests/integration/test_inspect.sh
check-redis: all tests
	@TARN_BUILD=$(B) JOBS=$(JOBS) SERVERS="$(SERVERS)" sh tests/other-redis.sh build-redis $(redis_tests)

# In VMs with soft-RoCE; skipped, with the reason, where they cannot be started. PARTS=one|faults|wire|hosts|unit
check-rdma: all tests
	@TARN_BUILD=$(B) sh tests/rdma-vm/check.sh $(PARTS)

# Over the GPUs of this machine: copies, unpacking, and GPU pools. Skipped, with the reason, where there is none;
# REQUIRE=gpu makes that a failure, REQUIRE=gpus also with one GPU. check-standin: the same over GPUs played in shared memory.
gpu_tests := $(filter %/test_cuda_queue %/test_layouts %/test_ring %/test_tcpx_unpack %/test_window %/test_window_told %/test_forward $(B)/tests/test_gpu%,$(tests)) $(wildcard tests/gpu/test_*.sh)
check-gpu: gpu-tests
	@TARN_BUILD=$(B) PYTHON=$(PYTHON) sh tests/run.sh -j $(JOBS) $(gpu_tests)

.PHONY: gpu-tests standin
gpu-tests: all $(filter $(B)/%,$(gpu_tests)) $(B)/tests/test_conformance plugins $(soak) $(B)/tests/tarn $(py_if_possible)

in_standin = $(MAKE) B=$(B)-standin CUDA=standin
check-standin:
	+@REQUIRE=gpu,gpus $(in_standin) check-gpu
standin:
	+@$(in_standin) gpu-tests

# Any network plugin with the ABI, below the transport and by itself: TARN_TCPX_PLUGIN=/path/lib.so. Skipped, with
# the reason, without one; REQUIRE=tcpx-plugin makes that a failure. ONLY=plain|delay|error|stale|drop|refuse
check-tcpx: all tests
	@TARN_BUILD=$(B) ONLY=$(ONLY) sh tests/run.sh $(wildcard tests/tcpx/test_*.sh)

# One of them, built and run: make test T=test_store ONLY=put. ONLY: the tests of a program with that in their names.
.PHONY: test
one_test := $(filter %/$(T),$(tests) $(scripts) $(wildcard tests/gpu/test_*.sh tests/tcpx/test_*.sh))
ifeq ($(filter test,$(MAKECMDGOALS))$(one_test),test)
$(error T=$(T): there is no such test: name a program (T=test_store) or a script (T=test_cli.sh); all: make check-tests)
endif
test: $(if $(filter %.sh,$(one_test)),all tests $(py_if_possible),$(programs) $(one_test))
	@TARN_BUILD=$(B) PYTHON=$(PYTHON) TEST_FILTER='$(ONLY)' sh tests/run.sh $(one_test)

check-unit: tests
	@TARN_BUILD=$(B) sh tests/run.sh -j $(JOBS) $(filter $(addprefix $(B)/tests/,$(basename $(notdir $(wildcard tests/unit/*.c)))),$(tests))

# Promela models, checked exhaustively by spin; tests/model/README.md. QUICK=1: a part; ONLY=text: rows with that name.
.PHONY: check-model
check-model:
	@TARN_BUILD=$(B) CC="$(CC)" QUICK="$(QUICK)" ONLY="$(ONLY)" sh tests/model/check.sh

in_asan = $(MAKE) B=build-asan SANITIZE=address,undefined
in_tsan = $(MAKE) B=build-tsan SANITIZE=thread
in_fuzz = $(MAKE) B=build-fuzz CC=clang SANITIZE=address,undefined CFLAGS="-O1 -g -fsanitize=fuzzer-no-link,address,undefined"
check-asan:
	+@ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 $(in_asan) check-tests

check-tsan:
	+@TSAN_OPTIONS=halt_on_error=1 $(in_tsan) check-tests

# What these two and fuzz run, built only.
.PHONY: sanitized
sanitized:
	+@$(in_asan) all tests
	+@$(in_tsan) all tests
	+@$(in_fuzz) fuzzers

check-style: all
	@TARN_BUILD=$(B) PYTHON=$(PYTHON) sh tests/check-style.sh

# Breaks each rule of tests/mutants/ in a copy of the tree: a test has to fail. MUTANTS= some of them.
MUTANTS ?= $(wildcard tests/mutants/*.patch)
.PHONY: mutate
mutate:
	@sh tests/mutate.sh -j $(JOBS) $(MUTANTS)

# libFuzzer over everything that parses foreign bytes.
FUZZ_SECONDS ?= 60
fuzz:
	+@$(in_fuzz) fuzzers
	@sh tests/fuzz/run.sh build-fuzz $(FUZZ_SECONDS)

.PHONY: fuzzers
fuzzers: $(fuzzers)
$(B)/fuzz/%: $(B)/tests/fuzz/%.o $(call obj,$(file_src)) $(B)/libtarn.a
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD    $@";) $(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(LIBS_LIB) $(shell pkg-config --libs jansson)

# --- run, measure, install ------------------------------------------------------------------------

demo: all
	@sh deploy/demo.sh

BENCH ?= all
bench: all
	@mkdir -p $(B)/bench
	@TARN_BUILD=$(B) $(B)/tarn-bench $(BENCH) --json-dir $(B)/bench

# Against perftest, on any machine with a verbs device; in the VM: sh tests/rdma-vm/bench.sh.
.PHONY: bench-rdma
bench-rdma: all
	@mkdir -p $(B)/bench
	@TARN_BUILD=$(B) $(B)/tarn-bench rdma --json-dir $(B)/bench

# Against bare CUDA calls, on any machine with GPUs; BENCH_ARGS=--quick takes about a minute.
.PHONY: bench-gpu
bench-gpu: all
	@mkdir -p $(B)/bench
	@TARN_BUILD=$(B) $(B)/tarn-bench gpu $(BENCH_ARGS) --json-dir $(B)/bench

# Against a bare loop of the plugin's calls: the fixture's, or those of TARN_TCPX_PLUGIN=/path/lib.so.
.PHONY: bench-tcpx soak-tcpx
bench-tcpx: tests
	@TCPX_SPEED=$(or $(ROUNDS),20) TARN_BUILD=$(B) $(B)/tests/test_tcpx_speed

# Random faults under clients that replace and remove, and a check of what they saw. SEED= repeats one.
# TRANSPORT=cuda_ipc: over GPU pools; B=build-standin CUDA=standin where there is no GPU.
.PHONY: soak
soak: $(B)/tarnd $(soak)
	@TARN_BUILD=$(B) $(soak) --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) \
	    --transport $(or $(TRANSPORT),shm) --copies $(or $(COPIES),2) $(SOAK_ARGS)

# 100 000 random messages over the tcpx transport: some twenty minutes.
soak-tcpx: tests
	@TCPX_SOAK=$(or $(MESSAGES),100000) TARN_BUILD=$(B) $(B)/tests/test_tcpx_soak

man: $(pages)
$(B)/man/%.1: $(B)/%
	@mkdir -p $(@D)
	$< --man > $@

# Pages made from the tables that the programs parse with; check-style compares them.
docs: all
	@TARN_BUILD=$(B) sh docs/generate.sh docs

completions := $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/site-functions)
install: all man
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include/tarn \
	    $(DESTDIR)$(PREFIX)/share/man/man1 $(completions)
	install -s -m 755 $(programs) $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(library) $(DESTDIR)$(PREFIX)/lib
	ln -sf $(notdir $(library)) $(DESTDIR)$(PREFIX)/lib/libtarn.so
	install -m 644 $(B)/libtarn.a $(DESTDIR)$(PREFIX)/lib
	install -m 644 include/tarn/*.h $(DESTDIR)$(PREFIX)/include/tarn
	install -m 644 $(pages) $(DESTDIR)$(PREFIX)/share/man/man1
	for p in tarn tarnd; do \
	    $(B)/$$p --completion bash > $(word 1,$(completions))/$$p && \
	    $(B)/$$p --completion zsh > $(word 2,$(completions))/_$$p || exit 1; \
	done
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@LIBS_CUDA@|$(LIBS_CUDA)|' client/tarn.pc.in \
	    > $(DESTDIR)$(PREFIX)/lib/pkgconfig/tarn.pc
	@# Programs that are linked with the library find it from now on; only root can say so.
	[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

clean:
	rm -rf $(B) $(B)-standin build-asan build-tsan build-fuzz build-clang

help:
	@echo 'make             build tarnd, tarn, tarn-bench and libtarn into $(B)/'
	@echo 'make demo        start two nodes, store and read tensors, replay a trace'
	@echo 'make check       tests and style; deploy/check.sh also installs packages and runs sanitizers'
	@echo '     check-tests check-unit check-rdma check-gpu check-standin check-tcpx check-asan check-tsan check-style check-model; JOBS=1 tests at a time; TEST_SECONDS=FILE: how long each took'
	@echo '     check-gpu uses the GPUs of this machine, check-standin plays them; REQUIRE=gpu: not to be skipped'
	@echo '     check-late: check-tests whose threads are late at random; LATE_SEED='
	@echo '     check-redis: what uses the directory, with other servers; SERVERS="redis-6.0 redis-8.0 valkey-8.1"'
	@echo '     check-tcpx tries a network plugin: TARN_TCPX_PLUGIN=/path/lib.so'
	@echo 'make test        T=test_store ONLY=put: one program or script; ONLY: of a program the tests with that in their names'
	@echo 'make fuzz        FUZZ_SECONDS=60 for each target'
	@echo 'make mutate      break each rule of tests/mutants in turn: a test has to notice; MUTANTS= JOBS=1'
	@echo 'make bench       BENCH=all|shm|put|tcp|peer|lookup|alloc|idle, results in $(B)/bench/'
	@echo 'make bench-rdma  the same over RDMA devices, against perftest'
	@echo 'make bench-gpu   the same over GPUs, against bare CUDA calls; BENCH_ARGS=--quick'
	@echo 'make bench-python what the Python package costs over C; BENCH_ARGS=--quick'
	@echo 'make bench-peers windows beside NCCL and NIXL, between two GPUs; BENCH_ARGS=--quick'
	@echo 'make plots       PNG files of GB/s against size from the JSON in PLOTS_FROM=$(B)/bench'
	@echo 'make bench-tcpx  the tcpx transport against a bare loop over its plugin; ROUNDS=20 TARN_TCPX_PLUGIN=/path/lib.so'
	@echo 'make soak-tcpx   MESSAGES=100000 random messages over the tcpx transport'
	@echo 'make soak        SECONDS=60 SEED= TRANSPORT=shm|cuda_ipc|tcp|rdma COPIES=1|2: random faults under replaces and removes'
	@echo 'make install     PREFIX=/usr/local DESTDIR='
	@echo 'make python      the Python package for PYTHON=python3 in $(B)/python; make wheel: to install elsewhere'
	@echo 'make docs        regenerate docs/options.md and docs/errors.md'
	@echo 'make clean'
	@echo 'Variables: B= CC= CUDA=auto|none|standin CUDA_ARCH="80 90" NVCC= CFLAGS= WERROR=1 SANITIZE=address,undefined|thread V=1 REQUIRE='

-include $(shell find $(B) -name '*.d' 2>/dev/null)
