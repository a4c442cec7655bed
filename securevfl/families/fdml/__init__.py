"""Training at everyone's own pace, on sums that may be stale."""
