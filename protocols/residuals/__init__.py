"""Residual protocols: passive parties compute their gradients from the active party's residual.

The active party, which has the labels, sends the residual g (the derivative of the loss by the model's outputs) in the
clear, with noise, or encrypted. A passive party, which has only columns, computes J^T g; J is the derivative of its
outputs by its parameters.
"""
