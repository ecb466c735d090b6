"""Sessions with planted statements, and the wordings of these."""
