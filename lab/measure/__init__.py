"""Costs: counted, timed, drawn."""
