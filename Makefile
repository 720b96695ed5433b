# The two commands of the README (`make run`, `make test`) and what they are made of.
PRESET ?= release
JOBS ?= $(shell nproc)
BUILD = build/$(PRESET)
# The GPU library: AUTO (where nvcc is), ON or OFF; deploy/setup.sh reads it too.
export WEFT_CUDA ?= AUTO
# Mode in which a new build folder compiles libraries: ON, in batches of sources, or OFF (cmake/weft_unity.cmake). An existing folder
# keeps its own.
UNITY ?= ON
# Folders into which `make install` copies.
PREFIX ?= /usr/local
DESTDIR ?=
# Packages that deploy/setup.sh installs: run (for the programs), test (also for the tests), fuzz (also clang) or all (also
# clang's tools).
NEEDS ?= test

new_folder = $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DWEFT_UNITY=$(UNITY))
configure = cmake --preset $(PRESET) -DWEFT_CUDA=$(WEFT_CUDA) $(new_folder) $(1) $(CMAKE_FLAGS) >build/configure.log || \
  { cat build/configure.log; exit 1; }

.PHONY: help setup build run test nightly fuzz bench bundle install deb image wheel checks asan tsan tidy thread-safety format clean
help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## Install what the build needs (Debian packages by name, LibTorch and UCX from PyPI into build/deps)
	@deploy/setup.sh $(NEEDS)

build: setup ## Compile everything into build/release (PRESET=debug|asan|tsan for another)
	@$(call configure,-DWEFT_TESTS=ON)
	@sed -n 's/^-- GPU library/GPU library/p' build/configure.log
	@cmake --build --preset $(PRESET) -j $(JOBS)

run: ## Train a GPT on real text: 4 worker processes, looped pipelines, 2 groups of 2 ranks. Builds what that needs
	@deploy/setup.sh run
	@$(call configure)
	@cmake --build --preset $(PRESET) -j $(JOBS) --target weft weft-worker
	@deploy/main_job.sh $(BUILD)/bin/weft

test: build ## Run all tests
	@tests/run.sh $(BUILD) $(JOBS)

nightly: ## Play new seeds of all simulated worlds until Ctrl-C; a seed that fails is printed with its world
	@$(call configure,-DWEFT_TESTS=ON)
	@cmake --build --preset $(PRESET) -j $(JOBS) --target simulate_worlds
	@$(BUILD)/tests/simulate_worlds --nightly

fuzz: ## Feed made-up bytes to what reads run files, frames and messages, for SECONDS=60 each, under sanitizers (SEED=1: the same again)
	@deploy/setup.sh fuzz
	@$(call configure,-DWEFT_TESTS=ON -DWEFT_CUDA=OFF)
	@cmake --build --preset $(PRESET) -j $(JOBS) --target fuzzers
	@JOBS=$(JOBS) SEED=$(SEED) tests/fuzz/run.sh $(BUILD) $(SECONDS)
fuzz: PRESET = fuzz
fuzz: SECONDS ?= 60

bench: build ## Run the benchmarks and print their figures
	@cmake --build --preset $(PRESET) -j $(JOBS) --target benchmarks
	@tests/bench/run.sh $(BUILD)

bundle: build ## Pack a folder that runs on any Linux machine with LibTorch into build/weft-VERSION-linux-x86_64.tar.gz
	@deploy/bundle.sh $(BUILD)

install: build ## Install into PREFIX (default /usr/local), or below DESTDIR: programs, units of systemd, completion, manual pages, documents, client library
	@deploy/install.sh $(BUILD) $(PREFIX) $(DESTDIR)
	@DESTDIR=$(DESTDIR) cmake --install $(BUILD) --component development --prefix $(PREFIX) --strip >build/install.log || \
	  { cat build/install.log; exit 1; }

deb: build ## Pack Debian packages into build: weft_VERSION_amd64.deb, and weft-dev_VERSION_amd64.deb for clients
	@deploy/deb.sh $(BUILD)

image: build ## Build a container image with LibTorch by podman, buildah or docker (DEVICE=cuda: with LibTorch's CUDA half)
	@deploy/image.sh $(BUILD) $(DEVICE)

wheel: bundle ## Pack the same and the Python package as a wheel, build/weft-VERSION-py3-none-manylinux_.._x86_64.whl
	@python3 deploy/wheel.py $$(ls -d build/weft-*-linux-x86_64) build

checks: ## All that follow in turn: tsan, asan, thread-safety, tidy (an hour or more on 2 cores)
	@for check in tsan asan thread-safety tidy; do $(MAKE) --no-print-directory $$check || exit 1; done

asan tsan: ## Build and test under Address+UndefinedBehaviour or Thread Sanitizer
	@$(MAKE) test PRESET=$@

tidy thread-safety: PRESET = static
tidy thread-safety: ## Check the sources with clang-tidy, or with clang's thread-safety analysis; nothing is built
	@deploy/setup.sh all
	@$(call configure,-DWEFT_TESTS=ON)
	@cmake --build --preset $(PRESET) -j $(JOBS) --target weft_generated_sources
	@tests/static_checks.py $(BUILD) $@ --jobs $(JOBS)

format: ## Format the sources in place
	@deploy/setup.sh all
	@git ls-files '*.cc' '*.h' | xargs clang-format -i

clean: ## Remove the build trees, keep the dependencies
	@find build -mindepth 1 -maxdepth 1 ! -name deps -exec rm -rf {} +
