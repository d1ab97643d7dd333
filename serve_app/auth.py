"""Placeholder, replaced within the hour."""
