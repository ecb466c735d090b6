"""Tests of `context-service compare`."""
