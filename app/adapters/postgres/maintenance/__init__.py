"""Backup, restore and check of a whole database."""
