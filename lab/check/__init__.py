"""Whatever ends with `N passed, N failed, N skipped`."""
