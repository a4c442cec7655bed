"""Connections between organisations: mutual TLS over gRPC, and end-to-end encryption through a hub.

A hub is a party or a relay that forwards packets between parties that cannot connect directly.
"""
