"""Measurements of homomorphic cost, against the libraries that people use today. See docs/benchmarks.md."""
