"""What runs in an emulated machine."""
