"""Benchmarks of the service, compared with floors: minimal servers that do the same work."""
