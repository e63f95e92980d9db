# `make demo` and `make test` are all a newcomer needs: Debian 12 or the like, with python3 and python3-venv.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
# The files of tests to run, if not all: make test TESTS=tests/rollout
TESTS ?=
# For make bench: whether on a real control plane, the page for the table, and which parts.
REAL ?=
PARTS ?=
# For make faults: seeds, the share of requests that is spoiled, the file for the table, and whether on the sandbox.
SEEDS ?= 3
RATE ?= 0.2
TABLE ?=
SANDBOX ?=
# For make promises: the number of pairs of inventories, and the seed of the first chain of a dozen.
PAIRS ?= 24
SEED ?= 1
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
STAMP := $(VENV)/installed-from-pyproject
INVENTORY := inventories/sandbox.yaml
NEEDS_ROOT := 'make test-real needs root: its GPU node mounts, and runs containers.' \
  'Without root: make test-contract, or python -m pytest -m real tests/scenarios'

export PATH := $(BIN):$(PATH)
# Hundreds of processes would compile the same modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-openshift test test-contract test-real test-hosts test-gpu promises faults lint bench docs clean install

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## A GPU stack on a simulated cluster, in about a minute, without a GPU
	@gpu-provision sandbox up
	@echo
	@echo '$$ pyinfra -y inventories/sandbox.py deploys/gpu_stack.py'
	@pyinfra -y inventories/sandbox.py deploys/gpu_stack.py
	@echo
	@gpu-provision status -i $(INVENTORY)
	@kubeconfig=$$(gpu-provision sandbox kubeconfig); \
	printf '\nkubeconfig: %s\n\nTry:\n' "$$kubeconfig"; \
	printf '  %s\n' \
	  'make demo                                   # again: nothing changes' \
	  "kubectl --kubeconfig $$kubeconfig get nodes,ds,pods -A -o wide" \
	  "$(VENV)/bin/gpu-provision plan              # after an edit of $(INVENTORY)" \
	  "$(VENV)/bin/gpu-provision sandbox down      # the end"

demo-openshift: INVENTORY := inventories/openshift.yaml
demo-openshift: $(STAMP) ## The same on a simulated OpenShift cluster: MachineConfigs, Driver Toolkit, constraints
	@gpu-provision sandbox up --fleet openshift
	@gpu-provision plan -i $(INVENTORY)
	@echo
	@echo '$$ pyinfra -y inventories/openshift.py deploys/gpu_stack.py'
	@pyinfra -y inventories/openshift.py deploys/gpu_stack.py
	@echo
	@gpu-provision status -i $(INVENTORY)
	@kubeconfig=$$(gpu-provision sandbox kubeconfig --fleet openshift); \
	printf '\nkubeconfig: %s\n\nTry:\n' "$$kubeconfig"; \
	printf '  %s\n' \
	  "kubectl --kubeconfig $$kubeconfig get clusterversion,machineconfigpools,nodes" \
	  "$(VENV)/bin/gpu-provision sandbox upgrade --fleet openshift --to 4.18.24   # another kernel on every node" \
	  "$(VENV)/bin/gpu-provision plan -i $(INVENTORY)         # the driver for that kernel" \
	  "$(VENV)/bin/gpu-provision sandbox down --fleet openshift                 # the end"

# Many tests wait for a simulated cluster: two workers for each core. The tests of one file may share a cluster.
test: $(STAMP) ## Run the tests
	@python -m pytest -q -n $$(( $$(nproc) * 2 )) --dist loadfile --no-loadscope-reorder --durations=10 $(TESTS)

test-contract: $(STAMP) ## The API that we rely on: the sandbox's and a real one's
	@[ -n "$${GPU_PROVISION_TEST_KUBECONFIG:-}" ] \
	  || python -m tests.real.binaries kube-apiserver kube-controller-manager kube-scheduler
	@python -m pytest -q -m 'real or not real' -n 2 --dist loadfile tests/contract

test-real: $(STAMP) ## Everything on a real Kubernetes, down to real pods; as root
	@[ "$$(id -u)" -eq 0 ] || { printf '%s\n' $(NEEDS_ROOT); exit 1; }
	@python -m tests.real.binaries
	@given=$${GPU_PROVISION_TEST_KUBECONFIG:+0}; \
	python -m pytest -q -m real --tb=short --durations=10 -n $${given:-3} --dist loadfile --no-loadscope-reorder $(TESTS)

test-hosts: $(STAMP) ## The host phase over SSH, on virtual machines and on hosts by the dozen; as root
	@python -m tests.real.binaries
	@python -m tests.real.hosts
	@python -m pytest -q -m hosts --tb=short --durations=10 -n 2 --dist loadfile --no-loadscope-reorder $(TESTS)

promises: $(STAMP) ## Plans against what runs do, on random inventories: PAIRS=24 SEED=1
	@GPU_PROVISION_TEST_PAIRS=$(PAIRS) GPU_PROVISION_TEST_SEED=$(SEED) \
	python -m pytest -q -n 2 --dist load tests/scenarios/test_promises.py

test-gpu: $(STAMP) ## The stack on this machine's own NVIDIA GPU and driver, down to CUDA in pods; as root
	@python -m tests.real.binaries kube-apiserver kube-controller-manager kube-scheduler kubelet
	@python -m pytest -q -m gpu --tb=short --durations=10 $(or $(TESTS),tests/real/gpu)

faults: $(STAMP) ## Runs on an API server that answers badly: SEEDS=50 RATE=0.2 TABLE=faults.md; SANDBOX=1
	@python -m tests.faults --seeds $(SEEDS) --rate $(RATE) $(if $(TABLE),--table $(TABLE)) $(if $(SANDBOX),--sandbox)

lint: $(STAMP) ## Check style, types, layers and words
	@ruff check .
	@ruff format --check .
	@mypy
	@lint-imports --no-logo
	@python -m tools.words
	@shellcheck gpu_provision/hosts/scripts/*.sh
	@shellcheck --shell=sh --exclude=SC1090 gpu_provision/components/scripts/*.sh  # a file of the node is sourced

bench: $(STAMP) ## Measure, with goals and against what one would run instead: REAL=1 TABLE=docs/performance.md PARTS=install
	@python -m benchmarks $(if $(REAL),--real) $(if $(TABLE),--markdown $(TABLE)) $(PARTS)

docs: $(STAMP) ## Write the generated pages again
	@python -m tools.inventory_schema > schema.json.new
	@mv schema.json.new gpu_provision/inventory/schema.json
	@python -m tools.inventory_page > docs/inventory.md
	@python -m tools.pages
	@python -m tools.parity
	@gpu-provision operator render --image registry.example.com/gpu-provision:0.1.0 -o examples/operator/manifests -q > /dev/null
	@gpu-provision operator stack -i inventories/sandbox.yaml > examples/operator/stack.yaml
	@python -m tools.chart
	@python -m tests.hosts.checks.table
	@python -m tests.contract.page

install: $(STAMP) ## Make the virtual environment, if it is not there yet

clean: ## Remove what was made here; a running sandbox is ended first
	@for fleet in default openshift; do \
	  [ ! -x $(BIN)/gpu-provision ] || $(BIN)/gpu-provision sandbox down --fleet $$fleet || true; done
	@rm -rf $(VENV) build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .gpu-provision

# Installed again only when pyproject.toml changed; pip speaks only if it fails, and leaves compiling to Python, which
# compiles what is imported: an eighth of it.
$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo 'Python is missing. On Debian: apt-get install python3 python3-venv'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; $$($(PYTHON) --version) is here. Another one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo 'The venv module is missing. On Debian: apt-get install python3-venv'; exit 1; }
	@echo 'Installing into $(VENV) ...'
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	{ $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --disable-pip-version-check --no-compile -e '.[dev]'; } >"$$log" 2>&1 \
	  || { cat "$$log"; exit 1; }
	@touch $@
