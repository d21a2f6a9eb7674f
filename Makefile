# What a person runs, and what CI runs: see CONTRIBUTING.md.
# Each target installs what it lacks without asking (tools/install-build-needs.sh).

CARGO ?= cargo
# Where rustup puts it, for the shell that has just installed it.
export PATH := $(PATH):$(HOME)/.cargo/bin
export CARGO_TERM_COLOR ?= auto
BINDIR ?= $(or $(CARGO_HOME),$(HOME)/.cargo)/bin
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help run build install test test-long lint conformance validation planted bench bench-scale bench-views bench-memory bench-sim bench-pool bench-pager bench-live bench-image bench-remote bench-openmp bpf bpf-check kernels needs

help:
	@echo 'make run        build amdahl and measure a real program with it, in about a minute'
	@echo 'make install    put amdahl into $(BINDIR)'
	@echo 'make test       everything that CI checks; about half an hour on two cores'
	@echo 'make test-long  what takes longer: Miri, sanitizers, arm64, 32 bits, stress and seeds for minutes; an hour or two'
	@echo 'make lint       formatting, clippy, documentation, licences'
	@echo 'make conformance  the tests of GCC for libgomp against our OpenMP runtime'
	@echo 'make validation SUITE=FOLDER  a checkout of the OpenMP Validation and Verification Suite, with GCC'"'"'s runtime and ours'
	@echo 'make planted    the ground truth alone: programs with a known cause'
	@echo 'make bench      all benchmarks (make bench-scale, bench-views, bench-memory, bench-sim, bench-pool, bench-pager, bench-live, bench-image, bench-remote, bench-openmp: one area)'
	@echo 'make bpf        rebuild the BPF objects in the tree after a change of their source'
	@echo 'make bpf-check  prove that the BPF objects in the tree are the build of their source'
	@echo 'make kernels    load and run them on the kernels of Debian, in QEMU, and a guest that reads its host'"'"'s page'

run: build
	@tools/demo/run.sh $(TARGET)/release/amdahl

# The preload library is found beside the command, the OpenMP runtime in a folder beside it.
build:
	@tools/install-build-needs.sh run
	$(CARGO) build --release --locked -p amdahl -p amdahl-preload -p amdahl-libgomp
	@abi/libgomp/link.sh $(TARGET)/release/libamdahl_libgomp.a $(TARGET)/release/openmp/libgomp.so.1

install: build
	install -D -t $(BINDIR) $(TARGET)/release/amdahl
	install -D -m 644 -t $(BINDIR)/../lib/amdahl $(TARGET)/release/libamdahl_preload.so $(TARGET)/release/openmp/libgomp.so.1

test:
	@tools/install-build-needs.sh test
	@tools/perfetto/fetch.sh $(TARGET)/perfetto-ui
	@tools/test/run.sh all

test-long:
	@tools/install-build-needs.sh test-long
	@tools/test/run.sh long

lint:
	@tools/test/run.sh lint

conformance:
	@tools/install-build-needs.sh conformance
	@tools/test/run.sh conformance

# The suite is no part of this project, and is not fetched. Tells what differs from GCC's runtime; it ends with an error where ours alone fails.
SUITE ?=
validation:
	@test -n '$(SUITE)' || { echo 'make validation SUITE=FOLDER: FOLDER is a checkout of the OpenMP Validation and Verification Suite' >&2; exit 2; }
	@tools/install-build-needs.sh conformance
	$(CARGO) build --release --locked -p amdahl-libgomp -p amdahl-conformance
	@abi/libgomp/link.sh $(TARGET)/release/libamdahl_libgomp.a $(TARGET)/release/openmp/libgomp.so.1
	$(TARGET)/release/amdahl-conformance --validation '$(SUITE)' --reference gcc gcc=- ours=$(TARGET)/release/openmp

planted:
	@tools/install-build-needs.sh test
	@tools/test/run.sh planted

bench: bench-scale bench-views bench-memory bench-sim bench-pool bench-pager bench-live bench-image bench-remote bench-openmp

bench-scale:
	@tools/install-build-needs.sh run
	@benches/install.sh
	@benches/perf-with-bpf.sh $(TARGET)/perf-with-bpf
	PERF_WITH_BPF=$(TARGET)/perf-with-bpf/perf $(CARGO) run --release --locked -p amdahl-bench -- scale

bench-views:
	@tools/install-build-needs.sh run
	@benches/install.sh
	@benches/perf-with-bpf.sh $(TARGET)/perf-with-bpf
	PERF_WITH_BPF=$(TARGET)/perf-with-bpf/perf $(CARGO) run --release --locked -p amdahl-bench -- views

bench-memory:
	@tools/install-build-needs.sh run
	$(CARGO) run --release --locked -p amdahl-bench-memory

bench-sim:
	@tools/install-build-needs.sh run
	$(CARGO) run --release --locked -p amdahl-bench-sim

bench-pool:
	@tools/install-build-needs.sh bench-pool
	$(CARGO) run --release --locked -p amdahl-bench-pool

bench-pager:
	@tools/install-build-needs.sh run
	$(CARGO) run --release --locked -p amdahl-bench-pager

bench-live:
	@tools/install-build-needs.sh run
	@mkdir -p target
	$(CARGO) run --release --locked -q -p amdahl -- sim calibrate -q -o target/live-costs.json
	$(CARGO) run --release --locked -p amdahl-bench-live -- --costs target/live-costs.json

bench-image:
	@tools/install-build-needs.sh bench-image
	$(CARGO) run --release --locked -p amdahl-bench-image

bench-remote:
	@tools/install-build-needs.sh bench-remote
	$(CARGO) run --release --locked -p amdahl-bench-remote

bench-openmp:
	@tools/install-build-needs.sh bench-openmp
	$(CARGO) build --release --locked -p amdahl-libgomp
	abi/libgomp/link.sh $(TARGET)/release/libamdahl_libgomp.a $(TARGET)/release/openmp/libgomp.so.1
	$(CARGO) run --release --locked -p amdahl-bench-openmp

bpf:
	@tools/install-build-needs.sh bpf
	PATH=/usr/lib/llvm-14/bin:$$PATH crates/probe/src/bpf/build.sh

bpf-check:
	@tools/install-build-needs.sh bpf
	PATH=/usr/lib/llvm-14/bin:$$PATH crates/probe/src/bpf/build.sh --check

kernels:
	@tools/install-build-needs.sh kernels
	@tools/kernels/run.sh x86_64
	@tools/kernels/run.sh aarch64
