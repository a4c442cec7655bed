"""Training on secret shares: two parties hold random shares of all values, and no party sees the values themselves."""
