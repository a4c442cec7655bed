"""Private alignment by private set intersection, before a training or a joint prediction.

The parties learn which of their rows' ids all of them have, and nothing about other ids.
"""
