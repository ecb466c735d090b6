"""What makes a release: `python -m release`, and the check that it breaks no client."""
