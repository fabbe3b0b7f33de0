# Each target is one line of intent; lab/ does the work.

lab = build/venv/bin/python -m lab

export KVER CMD TESTS

run_options = $(if $(CPUS),--cpus $(CPUS)) $(if $(MEM),--mem $(MEM)) \
	$(if $(PARAMS),--params '$(PARAMS)') $(if $(ICOUNT),--icount) $(if $(STOCK),--stock) \
	$(if $(TIMEOUT),--timeout $(TIMEOUT)) $(if $(BACKEND),--backend $(BACKEND))

.PHONY: demo help setup tree series refresh modules selftests check test bench lab lint clean
.DEFAULT_GOAL := help

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: build/.setup ## install what is needed from Debian and PyPI (done by every other target)

build/.setup: lab/setup.sh lab/requirements.txt
	@sh lab/setup.sh

tree: build/.setup ## compose build/linux: the Debian source, one commit a patch
	@$(lab) tree

series: build/.setup ## export the mailable series to build/series, look it through with checkpatch
	@$(lab) series

refresh: build/.setup ## take commits made in build/linux back into patches/ and new files
	@$(lab) refresh

modules: build/.setup ## build kvm.ko, kvm-amd.ko, kvm-intel.ko against stock headers
	@$(lab) modules

selftests: build/.setup ## build KVM's selftests, static, into build/selftests
	@$(lab) selftests

check: build/.setup ## run the series' tests on NPT, global_tdp=1; two minutes [TESTS='global_tdp_api_test ...']
	@$(lab) check --tests "$$TESTS"

test: build/.setup ## run every test: the series' on NPT and EPT, the kernel's own against stock modules
	@$(lab) test --tests "$$TESTS"

demo: build/.setup ## live-migrate a real guest, Global TDP off and on [ARGS='--mode postcopy --backend memfd']
	@$(lab) demo $(ARGS)

bench: build/.setup ## count instructions a page with stock modules and with ours, against targets
	@$(lab) bench

lab: build/.setup ## run CMD='...' in an emulated machine [CPUS MEM PARAMS ICOUNT STOCK TIMEOUT BACKEND]
	@$(lab) run $(run_options) -- "$$CMD"

lint: build/.setup ## look through the lab with ruff, through the series with checkpatch
	@$(lab) lint

clean: ## remove build/, unless build/linux has edits that were not taken back
	@if test -d build/linux; then $(lab) clean; else rm -rf build; fi
