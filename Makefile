# Each target is one line of intent; lab/ does the work.

lab = exec build/venv/bin/python -m lab

export SERIES KVER CMD TESTS TESTS_OF SEED

stamp = build/$(if $(filter 7.3,$(SERIES)),7.3/).setup

tests = $(if $(TESTS),--tests "$$TESTS")
where = $(if $(STOCK),--stock) $(if $(BACKEND),--backend $(BACKEND))
checked = $(if $(CHECKED),--checked)
run_options = $(if $(CPUS),--cpus $(CPUS)) $(if $(MEM),--mem $(MEM)) \
	$(if $(PARAMS),--params '$(PARAMS)') $(if $(ICOUNT),--icount) $(checked) $(where) \
	$(if $(TIMEOUT),--timeout $(TIMEOUT)) $(if $(MACHINE),--machine $(MACHINE)) \
	$(if $(QUANTUM),--quantum $(QUANTUM))

.PHONY: help demo check test bench lab tree modules selftests refresh series deb qemu docs lint clean
.DEFAULT_GOAL := help

help: ## show this list
	@sed -n -e '/^help:/d' -e 's/^\([a-z]*\):.*## /  make \1\t/p' -e 's/^#: \([a-z-]*\) */    WHAT=\1\t/p' \
		Makefile | expand -t 22
	@echo '  SERIES=7.3 with any of these is about Linux 7.3, not 6.12; KVER=RELEASE about one release'

$(stamp): lab/setup.sh lab/requirements.txt # what is needed from Debian and PyPI
	@sh lab/setup.sh

demo: $(stamp) ## live-migrate a guest, Global TDP off and on [ARGS='--mode postcopy']
	@$(lab) demo $(ARGS)

check: $(stamp) ## run the series' tests on NPT but seven; two minutes [TESTS CHECKED=1]
	@$(lab) check $(tests) $(checked)

test: $(stamp) ## run the tests; an hour [TESTS TESTS_OF=7.3 SEED=0x1 ARGS='--only npt']; or
#: all         every test, on EPT and of both kernels, too; hours
#: broken      break each promise in turn, see a test notice [ARGS='--only uffd']
#: debug       the tests under lockdep, KASAN, kmemleak [DEBUG=kcsan BACKEND STOCK TESTS]
#: cover       which lines of the series no test reaches; half an hour [TESTS]
#: model       prove the protocol with spin, and break it [ARGS='--show span/NO_CARRY']
#: bisect      build and boot after every patch; half an hour [ARGS='--first 20']
#: stress      race everything with everything [ARGS='--seconds 60 --seed 1']
#: races       a search for races on EPT; hours [ARGS='--only late --cpus 2 --quantum 3']
#: fuzz        random and hostile arguments to the ioctls [ARGS='--calls 5000 --seed 1']
#: package     install, use and remove the package on Debian 12, 13 and backports
#: qemu        the tests that our patches add to QEMU's; five minutes, after make qemu
#: assigned    guests with an assigned NVMe drive, ours beside stock [ARGS='--only ours']
#: nvdimm      guests with an NVDIMM, and a power cut [ARGS='--only on']
#: rust        the crate of integration/rust, and its examples
#: tools       the bpftrace tools, on stock modules and ours
#: host-check  packaging/global-tdp-check, on stock modules and ours; three minutes
	@$(lab) test $(WHAT) $(tests) $(where) $(if $(DEBUG),--kind $(DEBUG)) $(ARGS)

bench: $(stamp) ## count instructions a page, stock and ours, against targets; or
#: bulk        what 200 VMs at rest cost their host; ten minutes [ARGS='--vms 50']
#: dax         a guest's first pass over a vNVDIMM; five minutes
#: locking     what a vCPU's fault waits for [ARGS='--modes alone']
#: perf        KVM's own perf tests for 1 to 8 vCPUs [ARGS='--vcpus 1 2']
#: reclaim     reclaim of a file that 1 to 100 VMs map [ARGS='--vms 10']
#: scale       a model of large VMs, checked where it can be [ARGS=--recorded]
#: sparse      guests that want few pages of a file
#: working-set guests of which it was recorded what they need first; four minutes
	@$(lab) bench $(WHAT) $(ARGS)

lab: $(stamp) ## run CMD='...' in a machine [CPUS MEM PARAMS ICOUNT STOCK BACKEND QUANTUM ...]
	@$(lab) run $(run_options) -- "$$CMD"

tree: $(stamp) ## compose build/linux: the Debian source, one commit a patch
	@$(lab) tree

modules: $(stamp) ## build KVM's modules against stock headers [CHECKED=1: with assertions]
	@$(lab) modules $(checked)

selftests: $(stamp) ## build KVM's selftests, static, into build/selftests
	@$(lab) selftests

refresh: $(stamp) ## take commits in build/linux back into patches/ and the copies
	@$(lab) refresh

series: $(stamp) ## export the mailable series to build/series, through checkpatch
	@$(lab) series

deb: $(stamp) ## build the package; or list the lab's kernels as tested [ARGS=--tested]
	@$(lab) deb $(ARGS)

qemu: $(stamp) ## build Debian 13's QEMU with integration/qemu's patches; ten minutes
	@$(lab) qemu

docs: $(stamp) ## write lab/README.md's tables and build/docs, HTML; fails on a new warning
	@$(lab) docs

lint: $(stamp) ## look through the lab with ruff, the series with checkpatch and sparse
	@$(lab) lint

clean: ## remove build/, unless build/linux has edits that were not taken back
	@if test -d build/linux -o -d build/7.3/linux; then $(lab) clean; else rm -rf build; fi
