"""Masks that cancel in a sum, the keys that they come from, and the trees that sums go through."""
