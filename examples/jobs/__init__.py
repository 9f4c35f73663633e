"""Six jobs from messy tables to a model: a script of at most 25 lines each."""
