"""Shared mathematics: automata, counts, sums by inversion, integrals on the line."""
