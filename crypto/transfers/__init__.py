"""Oblivious transfer, vector OLE and oblivious key-value stores, the building blocks of private alignment."""
