"""How frames travel: threads in one process, gRPC between organisations."""
