"""Sums that lie at a server, which workers push to and pull from at their own pace."""
