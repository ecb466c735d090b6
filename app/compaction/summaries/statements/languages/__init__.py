"""The words by which statements are recognised, one module of data for each language."""
