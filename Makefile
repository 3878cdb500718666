# SPDX-License-Identifier: GPL-2.0-or-later
# Every target does the set-up that it needs. The work is done by tools/ and tests/run.

.DEFAULT_GOAL := help
.PHONY: help setup sources qemu linux linux-stock guest rmd build demo check check-all bench paths clean distclean

help:
	@echo 'make demo       a VM on memory channels, from libvirt XML to the last page: watch it grow and shrink'
	@echo 'make check      all tests: patches, unit, component, qtest, KUnit, VM'
	@echo 'make check-all  the long campaigns as well (sanitizer builds, every prefix of both series)'
	@echo 'make bench      all benchmarks; BENCH=NAME one'
	@echo 'make build      QEMU, guest kernel, guest image, rmd; finished builds come from the cache'
	@echo 'make paths      what was built, one NAME=value a line (use make -s)'
	@echo 'make setup      only the Debian packages that are needed'
	@echo 'make clean      remove build/ but for the patch trees; make distclean: all of build/'
	@echo
	@echo 'tools/patches   the QEMU and Linux series: unpack, export, check, rebase (see CONTRIBUTING.md)'

setup:
	@tools/setup

sources: setup
	@tools/patches fetch qemu
	@tools/patches fetch linux

qemu linux linux-stock guest rmd: setup
	@tools/build $@

build: setup
	@tools/build all

demo: build
	@tests/run demo

check: build
	@tests/run check

check-all: build
	@tools/build linux-stock
	@tests/run check-all

bench: build
	@tools/build linux-stock
	@tests/run bench $(BENCH)

paths:
	@tools/build paths

clean:
	rm -rf build/rmd build/out build/log build/test-logs build/demo build/bench

distclean:
	rm -rf build
