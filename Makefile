# Entry points; `make` alone lists them. CARGO_TARGET_DIR and other settings of cargo are honoured.

SHELL := /bin/sh
.SHELLFLAGS := -eu -c
.DEFAULT_GOAL := help
.PHONY: help setup setup-lint demo test soak lint bench fuzz quality

ARGS ?=
TRACE ?=
SOAK_SECONDS ?= 3600
SOAK_SEED ?= 1
FUZZ_SECONDS ?= 600
HAVE_BENCHES := $(wildcard benches/*.rs)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: ## install what the build needs (run by the others)
	@sh scripts/setup.sh

setup-lint:
	@sh scripts/setup.sh lint

demo: setup ## show it at work on loopback; ARGS=--once ends after the comparison
	cargo run --locked -- demo $(ARGS)

test: setup ## run all tests, and the benchmarks once each
	cargo test --locked
ifneq ($(HAVE_BENCHES),)
	cargo test --locked --bench '*'
endif

soak: setup ## faults at random under load for SOAK_SECONDS (an hour); SOAK_SEED repeats a run
	SOAK_SECONDS=$(SOAK_SECONDS) SOAK_SEED=$(SOAK_SEED) cargo test --locked --test faults -- --ignored --exact soak::soak --nocapture

lint: setup-lint ## check format, clippy, documentation, benchmarks and dependencies
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --locked --no-deps --document-private-items
ifneq ($(HAVE_BENCHES),)
	cargo test --locked --bench '*' --no-run
endif
	cargo update --workspace --locked --quiet --manifest-path fuzz/Cargo.toml   # its lock file follows ours
	@sh scripts/deny.sh

bench: setup ## measure (release build, takes minutes); ARGS=NAME selects
	cargo bench --locked --bench '*' -- $(ARGS)

fuzz: setup ## run each fuzz target for FUZZ_SECONDS (600); ARGS=NAME selects
	@SECONDS_EACH='$(FUZZ_SECONDS)' sh scripts/fuzz.sh $(ARGS)

quality: setup ## print what every policy does to every workload (release build); TRACE=FILE adds a trace
	cargo build --release --locked
	@TRACE='$(TRACE)' sh scripts/quality.sh
