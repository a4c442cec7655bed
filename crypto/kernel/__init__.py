"""The kernel: encrypted matrix products based on polynomials ("ring elements"), computed by numpy.

It contains the protocols for shared products and for encrypted gradients, and arithmetic with integers modulo primes
that is exact in float64 with any BLAS.
"""
