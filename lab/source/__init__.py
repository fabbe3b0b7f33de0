"""Where the kernel and the series come from, and how they become one tree and patches again."""
