"""What an operator sees of requests and decisions: metrics and the access log."""
