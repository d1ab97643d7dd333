"""Routing policies: pure rules from facts to a ranking of the candidates. One file each."""
