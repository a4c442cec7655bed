"""Everything about one party's table.

Modules read tables from files and frames, check them, prepare and scale their columns, and divide rows into batches.
Tables larger than memory are stored on disk. A *frame* is a table with named columns, such as a DataFrame of pandas.
"""
