"""The demo: live-migrate a real guest with Global TDP off, then on, and compare.

`cli` prepares and shows the result; `inside` runs in the emulated machine.
"""
