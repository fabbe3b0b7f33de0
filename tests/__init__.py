"""Unit tests of the lab."""
