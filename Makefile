# Every task of the house. `make` alone lists them; CI calls the same ones.
# ARGS="…" is handed to the program behind a target: make demo ARGS="--controller fixed"

SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-fabric demo-sensors test check bench bench-durability bench-durability-quick bench-fabric bench-fabric-quick bench-frames bench-frames-quick bench-mqtt bench-mqtt-quick bench-sensors bench-sensors-quick bench-vision bench-vision-quick fuzz docs dist

help: ## lists these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## installs what is missing to build and run (Debian, Ubuntu), or says what to install
	@scripts/setup

demo: setup ## five cameras on a link that swings tenfold, a live table and a verdict; a minute, and first the build
	cargo build --release --package tidegate --package tidegate-lab --package tidegate-netlab
	cargo run --quiet --release --package tidegate-lab -- demo $(ARGS)

demo-sensors: setup ## four applications' sensors, alarms at the edge, a narrow link that breaks, an archive, and a verdict; a minute
	cargo build --release --package tidegate --package tidegate-lab
	cargo run --quiet --release --package tidegate-lab -- demo-sensors $(ARGS)

demo-fabric: setup ## eight nodes in two regions as one: one is killed, one hangs, one is cut off, one is revoked, and a verdict; a minute
	cargo build --release --package tidegate --package tidegate-lab
	cargo run --quiet --release --package tidegate-lab -- demo-fabric $(ARGS)

test: setup ## every test of the workspace, of the workers and of the SDKs, counted in the last line
	cargo xtask test $(ARGS)

check: setup ## formatting, lints, layers, licences, scripts
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features tidegate/xdp -- -D warnings
	cargo clippy --package tidegate --no-default-features -- -D warnings
	cargo xtask check

bench: bench-frames bench-mqtt bench-durability bench-sensors bench-vision bench-fabric ## every bench, whole

bench-frames: setup ## camera frames: every figure, five runs; needs root for the emulated links
	scripts/bench-frames $(ARGS)

bench-frames-quick: setup ## the same figures on shorter runs, three and a half minutes
	scripts/bench-frames --quick $(ARGS)

bench-mqtt: setup ## the MQTT broker beside four others: every figure, five runs, over an hour; needs root for the emulated links
	scripts/bench-mqtt $(ARGS)

bench-mqtt-quick: setup ## the same figures on shorter runs, about two minutes, without the paper's experiments
	scripts/bench-mqtt --quick $(ARGS)

bench-durability: setup ## what durability costs and keeps: every figure, five runs, about an hour, on the disk of this checkout
	scripts/bench-durability $(ARGS)

bench-durability-quick: setup ## the same figures on shorter runs, four to five minutes
	scripts/bench-durability --quick $(ARGS)

bench-fabric: setup ## many nodes as one beside bridges and routed servers: every figure, some two hours; needs root
	scripts/bench-fabric $(ARGS)

bench-fabric-quick: setup ## the same figures on shorter runs, some ten minutes
	scripts/bench-fabric --quick $(ARGS)

bench-sensors: setup ## sensor streams in ten groups, from the codec to cut links: every figure, five runs, hours; needs root for some
	scripts/bench-sensors $(ARGS)

bench-sensors-quick: setup ## the same figures on shorter runs
	scripts/bench-sensors --quick $(ARGS)

bench-vision: setup ## images in, boxes and pictures out, beside a Django server: every figure, some 25 minutes; needs root
	scripts/bench-vision $(ARGS)

bench-vision-quick: setup ## the same figures on shorter runs, some six minutes
	scripts/bench-vision --quick $(ARGS)

fuzz: setup ## every fuzz target, FUZZ_SECONDS each (default 60)
	scripts/fuzz $(ARGS)

dist: setup ## the program as it is handed out: stripped, optimized as a whole, 30 MB at most; a long build
	cargo xtask dist $(ARGS)

docs: setup ## the API of every crate, and the book where mdbook is installed
	cargo doc --workspace --no-deps
	scripts/book
