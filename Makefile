# What people and CI type. `make` alone lists it.
.DEFAULT_GOAL := help
.PHONY: help setup test check lint fix demo bench run

PY := .venv/bin/python
# Guests, namespaces and the machine's libvirt want root; CI and containers are root already.
ROOT := $(if $(filter 0,$(shell id -u)),,sudo -E)
QUICK := not slow and not postgres and not browser and not libvirt and not guest
PYTEST_FLAGS ?=

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 15

setup: ## Install packages, .venv and the guest images; from caches the second time
	@tools/setup.sh
	@case " $(MAKECMDGOALS) " in *" setup "*) echo "setup: done. Next: make demo, or docs/quickstart.md" ;; esac

test: setup lint ## Everything: lint, types, quick, PostgreSQL, browser, and guests on a libvirtd of the run's own
	@$(ROOT) $(PY) -m vmgpu.lab.namespace -- .venv/bin/pytest $(PYTEST_FLAGS)

check: ## The quick part, under a minute: lint, types and unit tests; leaves .venv/bin/vmgpu
	@tools/setup.sh packages python
	@$(MAKE) -s --no-print-directory lint
	@VMGPU_TEST_QUICK=1 .venv/bin/pytest -n 2 -m "$(QUICK)" $(PYTEST_FLAGS)

lint: ## Style and types (after make check or make setup)
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --quiet --check .
	@.venv/bin/mypy --no-error-summary

fix: ## Mend what ruff can mend by itself
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

demo: setup ## Show the whole story on this machine; ONCE=1 ends after the proof, GPU=ADDRESS adds a real card
	@$(ROOT) .venv/bin/vmgpu demo $(if $(ONCE),--once) $(if $(GPU),--gpu "$(GPU)")

bench: ## Measure what we claim: NAME=time_to_ssh for one, JSON=1 for machines
	@tools/setup.sh
	@tools/bench.sh $(if $(NAME),"$(NAME)") $(if $(JSON),--json)

run: ## Start the service on 127.0.0.1:8000
	@.venv/bin/vmgpu serve
