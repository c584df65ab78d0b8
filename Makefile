# make demo    a job in a real Slurm wakes EC2 instances (moto), runs, and gives them back
# make test    every test: the crate's own, and end to end on a real slurmctld
# make e2e     the latter alone; SCENARIOS="demo crash-restart" picks some
# make bench   a table of times, no assertions
# make lint    formatting and clippy
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

RELEASE_DIR := $(CURDIR)/target/x86_64-unknown-linux-gnu/release
PYTHON := $(CURDIR)/.venv/bin/python -B

# Tests that start the programs take them from here; those that need EC2 over HTTP start moto from there.
export SLURM_EC2_BIN_DIR ?= $(RELEASE_DIR)
export SLURM_EC2_MOTO_SERVER ?= $(CURDIR)/.venv/bin/moto_server

# A registry has bad moments; cargo's own default is 3.
export CARGO_NET_RETRY ?= 10

# In the order given also under -j: all of them want both processors and cargo's lock.
.NOTPARALLEL:
.PHONY: build deps demo test unit e2e bench lint fmt clean

build:
	cargo build --release --bins

deps:
	scripts/install-deps

demo:
	scripts/demo

test: deps build unit e2e

unit: deps build
	cargo test --workspace

e2e: deps build
	$(PYTHON) testkit/lab/e2e.py $(SCENARIOS)

bench: deps build
	cargo run --release -p slurm-ec2-testkit --bin bench

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

fmt:
	cargo fmt --all

clean:
	cargo clean
	rm -rf .venv
