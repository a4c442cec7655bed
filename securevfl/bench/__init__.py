"""Benchmarks of homomorphic encryption, compared with the libraries in use today. See docs/benchmarks.md."""
