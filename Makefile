# Each target is one line of intent; lab/ does the work.

lab = exec build/venv/bin/python -m lab

export SERIES KVER CMD TESTS TESTS_OF SEED

stamp = build/$(if $(filter 7.3,$(SERIES)),7.3/).setup

run_options = $(if $(CPUS),--cpus $(CPUS)) $(if $(MEM),--mem $(MEM)) \
	$(if $(PARAMS),--params '$(PARAMS)') $(if $(ICOUNT),--icount) $(if $(STOCK),--stock) \
	$(if $(CHECKED),--checked) $(if $(TIMEOUT),--timeout $(TIMEOUT)) $(if $(BACKEND),--backend $(BACKEND)) \
	$(if $(MACHINE),--machine $(MACHINE)) $(if $(QUANTUM),--quantum $(QUANTUM))

.PHONY: help setup tree series refresh modules deb test-package selftests check test \
	stress fuzz races test-broken bisect model test-debug cover test-host-check test-tools tools demo qemu test-qemu test-assigned test-nvdimm test-rust bench bench-bulk bench-dax bench-locking bench-perf bench-reclaim bench-scale bench-sparse bench-working-set lab docs lint ledger clean
.DEFAULT_GOAL := help

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20
	@echo '  SERIES=7.3 with any of these is about Linux 7.3, not 6.12; KVER=RELEASE about one release of it'

setup: $(stamp) ## install what is needed from Debian and PyPI (done by every other target)

$(stamp): lab/setup.sh lab/requirements.txt
	@sh lab/setup.sh

tree: $(stamp) ## compose build/linux: the Debian source, one commit a patch
	@$(lab) tree

series: $(stamp) ## export the mailable series to build/series, look it through with checkpatch
	@$(lab) series

refresh: $(stamp) ## take commits made in build/linux back into patches/ and new files
	@$(lab) refresh

modules: $(stamp) ## build kvm.ko, kvm-amd.ko, kvm-intel.ko against stock headers [CHECKED=1: with assertions]
	@$(lab) modules $(if $(CHECKED),--checked)

deb: $(stamp) ## build the package kvm-global-tdp-dkms into build/: the patches, which it applies to KVM of a host's kernels
	@$(lab) deb

test-package: $(stamp) ## install, turn on and remove the package on Debian 12, 13 and its backports, booting their kernels
	@$(lab) test-package $(ARGS)

selftests: $(stamp) ## build KVM's selftests, static, into build/selftests
	@$(lab) selftests

check: $(stamp) ## run the series' tests on NPT, global_tdp=1, but seven; under two minutes [TESTS='global_tdp_api_test ...' CHECKED=1]
	@$(lab) check --tests "$$TESTS" $(if $(CHECKED),--checked)

test: $(stamp) ## run every test: the series' on NPT and EPT, the kernel's own against stock modules; of 7.3 once, on NPT [TESTS ARGS='--only npt' TESTS_OF=7.3 SEED=0x1]
	@$(lab) test --tests "$$TESTS" $(ARGS)

stress: $(stamp) ## race everything with everything for ten minutes [ARGS='--seconds 60 --seed 1 --machine ept --cpus 2 --quantum 3']
	@$(lab) stress $(ARGS)

fuzz: $(stamp) ## hand random and hostile arguments to capability and ioctl [ARGS='--calls 5000 --seed 1 --machine default']
	@$(lab) fuzz $(ARGS)

races: $(stamp) ## search for races on EPT, whose CPUs take turns of so many instructions; and say which broken promises of races show; hours [ARGS='--only late --cpus 2 --quantum 3 --seed 1']
	@$(lab) races $(ARGS)

test-broken: $(stamp) ## break each promise of the series in turn, see a test notice [ARGS='--only uffd']
	@$(lab) test-broken $(ARGS)

bisect: $(stamp) ## have git am take the series, build and boot after every patch; half an hour [ARGS='--first 20 --last 30']
	@$(lab) bisect $(ARGS)

model: $(stamp) ## prove the protocol (models/) with spin, find what is broken in it on purpose [ARGS='--show span/NO_CARRY']
	@$(lab) model $(ARGS)

test-debug: $(stamp) ## the series' tests under lockdep, KASAN, failing allocations, kmemleak [DEBUG=kcsan BACKEND STOCK TESTS]
	@$(lab) test-debug --kind $(or $(DEBUG),lockdep) --tests "$$TESTS" \
		$(if $(BACKEND),--backend $(BACKEND)) $(if $(STOCK),--stock)

cover: $(stamp) ## show which lines of the series no test reaches [TESTS]
	@$(lab) cover --tests "$$TESTS"

test-host-check: $(stamp) ## run packaging/global-tdp-check on stock modules and ours, check what it says; three minutes
	@$(lab) test --only host

test-tools: $(stamp) ## run the bpftrace tools on stock modules and ours, check what they count
	@$(lab) test --only tools

tools: ## list the bpftrace tools
	@for tool in bpftrace/*.bt; do sed -n "2s,^// ,$$tool: ,p" $$tool; done

demo: $(stamp) ## live-migrate a real guest, Global TDP off and on [ARGS='--mode postcopy --backend memfd']
	@$(lab) demo $(ARGS)

qemu: $(stamp) ## build Debian 13's QEMU with integration/qemu's patches into build/qemu
	@$(lab) qemu

test-qemu: $(stamp) ## run the tests that these patches add to QEMU's, in a machine with our KVM; five minutes, after make qemu's ten
	@$(lab) test-qemu $(ARGS)

test-assigned: $(stamp) ## give an NVMe drive to real guests by vfio-pci, ours beside stock, while their host does what it may [ARGS='--only ours']
	@$(lab) test-assigned $(ARGS)

test-nvdimm: $(stamp) ## give real guests an NVDIMM, with DAX and without, ours beside stock, and cut the power [ARGS='--only on']
	@$(lab) test-nvdimm $(ARGS)

test-rust: $(stamp) ## build and test the crate of integration/rust, run its examples on stock modules and ours
	@$(lab) test-rust $(ARGS)

bench: $(stamp) ## count instructions a page with stock modules and with ours, against targets
	@$(lab) bench

bench-bulk: $(stamp) ## tell what 200 VMs at rest cost their host in ten minutes, off beside on [ARGS='--vms 50']
	@$(lab) bench-bulk $(ARGS)

bench-dax: $(stamp) ## count instructions a page of a guest's first pass over a vNVDIMM, stock and ours
	@$(lab) bench-dax $(ARGS)

bench-locking: $(stamp) ## time what a vCPU's fault waits for while the host changes much memory [ARGS='--modes alone']
	@$(lab) bench-locking $(ARGS)

bench-reclaim: $(stamp) ## count what it takes to reclaim a file that 1 to 100 VMs have, off and on [ARGS='--vms 10']
	@$(lab) bench-reclaim $(ARGS)

bench-sparse: $(stamp) ## count instructions of guests that want one of so many pages of a file, off and on
	@$(lab) bench-sparse $(ARGS)

bench-working-set: $(stamp) ## count instructions of guests of which it was recorded what they need at first
	@$(lab) bench-working-set $(ARGS)

bench-scale: $(stamp) ## model what large VMs cost from what small ones do, and check it where it can be [ARGS=--recorded]
	@$(lab) bench-scale $(ARGS)

bench-perf: $(stamp) ## run KVM's own perf tests for 1 to 8 vCPUs, stock beside ours, all ways to map memory [ARGS='--vcpus 1 2']
	@$(lab) bench-perf $(ARGS)

lab: $(stamp) ## run CMD='...' in an emulated machine [CPUS MEM PARAMS ICOUNT STOCK CHECKED TIMEOUT MACHINE=4level BACKEND=ept QUANTUM=3]
	@$(lab) run $(run_options) -- "$$CMD"

docs: $(stamp) ## build the HTML of Documentation/virt/kvm into build/docs; fails on a new warning
	@$(lab) docs

lint: $(stamp) ## look through the lab with ruff, through the series with checkpatch and sparse
	@$(lab) lint

ledger: $(stamp) ## have README show docs/ledger.toml, which targets write as they end; say which are to be run anew
	@$(lab) ledger

clean: ## remove build/, unless build/linux has edits that were not taken back
	@if test -d build/linux -o -d build/7.3/linux; then $(lab) clean; else rm -rf build; fi
