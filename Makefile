# Each target is one line of intent; lab/ does the work.

lab := build/venv/bin/python -m lab

export KVER

.PHONY: help setup tree modules
.DEFAULT_GOAL := help

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: build/.setup ## install what is needed from Debian and PyPI (done by every other target)

build/.setup: lab/setup.sh lab/requirements.txt
	@sh lab/setup.sh

tree: build/.setup ## compose build/linux: the Debian source, one commit a patch
	@$(lab) tree

modules: build/.setup ## build kvm.ko, kvm-amd.ko, kvm-intel.ko against stock headers
	@$(lab) modules
