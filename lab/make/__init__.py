"""What is compiled: KVM's modules, its selftests, the package, QEMU, the module that delays."""
