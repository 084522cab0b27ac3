# What can be done here. `make` lists it. Everything sets up what it needs first (see scripts/setup).

SEEDS ?= 1000
WORLDS ?= server
FUZZ_SECONDS ?= 60
DATA ?= ./aerogel-data
PREFIX ?= /usr/local
TRACES ?= ../shared/data/traces
TARGET := $(or $(CARGO_TARGET_DIR),target)
PYTHON := /usr/bin/python3
# Experiments that take 10 s and more each: they find regressions of performance, not bugs.
LONG_LAB := insulated-four insulated-streams insulated-oracle insulated-stream-random insulated-random-writes \
	insulated-oltp-scan insulated-absorbed sharing-cache sharing-depths sharing-streams sharing-stream-random \
	headless-readers headless-writer headless-stream-writer guarantees guarantees-hostile allocation-model \
	allocation-paper allocation-follow
# The assertions of a debug build, and the speed of a release where tests spend their time.
CHECKED := --profile checked
# What ships and what the tests run has the features of the whole workspace: with `-p`, dependencies would have others,
# and be built again. `.ci/run` builds the program with AEROGEL_PROFILE=checked, as the tests do; `--tests` gives it
# their features.
AEROGEL_PROFILE ?= release
BUILD := cargo build --profile $(AEROGEL_PROFILE) --workspace --bin aerogel \
	$(if $(filter checked,$(AEROGEL_PROFILE)),--tests)
BUILD_CHECKED := cargo test --workspace $(CHECKED) --no-run

.DEFAULT_GOAL := help
.PHONY: help run cluster build test test-long test-rust test-clients test-clients-long test-planted test-swarm test-lab
.PHONY: test-here test-debian13 test-tables test-traces swarm lab fuzz fuzz-minimise bench bench-attacks bench-headless
.PHONY: bench-passes bench-insulation bench-guarantees bench-mixes bench-release bench-realtime bench-cluster
.PHONY: bench-allocate test-lab-long readme install deb lint deny clean test-planted-long

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## build, and serve from ./aerogel-data (DATA=DIR for another directory)
	@scripts/setup run
	$(BUILD)
	$(TARGET)/$(AEROGEL_PROFILE)/aerogel serve --data $(DATA)

cluster: ## build, and start etcd, three servers with simulated disks and a gateway, until Ctrl-C
	@scripts/setup cluster
	$(BUILD)
	@scripts/cluster $(TARGET)/$(AEROGEL_PROFILE)/aerogel

build: ## build the server: target/release/aerogel
	@scripts/setup run
	$(BUILD)

test: ## all tests that run in minutes
	@scripts/setup test
	@$(MAKE) --no-print-directory test-here test-clients

test-here: lint test-rust test-swarm test-lab ## those of them that need no client

test-long: ## test, and what takes longer: more crashes, seeds and fuzzing
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory swarm SEEDS=20000
	@$(MAKE) --no-print-directory swarm SEEDS=10000 WORLDS=machines
	@$(MAKE) --no-print-directory swarm SEEDS=10000 WORLDS=stores
	@$(MAKE) --no-print-directory swarm SEEDS=10000 WORLDS=stripes
	@$(MAKE) --no-print-directory swarm SEEDS=10000 WORLDS=clusters
	@$(MAKE) --no-print-directory swarm SEEDS=10000 WORLDS=gateways
	@$(MAKE) --no-print-directory test-planted
	@$(MAKE) --no-print-directory test-planted-long
	cargo test -p engine $(CHECKED) --lib thousands_of_worlds -- --ignored
	AEROGEL_TEST_LONG=1 cargo test -p node $(CHECKED) bodies_are_refused_or_done
	@$(MAKE) --no-print-directory test-traces
	@$(MAKE) --no-print-directory test-lab-long
	@$(MAKE) --no-print-directory test-tables
	@$(MAKE) --no-print-directory test-clients-long
	@$(MAKE) --no-print-directory test-debian13
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=600
	@$(MAKE) --no-print-directory deny

# `.ci/run` runs clippy as a part of each compilation instead.
lint: ## formatting, line and file sizes, the order of the layers, warnings
	cargo fmt --all --check
	scripts/tidy
	scripts/layers
	$(if $(filter %/rustc-with-clippy,$(RUSTC_WORKSPACE_WRAPPER)),, \
		cargo clippy --workspace --all-targets $(CHECKED) -- -D warnings)

test-rust: ## unit, property and scenario tests of all crates
	cargo test --workspace $(CHECKED)

test-planted: ## the simulation's checkers find every planted bug, the fuzzer's corpus some
	cargo test --workspace $(CHECKED) --features sim/planted-bugs,fuzz/planted-bugs --test planted

test-planted-long: ## the worlds of the client of off-load stores find every planted bug of it
	cargo test -p engine $(CHECKED) --features planted-bugs --lib planted_bugs_are_found

# With the assertions on, and few enough seeds for each change.
test-swarm: ## 150 simulated worlds
	$(BUILD_CHECKED)
	$(TARGET)/checked/aerogel-lab swarm --from 1000 --seeds 150

swarm: ## SEEDS=n simulated worlds (WORLDS=machines: gateways, stores: off-load, stripes, clusters); a failing one
	cargo run --profile release -p lab --bin aerogel-lab -- swarm --worlds $(WORLDS) --seeds $(SEEDS)

test-tables: ## what pausing clients, many tenants and deep queues keep, on three disks (minutes)
	cargo test --workspace $(CHECKED) --test all slices:: -- --ignored --nocapture

test-traces: ## the figures of whole traces, if they are in TRACES=DIR (../shared/data/traces)
	$(BUILD_CHECKED)
	@if [ -d $(TRACES) ]; then \
		AEROGEL_TRACES=$(abspath $(TRACES)) \
			cargo test --workspace $(CHECKED) --features lab/whole-traces --test all traces:: && \
		$(TARGET)/checked/aerogel-lab run --quick insulated-traces --traces $(TRACES) --check docs/claims-lab.md; \
	else echo "test-traces: skipped, there is no directory $(TRACES) (TRACES=DIR names another)"; fi

# Without traces, on every machine alike: which tenants of that experiment are admitted depends on one seed, and its
# figures change with every change of the engine (`test-traces`). Off-load takes many minutes (`aerogel-lab run offload
# --quick`), others half a minute each (`test-lab-long`).
test-lab: ## quick experiments, and whether docs/claims-lab.md still says what they find
	$(BUILD_CHECKED)
	$(TARGET)/checked/aerogel-lab run --quick --traces none --without offload --without cluster \
		--without allocation-random --without allocation-plan $(addprefix --without ,$(LONG_LAB)) \
		--check docs/claims-lab.md

test-lab-long: ## what of that takes long
	$(BUILD_CHECKED)
	$(TARGET)/checked/aerogel-lab run --quick --traces none $(LONG_LAB) --check docs/claims-lab.md
	$(TARGET)/checked/aerogel-lab run --quick --traces none cluster allocation-plan

lab: ## all experiments in full; their figures go into docs/claims-lab.md, their page into target/lab/report.html
	cargo run --release -p lab --bin aerogel-lab -- run --traces $(TRACES) --write docs/claims-lab.md
	cargo run --release -p lab --bin aerogel-lab -- report --traces $(TRACES)

test-clients: ## libnbd, qemu and fio against a real server (ONLY=pattern, WITHOUT=pattern for some)
	@scripts/setup test
	$(BUILD_CHECKED)
	$(PYTHON) tests/run.py $(addprefix -k ,$(ONLY)) $(addprefix --without ,$(WITHOUT))

test-clients-long: ## the same with more rounds, databases, an emulated machine, crash images by the thousand
	@scripts/setup long
	$(BUILD_CHECKED) --config profile.checked.opt-level=1
	$(PYTHON) tests/run.py --long $(addprefix -k ,$(ONLY))

test-debian13: ## tests with the clients of Debian 13: qemu 10, libnbd 1.22 (ONLY=pattern)
	@scripts/setup long
	$(BUILD_CHECKED)
	scripts/debian13 --without tls \
		$(addprefix -k ,$(or $(ONLY),fio gateway handshake images policies requests sessions tools transactions))

install: build ## install into PREFIX (/usr/local), below DESTDIR: program, man pages, completions, unit
	PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) scripts/install $(TARGET)/$(AEROGEL_PROFILE)/aerogel

deb: build ## a Debian package in target/debian
	@scripts/setup deb
	scripts/deb $(TARGET)/$(AEROGEL_PROFILE)/aerogel $(TARGET)/debian

readme: ## run the commands that the README and the chapters on gateways and off-load show
	@scripts/setup test
	scripts/readme-check README.md
	scripts/readme-check docs/manual/gateway.md
	scripts/readme-check docs/manual/offload.md
	scripts/readme-check docs/manual/allocate.md

bench: ## ours against nbdkit, qemu-nbd and fio on this machine (BENCH="--quick --only hits")
	@scripts/setup bench
	$(BUILD)
	$(PYTHON) bench/run.py $(BENCH)

bench-passes: ## the longest pass of the data thread, with 1,000 tenants of which 256 end their trials together
	cargo test --release -p lab --test all planning:: -- --nocapture --test-threads 1

bench-headless: ## three tenants on the disk of this machine, taken for an SSD (10 minutes; BENCH="--only readers")
	@scripts/setup bench
	$(BUILD)
	$(PYTHON) bench/headless.py $(BENCH)

bench-insulation: ## against schedulers, weights and ceilings of the kernel, and qemu-nbd (root; 25 minutes)
	@scripts/setup bench
	$(BUILD)
	$(PYTHON) bench/insulation.py $(BENCH)

bench-guarantees: ## guarantees under insulated and under token buckets, with fio in real time (half an hour)
	@scripts/setup bench
	$(BUILD)
	$(PYTHON) bench/guarantees.py $(BENCH)

bench-mixes: ## the laboratory's mixes in real time, driven by fio, against virtual time (half an hour)
	@scripts/setup bench
	$(BUILD) --bin aerogel-lab
	$(PYTHON) bench/mixes.py $(BENCH)

bench-cluster: ## striped tenants of a cluster in real time, driven by fio, against virtual time (10 minutes)
	@scripts/setup test
	$(BUILD) --bin aerogel-lab
	$(PYTHON) bench/cluster.py $(BENCH)

bench-allocate: ## allocation over two gateways and a server in real time, with fio and MariaDB (root; 15 minutes)
	@scripts/setup bench
	$(BUILD)
	$(PYTHON) bench/allocate.py $(BENCH)

bench-attacks: ## one tenant's requests alone and while another attacks, on an idle machine (4 minutes; ONLY=pattern)
	@scripts/setup test
	$(BUILD)
	AEROGEL_BIN=$(abspath $(TARGET))/release/aerogel \
		AEROGEL_TEST_TIGHT=1 AEROGEL_TEST_SAY=1 AEROGEL_TEST_ATTACK_SECONDS=2 $(PYTHON) tests/run.py -k 'test_attacks*$(ONLY)'

bench-release: ## this release against an earlier one, in turns (BASE=REVISION or a binary; 25 minutes)
	@scripts/setup bench
	$(BUILD)
	$(PYTHON) bench/releases.py $(BASE) $(BENCH)

bench-realtime: ## whether a simulated disk of a running server keeps virtual time
	@scripts/setup bench
	$(BUILD) --bin aerogel-lab
	$(PYTHON) bench/realtime.py $(BENCH)

# The stable compiler takes the fuzzer's flags when it is told so; no sanitizer, because there is no `unsafe` here.
CARGO_FUZZ := RUSTC_BOOTSTRAP=1 CARGO_PROFILE_RELEASE_LTO=off cargo fuzz
FUZZ_FLAGS := --sanitizer none --features libfuzzer

fuzz: ## everything that parses bytes, FUZZ_SECONDS each (60); what is new is added to fuzz/corpus
	@scripts/setup fuzz
	@set -e; for target in $$($(CARGO_FUZZ) list); do \
		echo "fuzz: $$target for $(FUZZ_SECONDS) s"; \
		$(CARGO_FUZZ) run $(FUZZ_FLAGS) $$target -- -max_total_time=$(FUZZ_SECONDS) -timeout=10 -max_len=4096; \
	done

fuzz-minimise: ## keep only inputs in fuzz/corpus that reach what no other one reaches
	@scripts/setup fuzz
	@set -e; for target in $$($(CARGO_FUZZ) list); do $(CARGO_FUZZ) cmin $(FUZZ_FLAGS) $$target; done

deny: ## licences, sources and advisories of the dependencies (`scripts/setup long` installs cargo-deny)
	@scripts/deny

clean: ## remove what was built
	cargo clean
