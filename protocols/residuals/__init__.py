"""How residuals go down: in the clear, blurred, or sealed under the active party's key."""
