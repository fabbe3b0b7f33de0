"""make test and make check: run KVM's selftests on stock modules and on ours, and judge."""
