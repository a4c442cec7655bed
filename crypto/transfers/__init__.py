"""Building blocks of private alignment and of training on shares: oblivious transfer, vector OLE, key-value stores.

An oblivious transfer lets a receiver read one of a sender's values, while the sender does not learn which one. Vector
OLE (oblivious linear evaluation) generates random vectors with a linear relation at two parties. An oblivious key-value
store is a table that hides its keys.
"""
