"""Emulated machines: an AMD one (npt, QEMU) and an Intel one (ept, Bochs)."""
