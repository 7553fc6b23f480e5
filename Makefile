# Two commands for people: `make demo` and `make test`. Both install what they need.

SHELL := /bin/bash
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/belljar
export CARGO_TARGET_DIR ?= $(CACHE)/target

.PHONY: help demo test build install-tools test-tools lint soak clean

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

test: test-tools lint ## Run every test, as CI does
	@cargo test --locked --workspace --no-fail-fast

lint: install-tools ## Formatting, lints, docs
	@cargo fmt --all --check
	@cargo clippy --locked --workspace --all-targets -- -D warnings

soak: build ## A thousand sandboxes made and ended, with what watches over them killed at random
	@scripts/soak $(CARGO_TARGET_DIR)/release/belljar

clean: ## Remove the build cache
	@rm -rf $(CACHE)/target
