"""The lab: compose the kernel tree, build it, boot it, test it."""
