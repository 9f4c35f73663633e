"""The mathematics that rules share: automata, counts, sums by inversion, integrals on the line."""
