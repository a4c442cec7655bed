"""Connections between organisations: mutual TLS over gRPC, and end-to-end encryption through a hub."""
