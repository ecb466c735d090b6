"""What the service costs, measured beside floors that do the same work with nothing on top."""
