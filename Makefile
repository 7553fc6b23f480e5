# Two commands for people: `make demo` and `make test`. Both install what they need.

SHELL := /bin/bash
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/belljar
export CARGO_TARGET_DIR ?= $(CACHE)/target

.PHONY: help demo test build install-tools test-tools test-hosts lint soak bench bench-check bench-keep bench-tools clean fuzz fuzz-short

help: ## Show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: build ## Run untrusted code behind the walls and see what is stopped
	@scripts/demo $(CARGO_TARGET_DIR)/release/belljar

build: install-tools ## Build the one binary
	@cargo build --release --locked --bin belljar
	@echo "built $(CARGO_TARGET_DIR)/release/belljar"

install-tools:
	@scripts/install-tools build

test-tools: install-tools
	@scripts/install-tools test
	@scripts/install-tools agents

test: test-tools lint ## Run every test, as CI does
	@cargo test --locked --workspace --no-fail-fast --config "target.'cfg(unix)'.runner=['$(CURDIR)/scripts/test-within', '25']"
	@$(MAKE) --no-print-directory fuzz-short

test-hosts: test-tools ## Try the walls rootless, and on Linux 6.1 with cgroup v2 in a virtual machine
	@scripts/test-hosts all

lint: install-tools ## Formatting, lints, docs
	@cargo fmt --all --check
	@cargo clippy --locked --workspace --all-targets -- -D warnings

FUZZ_SECONDS ?= 3600

fuzz: test-tools ## Look for inputs that break what reads foreign bytes: FUZZ_SECONDS (an hour) for each target
	@scripts/fuzz run --seconds $(FUZZ_SECONDS)

fuzz-short: test-tools ## The same, half a minute for each target
	@scripts/fuzz run --seconds 30

soak: build ## Ten thousand sandboxes and twenty thousand sessions, with what watches over them killed at random
	@scripts/soak $(CARGO_TARGET_DIR)/release/belljar
	@BELLJAR_ENGINE_SEEDS=200 BELLJAR_ENGINE_SUSPEND=60 BELLJAR_ENGINE_SESSIONS=20000 \
		cargo test --locked --release -p belljar --test engine -- --test-threads 1

# Measuring takes root, whoever builds.
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo)
BENCH = $(AS_ROOT) $(CARGO_TARGET_DIR)/release/belljar-bench

bench-tools: install-tools
	@scripts/install-tools bench
	@cargo build --release --locked -p belljar -p belljar-bench -p belljar-floor

bench: bench-tools ## Measure what the walls cost, beside bubblewrap, runc, podman, docker and gVisor
	@$(BENCH) $(BENCH_ARGS)

bench-check: bench-tools ## Measure in a shorter form, and fail when a promise of SPECIFICATION.md is broken
	@$(BENCH) --quick --check $(BENCH_ARGS)

bench-keep: bench-tools ## As bench, and keep the results in bench/results
	@$(BENCH) --keep $(BENCH_ARGS)

clean: ## Remove the build cache
	@rm -rf $(CACHE)/target
